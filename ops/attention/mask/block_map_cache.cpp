#include <algorithm>
#include <atomic>
#include <deque>
#include <list>
#include <mutex>
#include <unordered_map>

#include "../../../core/error.h"
#include "block_map_cache.h"

namespace sash {

namespace {

// A part with a tensor or function. The entry is stale once the part is gone or written to.
struct UniquePart {
  std::weak_ptr<const MaskPart> part;
  std::string text;

  bool is_stale() const {
    const auto alive = part.lock();
    return !alive || alive->text() != text;
  }
};

void add_unique_parts(const MaskTerm& term, std::vector<UniquePart>& parts) {
  if (term.kind != MaskTerm::Kind::part) {
    add_unique_parts(*term.left, parts);
    add_unique_parts(*term.right, parts);
    return;
  }
  std::string text = term.part->text();
  if (text.find('#') != std::string::npos) parts.push_back({term.part, std::move(text)});
}

struct KeptMap {
  std::string key;
  std::shared_ptr<const CompiledBlockMap> compiled;
  std::vector<UniquePart> unique_parts;

  // Including the bookkeeping.
  int64_t bytes() const { return compiled->bytes() + static_cast<int64_t>(2 * key.size()) + 512; }
  bool is_stale() const {
    return std::any_of(unique_parts.begin(), unique_parts.end(),
                       [](const UniquePart& part) { return part.is_stale(); });
  }
};

// What decides about a map, by address. Keeps the expression, so that the address stays its own.
struct Call {
  MaskTermPtr term;
  MaskShape shape;
  int64_t query_rows;
  Device device;

  friend bool operator==(const Call& a, const Call& b) {
    return a.term == b.term && a.shape.batch == b.shape.batch && a.shape.heads == b.shape.heads &&
           a.shape.queries == b.shape.queries && a.shape.keys == b.shape.keys &&
           a.query_rows == b.query_rows && a.device == b.device;
  }
};

// Least recently used maps go first. Never destroyed: a device may be gone before static
// destructors run.
class Cache {
 public:
  // By the expression itself: without its text, which takes longer to make than a kernel to launch.
  std::shared_ptr<const CompiledBlockMap> find(const Call& call) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(calls_.begin(), calls_.end(),
                                    [&](const Known& known) { return known.call == call; });
    return found == calls_.end() ? nullptr : used(found->entry);
  }
  std::shared_ptr<const CompiledBlockMap> find(const std::string& key, const Call& call) {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    remember(call, found->second);
    return used(found->second);
  }

  void keep(KeptMap entry) {
    Entries dropped;  // destroyed without the lock
    const std::lock_guard lock(mutex_);
    for (auto at = unique_.begin(); at != unique_.end();) {
      const auto place = places_.find(*at);
      if (place != places_.end() && !place->second->is_stale()) {
        ++at;
        continue;
      }
      if (place != places_.end()) drop(place->second, dropped);
      at = unique_.erase(at);
    }
    if (entry.bytes() > limit_ || places_.count(entry.key) > 0) return;
    count(entry, 1);
    recent_.push_front(std::move(entry));
    const KeptMap& kept = recent_.front();
    places_[kept.key] = recent_.begin();
    if (!kept.unique_parts.empty()) unique_.push_back(kept.key);
    shrink(dropped);
  }

  void set_limit(int64_t bytes) {
    Entries dropped;
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
    shrink(dropped);
  }

  void clear() {
    Entries dropped;
    const std::lock_guard lock(mutex_);
    while (!recent_.empty()) drop(recent_.begin(), dropped);
    unique_.clear();
  }

 private:
  using Entries = std::list<KeptMap>;
  struct Known {
    Call call;
    Entries::iterator entry;
  };
  static constexpr size_t kMostCalls = 16;

  std::shared_ptr<const CompiledBlockMap> used(Entries::iterator entry) {
    recent_.splice(recent_.begin(), recent_, entry);
    return entry->compiled;
  }
  void remember(const Call& call, Entries::iterator entry) {
    if (!entry->unique_parts.empty()) return;  // the text of these changes
    if (calls_.size() == kMostCalls) calls_.pop_front();
    calls_.push_back({call, entry});
  }
  void count(const KeptMap& entry, int sign) {
    bytes_ += sign * entry.bytes();
    detail::mask_bytes(entry.compiled->lists.device().type)
        .fetch_add(sign * entry.compiled->bytes(), std::memory_order_relaxed);
  }
  void drop(Entries::iterator entry, Entries& dropped) {
    count(*entry, -1);
    std::erase_if(calls_, [&](const Known& known) { return known.entry == entry; });
    places_.erase(entry->key);
    dropped.splice(dropped.end(), recent_, entry);
  }
  void shrink(Entries& dropped) {
    while (bytes_ > limit_) drop(std::prev(recent_.end()), dropped);
  }

  std::mutex mutex_;
  Entries recent_;
  std::unordered_map<std::string, Entries::iterator> places_;
  std::deque<Known> calls_;        // the latest
  std::list<std::string> unique_;  // keys of entries with such parts
  int64_t bytes_ = 0;
  int64_t limit_ = kDefaultMaskCacheLimit;
};

Cache& cache() {
  static Cache* const one = new Cache;
  return *one;
}

// Batches and heads count only where they differ.
std::string key_of(const MaskTerm& term, const MaskShape& shape, int64_t query_rows,
                   Device device) {
  const MaskExtents extents = extents_of(term);
  std::string key = to_string(term);
  for (const int64_t n : {extents.per_batch ? shape.batch : 1, extents.per_head ? shape.heads : 1,
                          shape.queries, shape.keys, query_rows}) {
    key += ";" + std::to_string(n);
  }
  return key + ";" + to_string(device);
}

}  // namespace

std::shared_ptr<const CompiledBlockMap> cached_block_map(const MaskTermPtr& term,
                                                         const MaskShape& shape, int64_t query_rows,
                                                         Device device) {
  const Call call{term, shape, query_rows, device};
  if (auto kept = cache().find(call)) return kept;
  KeptMap entry{
      .key = key_of(*term, shape, query_rows, device), .compiled = {}, .unique_parts = {}};
  if (auto kept = cache().find(entry.key, call)) return kept;
  add_unique_parts(*term, entry.unique_parts);
  auto compiled = compile_block_map(*term, shape, query_rows, device);
  entry.compiled = compiled;
  cache().keep(std::move(entry));
  return compiled;
}

void set_mask_cache_limit(int64_t bytes) {
  if (bytes < 0) {
    throw ValueError("set_mask_cache_limit", "at least 0 bytes", std::to_string(bytes));
  }
  cache().set_limit(bytes);
}

void clear_mask_cache() { cache().clear(); }

}  // namespace sash
