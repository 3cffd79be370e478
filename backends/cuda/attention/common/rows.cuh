#pragma once

#include <cstdint>

#include "../../../../tensor/kernels/view.h"

namespace sash::cuda {

/// The rows of a tensor [B, H, S, n] with unit stride along n. `vectors`: whether every row can be
/// read 16 bytes at a time.
template <class T>
struct Rows {
  T* data;
  int64_t batch, head, row;
  int width;
  bool vectors;

  __device__ Rows at(int64_t b, int64_t h) const {
    Rows rows = *this;
    rows.data += b * batch + h * head;
    return rows;
  }
};

template <class T>
Rows<T> rows_of(View x) {
  constexpr int64_t per_vector = 16 / sizeof(T);
  bool vectors = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.shape[3] % per_vector == 0;
  for (int axis = 0; axis < 3; ++axis) {
    vectors = vectors && (x.shape[axis] == 1 || x.strides[axis] % per_vector == 0);
  }
  return {static_cast<T*>(x.data),      x.strides[0], x.strides[1], x.strides[2],
          static_cast<int>(x.shape[3]), vectors};
}

}  // namespace sash::cuda
