#pragma once

#include "../dtype.h"
#include "../shape.h"
#include "device.h"

namespace sash {

/// A tensor as kernels get it. It owns nothing, and is valid during the kernel's call.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::float32;
  Device device;
  Shape shape;
  Strides strides;  ///< in elements

  template <class T>
  T* ptr() const {
    return static_cast<T*>(data);
  }
  int rank() const { return shape.rank(); }
  int64_t numel() const { return sash::numel(shape); }
  bool is_contiguous() const { return sash::is_contiguous(shape, strides); }
};

}  // namespace sash
