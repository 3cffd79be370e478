#pragma once

#include "../tensor/tensor.h"

/// How ops that treat a tensor as a matrix of rows show it to their kernels.
namespace sash {

/// The contiguous tensor `x` as a matrix [rows, columns]; the null view if it is undefined.
inline TensorView as_rows(const Tensor& x, int64_t rows, int64_t columns) {
  if (!x.defined()) return {};
  TensorView view = x.tensor_view();
  view.shape = {rows, columns};
  view.strides = {columns, 1};
  return view;
}

/// The contiguous tensor `x` as one row; the null view if it is undefined.
inline TensorView as_row(const Tensor& x) {
  if (!x.defined()) return {};
  TensorView view = x.tensor_view();
  view.shape = {x.numel()};
  view.strides = {1};
  return view;
}

/// For what a kernel keeps of each row of `x`, its mean say: on its device, and at least float32.
inline TensorOptions row_statistics(const Tensor& x) {
  return {.dtype = is_half(x.dtype()) ? DType::float32 : x.dtype(), .device = x.device()};
}

}  // namespace sash
