#pragma once

#include <span>

#include "../../tensor/tensor.h"

/// Shapes of batches of matrices [..., R, C].
namespace sash::detail {

inline Shape batch_of(const Tensor& x) {
  return Shape(std::span<const int64_t>(x.shape().begin(), x.shape().end() - 2));
}

inline Shape with_matrix(Shape batch, int64_t rows, int64_t cols) {
  batch.push_back(rows);
  batch.push_back(cols);
  return batch;
}

/// x broadcast to the batch axes `batch`; broadcast axes have stride 0.
inline TensorView broadcast_batch(const Tensor& x, const Shape& batch) {
  TensorView view = x.tensor_view();
  while (view.rank() < batch.rank() + 2) {
    view.shape.insert(0, 1);
    view.strides.insert(0, 0);
  }
  for (int axis = 0; axis < batch.rank(); ++axis) {
    if (view.shape[axis] == 1) view.strides[axis] = 0;
    view.shape[axis] = batch[axis];
  }
  return view;
}

}  // namespace sash::detail
