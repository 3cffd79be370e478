#pragma once

#include "../../core/kernel.h"
#include "../../core/tensor_view.h"

/// Masks that are data: the range of keys that each query may see, made on the device.
namespace sash::kernels {

struct RowBoundsParams {
  int64_t queries = 0, keys = 0;
  const TensorView* lengths = nullptr;     ///< int32 [B], contiguous: [0, lengths[b])
  const TensorView* cu_seqlens = nullptr;  ///< int32 [n + 1], contiguous: that of i's sequence
  const TensorView* first = nullptr;       ///< int32 [B or 1, H or 1, S_q] by strides: [first, ...
  const TensorView* past = nullptr;        ///< int32, the same: ..., past)
};

/// bounds int32 [B or 1, H or 1, S_q, 2], contiguous: the intersection of all ranges given, as
/// `AttentionParams::bounds` wants it. Several of one kind are intersected call by call: with
/// `narrow`, `bounds` holds ranges to start from.
///
/// Refused, with the place: a length outside [0, keys]; cu_seqlens that do not start at 0,
/// decrease, or do not end at queries (= keys); a range outside [0, keys]. On CUDA they are
/// clamped, and reported at the next synchronisation.
extern SASH_API
    Kernel<void(KernelContext&, const RowBoundsParams&, bool narrow, const TensorView& bounds)>
        row_bounds;

}  // namespace sash::kernels
