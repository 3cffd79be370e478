#pragma once

#include "../../../../core/backend/dispatch.h"
#include "../../../../ops/kernels/selected_attention.h"
#include "../../hopper/tensor_map.h"

/// Attention over selected blocks: its two families of kernels.
namespace sash::cuda::selected {

using kernels::AttentionGradients;
using kernels::AttentionInputs;
using kernels::SelectedAttentionParams;

/// Tensor cores and TMA of sm_90: halves, heads of 64 or 128 features, rows that a tensor map
/// takes.
void tensor_core_forward(const KernelContext&, const AttentionInputs&,
                         const SelectedAttentionParams&, View out, View lse);
void tensor_core_backward(const KernelContext&, const AttentionInputs&,
                          const SelectedAttentionParams&, const AttentionGradients&);

/// The same for groups of fewer than 16 rows of q, by key.
void forward_by_key(const KernelContext&, const AttentionInputs&, const SelectedAttentionParams&,
                    View out, View lse);

/// Any card, every floating dtype, heads of at most `kSelectedHeadDim` features.
void simple_forward(const KernelContext&, const AttentionInputs&, const SelectedAttentionParams&,
                    View out, View lse);
void simple_backward(const KernelContext&, const AttentionInputs&, const SelectedAttentionParams&,
                     const AttentionGradients&);

}  // namespace sash::cuda::selected
