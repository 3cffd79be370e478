#pragma once

#include <algorithm>

#include "../tensor/kernels/memory.h"
#include "../tensor/tensor.h"
#include "../tensor/tensor_impl.h"

/// Ops that replace the rows of a tensor in place, a block of rows at a time.
namespace sash {

/// The dtype in which rows of `dtype` are computed: the CPU computes halves in float32.
inline DType row_dtype(Device device, DType dtype) {
  return device.is_cpu() && is_half(dtype) ? DType::float32 : dtype;
}

/// The number of elements in the scratch memory for a block. On the CPU a block fits into the
/// cache; on a card blocks are large, so that there are few launches.
inline int64_t block_elements(Device device) {
  return device.is_cpu() ? int64_t{1} << 19 : int64_t{1} << 23;
}

/// `count` entries of the first axis of `x`, from `first` on.
inline TensorView narrow_first(TensorView x, int64_t first, int64_t count) {
  x.data = x.ptr<char>() + first * x.strides[0] * size_of(x.dtype);
  x.shape[0] = count;
  return x;
}

/// A contiguous view of `data` with the shape of `x`.
inline TensorView like(const TensorView& x, void* data, DType dtype) {
  return {data, dtype, x.device, x.shape, contiguous_strides(x.shape)};
}

/// Calls `f` with matrices [rows, n] that together are x [..., n], in row-major order. There are as
/// few of them as the strides allow.
template <class F>
void for_each_matrix(const TensorView& x, F&& f) {
  if (x.numel() == 0) return;
  const int last = x.rank() - 1;
  TensorView merged = x;
  merged.shape = {};
  merged.strides = {};
  for (int axis = 0; axis < last; ++axis) {
    const int before = merged.rank() - 1;
    if (x.shape[axis] == 1) continue;
    if (before >= 0 && merged.strides[before] == x.strides[axis] * x.shape[axis]) {
      merged.shape[before] *= x.shape[axis];
      merged.strides[before] = x.strides[axis];
    } else {
      merged.shape.push_back(x.shape[axis]);
      merged.strides.push_back(x.strides[axis]);
    }
  }
  if (merged.rank() == 0) {
    merged.shape = {1};
    merged.strides = {x.shape[last]};
  }
  merged.shape.push_back(x.shape[last]);
  merged.strides.push_back(x.strides[last]);
  if (merged.rank() == 2) return f(merged);
  for (int64_t i = 0; i < merged.shape[0]; ++i) {
    TensorView item = narrow_first(merged, i, 1);
    item.shape.erase(0);
    item.strides.erase(0);
    for_each_matrix(item, f);
  }
}

/// Calls `f` with views [rows, n] of all rows of x [..., n], in order; `f` replaces these rows.
/// Where x is contiguous and of dtype `compute`, `f` gets the rows themselves. Elsewhere it gets a
/// block of rows in scratch memory of that dtype, which is then copied back.
template <class F>
void over_row_blocks(KernelContext& context, const TensorView& x, DType compute, F&& f) {
  for_each_matrix(x, [&](const TensorView& matrix) {
    if (matrix.dtype == compute && matrix.is_contiguous()) return f(matrix);
    const int64_t rows = matrix.shape[0], n = matrix.shape[1];
    const int64_t height = std::clamp<int64_t>(block_elements(x.device) / n, 1, rows);
    const Workspace scratch(context, height * n * size_of(compute));
    for (int64_t row = 0; row < rows; row += height) {
      const TensorView part = narrow_first(matrix, row, std::min(height, rows - row));
      const TensorView block = like(part, scratch.ptr<void>(), compute);
      kernels::copy(context, part, block);
      f(block);
      kernels::copy(context, block, part);
    }
  });
}

/// `other`, or a clone if it shares memory with `self`.
inline Tensor clone_if_aliased(const Tensor& other, const Tensor& self) {
  return other.impl().storage == self.impl().storage ? other.clone() : other;
}

/// `ValueError` if elements of `self` share memory, so that they cannot be written one by one.
inline void check_writable(const char* op, const Tensor& self) {
  if (!overlaps_itself(self.shape(), self.strides())) return;
  bool expanded = false;
  for (int i = 0; i < self.rank(); ++i) expanded |= self.strides()[i] == 0 && self.shape()[i] > 1;
  throw ValueError(op, "an element of memory for each element of the tensor",
                   (expanded ? "an expanded tensor" : "overlapping windows") +
                       std::string(" of shape ") + to_string(self.shape()));
}

/// Throws unless an op may write to `self` in place, beside these operands.
inline void check_write(const char* op, const Tensor& self,
                        std::initializer_list<TensorRef> operands = {}) {
  check_writable(op, self);
  check_in_place(op, self, operands);
}

}  // namespace sash
