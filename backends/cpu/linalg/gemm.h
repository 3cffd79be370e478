#pragma once

#include <cstdint>

#include "../../../core/backend/kernel.h"
#include "../../../core/shape.h"

/// Matrix products, with the same bits for any number of threads. Only the shape of a product
/// decides how it is split into tiles. One thread computes a tile with `MicroKernel`, `FewRows` or
/// Eigen (with fixed cache blocking), or with plain loops for rows times large matrices.
namespace sash::cpu {

/// Element (i, j) is `data[i * row_stride + j * col_stride]`.
template <class T>
struct Matrix {
  T* data;
  int64_t row_stride;
  int64_t col_stride;

  T* at(int64_t i, int64_t j) const { return data + i * row_stride + j * col_stride; }
  Matrix transposed() const { return {data, col_stride, row_stride}; }
};

/// Whether a `rows` x `cols` matrix has unit stride along one of its axes, as `gemm` requires.
inline bool has_unit_stride(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
  return row_stride == 1 || col_stride == 1 || rows <= 1 || cols <= 1;
}

/// A batch of products of one shape. `a`, `b` and `c` are the strides of the operands over the
/// batch axes `shape`.
struct Batch {
  Shape shape;
  Strides a, b, c;

  /// Where item `index` of an operand with these strides begins.
  int64_t offset(int64_t index, const Strides& strides) const {
    int64_t offset = 0;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      offset += index % shape[axis] * strides[axis];
      index /= shape[axis];
    }
    return offset;
  }
};

/// C = alpha A B + beta C, or C = bias + alpha A B with the row `bias` [n] added to every row.
///
/// A [m, k], B [k, n], C [m, n]. Each operand must have unit stride along one axis; with a bias, C
/// must have it within its rows. With beta = 0, C is not read. C must not overlap A or B.
template <class T>
struct Product {
  int64_t m, n, k;
  Matrix<const T> a, b;
  Matrix<T> c;
  T alpha = 1;
  T beta = 0;
  const T* bias = nullptr;
};

template <class T>
void gemm(const KernelContext& context, const Product<T>& product, const Batch& batch = {});

extern template void gemm(const KernelContext&, const Product<float>&, const Batch&);
extern template void gemm(const KernelContext&, const Product<double>&, const Batch&);

}  // namespace sash::cpu
