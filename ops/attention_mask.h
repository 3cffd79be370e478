#pragma once

#include "../core/small_vector.h"
#include "../tensor/tensor.h"

namespace sash {

/// Which keys each query may see: a value built from named parts with `&` (visible in both) and `|`
/// (visible in either). It knows no lengths until it is used.
class SASH_API AttentionMask {
 public:
  /// Everything is visible.
  AttentionMask() : terms_{Term{}} {}
  /// Key j is visible to query i where `visible` [B, H, S_q, S_k] is true; any shape that
  /// broadcasts to that one. `DTypeError` unless bool.
  AttentionMask(const Tensor& visible);

  /// Key j is visible to query i iff j <= i + S_k - S_q: the last query sees every key.
  static AttentionMask causal();

  friend SASH_API AttentionMask operator&(const AttentionMask& a, const AttentionMask& b);
  friend SASH_API AttentionMask operator|(const AttentionMask& a, const AttentionMask& b);

  /// The mask as a bool tensor [..., S_q, S_k] on `device`, with the batch and head axes of its
  /// tensors.
  Tensor to_dense(int64_t queries, int64_t keys, Device device = kCPU) const;

  /// A part that kernels take as it is: keys that are visible both causally (if `causal`) and by
  /// `visible` (if defined).
  struct Term {
    bool causal = false;
    Tensor visible;
  };
  /// The mask as one such part; a union becomes a tensor.
  Term compile(int64_t queries, int64_t keys, Device device) const;

 private:
  // Visible where any term says so.
  SmallVector<Term, 1> terms_;
};

}  // namespace sash
