#pragma once

#include <cuda_runtime.h>

#include "../../../ops/kernels/sparse.h"

/// The kernels of block-sparse products. Operands are contiguous and aligned to 16 bytes. y and the
/// data are not empty.
namespace sash::cuda::sparse {

/// A product a W' + bias or a W. `lines` are W's block rows or block columns.
struct ProductCall {
  TensorView a, data, y;
  const void* bias;
  kernels::BlockLines lines;
  int64_t block;
  bool transposed;
};

/// The addresses of a product's operands and result.
template <class T>
struct ProductParams {
  const T* a;
  const T* data;
  const T* bias;
  T* y;
  kernels::BlockLines lines;
  int64_t rows, a_width, y_width;

  explicit ProductParams(const ProductCall& call)
      : a(call.a.ptr<const T>()),
        data(call.data.ptr<const T>()),
        bias(static_cast<const T*>(call.bias)),
        y(call.y.ptr<T>()),
        lines(call.lines),
        rows(call.y.shape[0]),
        a_width(call.a.shape[1]),
        y_width(call.y.shape[1]) {}
};

/// float16 and bfloat16, on tensor cores.
void multiply_halves(const KernelContext& context, const ProductCall& call);
void sample_halves(const KernelContext& context, View a, View b,
                   const kernels::BlockPatternView& pattern, View data);

/// The same on sm_90a: narrow blocks of 16 and 32, wide blocks of 64 and 128. Matrices have at
/// least one block, and fewer than 2^30 rows of elements.
void multiply_narrow_hopper(const KernelContext& context, const ProductCall& call);
void multiply_wide_hopper(const KernelContext& context, const ProductCall& call);
void sample_narrow_hopper(const KernelContext& context, View a, View b,
                          const kernels::BlockPatternView& pattern, View data);
void sample_wide_hopper(const KernelContext& context, View a, View b,
                        const kernels::BlockPatternView& pattern, View data);

/// float32 and float64.
void multiply_simple(const KernelContext& context, const ProductCall& call);
void sample_simple(const KernelContext& context, View a, View b,
                   const kernels::BlockPatternView& pattern, View data);

/// Calls `f` with the block size, one of the given sizes, as a constant.
template <int size, int... others, class F>
void with_block_of(int64_t block, F&& f) {
  if constexpr (sizeof...(others) > 0) {
    if (block != size) return with_block_of<others...>(block, f);
  }
  f(std::integral_constant<int, size>{});
}
template <class F>
void with_block(int64_t block, F&& f) {
  with_block_of<16, 32, 64, 128>(block, f);
}

/// Calls `f` with the block size of a product, one of the given sizes, and with whether W is
/// transposed, as constants.
template <int... sizes, class F>
void with_product(const ProductCall& call, F&& f) {
  with_block_of<sizes...>(call.block, [&](auto block) {
    call.transposed ? f(block, std::true_type{}) : f(block, std::false_type{});
  });
}

}  // namespace sash::cuda::sparse
