#pragma once

#include <string>
#include <vector>

#include "../../ops/attention/mask/attention_mask.h"
#include "../../tensor/tensor.h"

namespace sash::nn {

/// The keys and values that the newest queries attend to.
struct CachedKeys {
  Tensor k;              ///< [B, H_kv, m, D]
  Tensor v;              ///< [B, H_kv, m, D_v]
  AttentionMask mask{};  ///< which of these keys each query may see
  /// The position of each key. Empty if they are 0, 1, ..., m - 1, as attention takes them to be.
  std::vector<int64_t> positions{};
};

/// The keys and values of one attention layer, so that a new token costs the attention of one
/// query: `MultiheadAttention::forward(x, cache)` reads and extends it.
///
/// The cache stores only tokens that later tokens can see. Under `causal_window(w)`, alone or with
/// `sinks(n)`, these are the first n and the last w tokens, in n + w slots; the last w slots form a
/// ring buffer. Under any other causal mask it stores every token.
class SASH_API KeyValueCache {
 public:
  /// An empty cache for attention under `mask`. `ValueError` if the mask has no `causal_reach`.
  explicit KeyValueCache(const AttentionMask& mask = AttentionMask::causal());
  /// A copy has separate memory, so two texts may continue the same tokens.
  KeyValueCache(const KeyValueCache& other);
  /// Leaves `other` empty.
  KeyValueCache(KeyValueCache&& other) noexcept;
  KeyValueCache& operator=(KeyValueCache other) noexcept;

  /// Appends the keys [B, H_kv, n, D] and values [B, H_kv, n, D_v] of the next n tokens, and
  /// returns the keys and values that their queries attend to. The results share memory with the
  /// cache and are valid until the next call.
  ///
  /// `ShapeError`, `DTypeError` or `DeviceError` unless they fit each other and earlier ones;
  /// `AutogradError` if they require grad, since the cache has no gradient.
  CachedKeys append(const Tensor& k, const Tensor& v);
  /// Makes room for one more token and counts it, for `attention_step`, which writes its key and
  /// value to `keys` and `values`. `ValueError` if the cache is empty.
  void extend();
  /// Counts the next n tokens of a layer that keeps `summaries` alone.
  void count(int64_t tokens) { length_ += tokens; }
  /// Row i becomes row `rows[i]`, as a beam search needs; there may be more or fewer rows than
  /// before. `IndexError` for a row that there is not.
  void reorder(const std::vector<int64_t>& rows);
  /// What the layer made of the tokens so far and needs again: pooled keys of blocks, or the state
  /// of a recurrence. [B, ...] each, which nobody writes in place. They follow `reorder`, `clear`
  /// and copies.
  std::vector<Tensor>& summaries() { return summaries_; }
  /// Names the kind of attention that the next summaries are of. `ValueError` if there are some of
  /// another kind.
  void check_summaries_of(const std::string& kind);
  /// Drops all tokens and their memory.
  void clear();

  const AttentionMask& mask() const { return mask_; }
  /// Tokens appended so far: the position of the next.
  int64_t length() const { return length_; }
  /// The number of tokens in memory.
  int64_t held() const { return reach_.recent ? std::min(length_, limit()) : length_; }
  /// Memory of keys, values and summaries; that of the first two doubles as needed, up to the limit
  /// set by the mask.
  int64_t bytes() const;
  /// The memory, [B, H_kv, slots, D]; undefined if empty. It moves only if the cache grows.
  const Tensor& keys() const { return k_; }
  const Tensor& values() const { return v_; }
  const CausalReach& reach() const { return reach_; }

 private:
  int64_t limit() const { return reach_.first + *reach_.recent; }
  bool overflows(int64_t tokens) const { return reach_.recent && length_ + tokens > limit(); }
  int64_t slot_of(int64_t position) const;
  std::vector<int64_t> held_positions() const;
  AttentionMask visible_among(const std::vector<int64_t>& keys, int64_t queries,
                              Device device) const;
  void check(const Tensor& k, const Tensor& v) const;
  void reserve(int64_t tokens, const Tensor& k, const Tensor& v);
  void store(const Tensor& k, const Tensor& v);

  AttentionMask mask_;
  CausalReach reach_;
  int64_t length_ = 0;
  Tensor k_, v_;  // [B, H_kv, slots, D], undefined at first
  std::vector<Tensor> summaries_{};
  std::string kind_{};  // of attention that they are of; empty if it is not known
};

/// `ValueError` of `op` unless `cache` is for attention under `mask`.
SASH_API void check_mask_of(const std::string& op, const KeyValueCache& cache,
                            const AttentionMask& mask);

}  // namespace sash::nn
