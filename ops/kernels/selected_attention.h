#pragma once

#include <algorithm>

#include "attention.h"

/// Attention as in attention.h over blocks that data selects. No bias, softcap or dropout.
namespace sash::kernels {

/// The widest heads that CUDA has kernels for.
inline constexpr int64_t kSelectedHeadDim = 256;

/// Query i at position p = i + S_k - S_q sees key j if j / block is in the row i / queries_per_row
/// of `index`, p - left <= j <= p + right, and j is within `bounds`.
struct SelectedAttentionParams {
  double scale = 1;
  /// int32 [B or 1, 1 or H_kv or H, ceil(S_q / queries_per_row), k], contiguous; -1: none; a block
  /// that is listed twice counts once. `IndexError` for another number outside [0, ceil(S_k /
  /// block)): CUDA leaves it out, and throws at the next synchronisation.
  TensorView index;
  int64_t block = 1, queries_per_row = 1;
  int64_t left = 0, right = 0;
  const TensorView* bounds = nullptr;  ///< as in `AttentionParams`
};

/// `KernelCall::part` is an upper limit, which the index alone gives.
inline void add_operands(KernelCall& call, const SelectedAttentionParams& x) {
  add_operands(call, x.index);
  const auto keys = static_cast<double>(call.operands[1].shape[2]);
  if (keys > 0) call.part = std::min(1.0, static_cast<double>(x.index.shape[3] * x.block) / keys);
}

/// As `attention_forward`.
extern SASH_API Kernel<void(KernelContext&, const AttentionInputs&, const SelectedAttentionParams&,
                            const TensorView& out, const TensorView& lse)>
    selected_attention_forward;

/// As `attention_backward`, of q, k and v. No float atomics: the same bits every time.
extern SASH_API Kernel<void(KernelContext&, const AttentionInputs&, const SelectedAttentionParams&,
                            const AttentionGradients&)>
    selected_attention_backward;

}  // namespace sash::kernels
