#include "key_value_cache.h"

#include <algorithm>
#include <utility>

#include "../../ops/checks.h"
#include "../../ops/index/gather.h"
#include "../../ops/shape/concat.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"

namespace sash::nn {
namespace {

constexpr const char* kCache = "KeyValueCache";
constexpr int64_t kFewestSlots = 32;

CausalReach reach_of(const AttentionMask& mask) {
  const std::optional<CausalReach> reach = mask.causal_reach();
  if (reach) return *reach;
  throw ValueError(kCache, "a mask that hides later keys and depends on positions alone",
                   mask.to_string());
}

Tensor slots(const Tensor& buffer, int64_t count) { return buffer.narrow(2, 0, count); }

// A larger copy of `buffer` that keeps the first `used` slots.
Tensor grown(const Tensor& buffer, const Tensor& like, int64_t count, int64_t used) {
  const Tensor larger = empty({like.size(0), like.size(1), count, like.size(3)}, like.options());
  if (used > 0) slots(larger, used).copy_(slots(buffer, used));
  return larger;
}

int64_t bytes_of(const Tensor& x) {
  return x.defined() ? x.numel() * static_cast<int64_t>(size_of(x.dtype())) : 0;
}

bool same_but_length(const Tensor& a, const Tensor& b) {
  return a.size(0) == b.size(0) && a.size(1) == b.size(1) && a.size(3) == b.size(3);
}

}  // namespace

KeyValueCache::KeyValueCache(const AttentionMask& mask) : mask_(mask), reach_(reach_of(mask)) {}

KeyValueCache::KeyValueCache(const KeyValueCache& other)
    : mask_(other.mask_),
      reach_(other.reach_),
      length_(other.length_),
      summaries_(other.summaries_),
      kind_(other.kind_) {
  if (!other.k_.defined()) return;
  k_ = other.k_.clone();
  v_ = other.v_.clone();
}

KeyValueCache::KeyValueCache(KeyValueCache&& other) noexcept
    : mask_(other.mask_),
      reach_(other.reach_),
      length_(std::exchange(other.length_, 0)),
      k_(std::move(other.k_)),
      v_(std::move(other.v_)),
      summaries_(std::exchange(other.summaries_, {})),
      kind_(std::exchange(other.kind_, {})) {}

KeyValueCache& KeyValueCache::operator=(KeyValueCache other) noexcept {
  std::swap(mask_, other.mask_);
  std::swap(reach_, other.reach_);
  std::swap(length_, other.length_);
  std::swap(k_, other.k_);
  std::swap(v_, other.v_);
  std::swap(summaries_, other.summaries_);
  std::swap(kind_, other.kind_);
  return *this;
}

CachedKeys KeyValueCache::append(const Tensor& k, const Tensor& v) {
  check(k, v);
  const NoGradGuard no_grad;
  const int64_t n = k.size(2);
  if (length_ == 0) {
    store(k, v);
    return {k, v, mask_};
  }
  if (!overflows(n) || n == 1) {
    const bool gone = overflows(n);
    store(k, v);
    // A single query sees all held keys, if the reach is exact.
    return {slots(k_, held()), slots(v_, held()), n == 1 && reach_.exact ? AttentionMask() : mask_,
            gone ? held_positions() : std::vector<int64_t>()};
  }
  // The first queries see keys that the last tokens overwrite.
  CachedKeys seen{
      cat({slots(k_, held()), k}, 2), cat({slots(v_, held()), v}, 2), {}, held_positions()};
  for (int64_t i = 0; i < n; ++i) seen.positions.push_back(length_ + i);
  seen.mask = visible_among(seen.positions, n, k.device());
  store(k, v);
  return seen;
}

void KeyValueCache::extend() {
  if (!k_.defined()) throw ValueError("KeyValueCache.extend", "earlier tokens", "none");
  const NoGradGuard no_grad;
  reserve(1, k_, v_);
  ++length_;
}

void KeyValueCache::reorder(const std::vector<int64_t>& rows) {
  if (!k_.defined() && summaries_.empty()) return;
  const NoGradGuard no_grad;
  const Tensor index = tensor(rows, {static_cast<int64_t>(rows.size())},
                              {.device = (k_.defined() ? k_ : summaries_[0]).device()});
  const auto reordered = [&](const Tensor& x) {
    return x.defined() ? index_select(x, 0, index) : x;
  };
  Tensor keys = reordered(k_), values = reordered(v_);
  std::vector<Tensor> summaries;
  for (const Tensor& x : summaries_) summaries.push_back(reordered(x));
  k_ = std::move(keys);
  v_ = std::move(values);
  summaries_ = std::move(summaries);
}

void KeyValueCache::clear() {
  length_ = 0;
  k_ = v_ = Tensor();
  summaries_.clear();
}

void KeyValueCache::check_summaries_of(const std::string& kind) {
  if (summaries_.empty()) kind_ = kind;
  if (kind_.empty() || kind_ == kind) return;
  throw ValueError(kCache, "a cache for '" + kind + "'", "one for '" + kind_ + "'");
}

int64_t KeyValueCache::bytes() const {
  int64_t bytes = bytes_of(k_) + bytes_of(v_);
  for (const Tensor& x : summaries_) bytes += bytes_of(x);
  return bytes;
}

int64_t KeyValueCache::slot_of(int64_t position) const {
  if (!reach_.recent || position < reach_.first) return position;
  return reach_.first + (position - reach_.first) % *reach_.recent;
}

std::vector<int64_t> KeyValueCache::held_positions() const {
  std::vector<int64_t> positions(static_cast<size_t>(held()));
  const int64_t first_recent = reach_.recent ? std::max<int64_t>(0, length_ - *reach_.recent) : 0;
  for (int64_t p = 0; p < length_; ++p) {
    if (p >= reach_.first) p = std::max(p, first_recent);
    positions[static_cast<size_t>(slot_of(p))] = p;
  }
  return positions;
}

AttentionMask KeyValueCache::visible_among(const std::vector<int64_t>& keys, int64_t queries,
                                           Device device) const {
  std::vector<bool> visible;
  for (int64_t p = length_; p < length_ + queries; ++p) {
    for (const int64_t j : keys) {
      visible.push_back(j <= p && (p - j < *reach_.recent || j < reach_.first));
    }
  }
  return tensor(visible, {queries, static_cast<int64_t>(keys.size())}, {.device = device});
}

void KeyValueCache::check(const Tensor& k, const Tensor& v) const {
  check_compatible(kCache, k, v);
  check_rank(kCache, k, 4);
  check_rank(kCache, v, 4);
  if (k.size(0) != v.size(0) || k.size(1) != v.size(1) || k.size(2) != v.size(2)) {
    throw ShapeError(kCache, "keys [B, H, n, D] and values [B, H, n, D_v]",
                     to_string(k.shape()) + " and " + to_string(v.shape()));
  }
  if (k.requires_grad() || v.requires_grad()) {
    throw AutogradError(kCache, "keys and values without history, under a NoGradGuard",
                        "some that require grad");
  }
  if (!k_.defined() && length_ > 0) {
    throw ValueError(kCache, "a cache of keys and values", "the state of a recurrence");
  }
  if (!k_.defined()) return;
  check_compatible(kCache, k_, k);
  if (!same_but_length(k_, k) || !same_but_length(v_, v)) {
    throw ShapeError(kCache, "keys and values shaped like earlier ones, except n",
                     to_string(k.shape()) + " and " + to_string(v.shape()) + " after " +
                         to_string(slots(k_, held()).shape()) + " and " +
                         to_string(slots(v_, held()).shape()));
  }
}

void KeyValueCache::reserve(int64_t tokens, const Tensor& k, const Tensor& v) {
  int64_t wanted = length_ + tokens;
  const int64_t present = k_.defined() ? k_.size(2) : 0;
  if (reach_.recent) wanted = std::min(wanted, limit());
  if (wanted <= present) return;
  wanted = std::max({wanted, 2 * present, kFewestSlots});
  if (reach_.recent) wanted = std::min(wanted, limit());
  // Both are allocated before either is assigned, so out of memory changes nothing.
  Tensor keys = grown(k_, k, wanted, held()), values = grown(v_, v, wanted, held());
  k_ = std::move(keys);
  v_ = std::move(values);
}

void KeyValueCache::store(const Tensor& k, const Tensor& v) {
  const int64_t n = k.size(2), past = length_ + n;
  reserve(n, k, v);
  const int64_t first_recent = reach_.recent ? past - *reach_.recent : 0;
  for (int64_t p = length_; p < past;) {
    if (p >= reach_.first) p = std::max(p, first_recent);
    const int64_t slot = slot_of(p);
    int64_t run = past - p;
    if (p < reach_.first) run = std::min(run, reach_.first - p);
    if (reach_.recent && p >= reach_.first) run = std::min(run, limit() - slot);
    k_.narrow(2, slot, run).copy_(k.narrow(2, p - length_, run));
    v_.narrow(2, slot, run).copy_(v.narrow(2, p - length_, run));
    p += run;
  }
  length_ = past;
}

void check_mask_of(const std::string& op, const KeyValueCache& cache, const AttentionMask& mask) {
  if (cache.mask().shared_term() == mask.shared_term()) return;
  const std::string expected = mask.to_string(), got = cache.mask().to_string();
  if (got != expected) throw ValueError(op, "a cache for " + expected, "one for " + got);
}

}  // namespace sash::nn
