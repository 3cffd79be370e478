#pragma once

#include <cuda_runtime.h>

#include "../../../ops/kernels/sparse.h"

/// The kernels of block-sparse products. Operands are contiguous and aligned to 16 bytes; y and the
/// data have elements.
namespace sash::cuda::sparse {

/// A product a W' + bias or a W. `lines` are W's block rows or block columns.
struct ProductCall {
  TensorView a, data, y;
  const void* bias;
  kernels::BlockLines lines;
  int64_t block;
  bool transposed;
};

/// float16 and bfloat16, on tensor cores.
void multiply_halves(const KernelContext& context, const ProductCall& call);
void sample_halves(const KernelContext& context, const TensorView& a, const TensorView& b,
                   const kernels::BlockPatternView& pattern, const TensorView& data);

/// The same on sm_90a: narrow blocks of 16 and 32, wide ones of 64 and 128. Matrices have blocks,
/// and fewer than 2^30 rows of elements.
void multiply_narrow_hopper(const KernelContext& context, const ProductCall& call);
void multiply_wide_hopper(const KernelContext& context, const ProductCall& call);
void sample_narrow_hopper(const KernelContext& context, const TensorView& a, const TensorView& b,
                          const kernels::BlockPatternView& pattern, const TensorView& data);
void sample_wide_hopper(const KernelContext& context, const TensorView& a, const TensorView& b,
                        const kernels::BlockPatternView& pattern, const TensorView& data);

/// float32 and float64.
void multiply_simple(const KernelContext& context, const ProductCall& call);
void sample_simple(const KernelContext& context, const TensorView& a, const TensorView& b,
                   const kernels::BlockPatternView& pattern, const TensorView& data);

/// Calls `f` with the block size as a constant.
template <class F>
void with_block(int64_t block, F&& f) {
  if (block == 16) return f(std::integral_constant<int, 16>{});
  if (block == 32) return f(std::integral_constant<int, 32>{});
  if (block == 64) return f(std::integral_constant<int, 64>{});
  f(std::integral_constant<int, 128>{});
}

}  // namespace sash::cuda::sparse
