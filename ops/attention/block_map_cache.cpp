#include <algorithm>
#include <atomic>
#include <list>
#include <unordered_map>

#include "../../core/error.h"
#include "../../tensor/stream.h"
#include "block_map.h"

/// The compiled maps that are kept, and the streams that read them.
namespace sash {

// ---- streams ------------------------------------------------------------------------------------

WrittenOnce::WrittenOnce(Device device)
    : device_(device), writer_(backend(device.type).current_stream(device)) {
  Backend& owner = backend(device.type);
  written_ = owner.create_event(device);
  owner.record(written_, device, writer_);
}

WrittenOnce::~WrittenOnce() {
  try {
    backend(device_.type).destroy_event(device_, written_);
  } catch (const Error&) {  // the device is gone, and the event with it
  }
}

bool WrittenOnce::reach(Stream stream) {
  if (stream == writer_) return false;
  const std::lock_guard lock(mutex_);
  if (std::find(waited_.begin(), waited_.end(), stream) == waited_.end()) {
    backend(device_.type).wait(written_, device_, stream);
    waited_.push_back(stream);
  }
  return true;
}

int64_t CompiledBlocks::bytes() const {
  return lists.numel() * size_of(lists.dtype()) + words.numel() * size_of(words.dtype());
}

void CompiledBlocks::use() const {
  const Device device = lists.device();
  Backend& owner = backend(device.type);
  const Stream stream = owner.current_stream(device);
  if (!written->reach(stream) && !owner.capturing(device)) return;
  for (const Tensor* memory : {&lists, &words}) record_stream(*memory, stream);
}

namespace {

// ---- the cache ----------------------------------------------------------------------------------

// A part that no equal text can stand for: the entry is of use while it lives, unwritten.
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

struct Entry {
  std::string key;
  std::shared_ptr<const CompiledBlocks> blocks;
  std::vector<UniquePart> unique_parts;

  // With what the books take.
  int64_t bytes() const { return blocks->bytes() + static_cast<int64_t>(2 * key.size()) + 512; }
  bool is_stale() const {
    return std::any_of(unique_parts.begin(), unique_parts.end(),
                       [](const UniquePart& part) { return part.is_stale(); });
  }
};

// The most recently used maps. Never destroyed: their memory may be a device's.
class Cache {
 public:
  std::shared_ptr<const CompiledBlocks> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    recent_.splice(recent_.begin(), recent_, found->second);
    return recent_.front().blocks;
  }

  void keep(Entry entry) {
    Entries dropped;  // released without the lock
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
    const Entry& kept = recent_.front();
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
  using Entries = std::list<Entry>;

  void count(const Entry& entry, int sign) {
    bytes_ += sign * entry.bytes();
    detail::mask_bytes(entry.blocks->lists.device().type)
        .fetch_add(sign * entry.blocks->bytes(), std::memory_order_relaxed);
  }
  void drop(Entries::iterator entry, Entries& dropped) {
    count(*entry, -1);
    places_.erase(entry->key);
    dropped.splice(dropped.end(), recent_, entry);
  }
  void shrink(Entries& dropped) {
    while (bytes_ > limit_) drop(std::prev(recent_.end()), dropped);
  }

  std::mutex mutex_;
  Entries recent_;
  std::unordered_map<std::string, Entries::iterator> places_;
  std::list<std::string> unique_;  // keys of entries with such parts
  int64_t bytes_ = 0;
  int64_t limit_ = kDefaultMaskCacheLimit;
};

Cache& cache() {
  static Cache* const one = new Cache;
  return *one;
}

// Batches and heads matter only where they look different.
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

std::shared_ptr<const CompiledBlocks> compile_blocks(const MaskTerm& term, const MaskShape& shape,
                                                     int64_t query_rows, Device device) {
  Entry entry{.key = key_of(term, shape, query_rows, device), .blocks = {}, .unique_parts = {}};
  if (auto known = cache().find(entry.key)) return known;
  add_unique_parts(term, entry.unique_parts);
  const auto fresh = compile_anew(term, shape, query_rows, device);
  entry.blocks = fresh;
  cache().keep(std::move(entry));
  return fresh;
}

void set_mask_cache_limit(int64_t bytes) {
  if (bytes < 0) {
    throw ValueError("set_mask_cache_limit", "at least 0 bytes", std::to_string(bytes));
  }
  cache().set_limit(bytes);
}

void forget_blocks() { cache().clear(); }

}  // namespace sash
