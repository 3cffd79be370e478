#pragma once

#include "../tensor/autograd/node.h"
#include "../tensor/factories.h"
#include "../tensor/run_kernel.h"
#include "autocast.h"
#include "checks.h"
#include "rows.h"

/// What the sources of ops need: checks, autocast, new tensors, kernels, the tape, and these.
namespace sash {

/// x in contiguous memory; an undefined x stays undefined.
inline Tensor contiguous(const Tensor& x) { return x.defined() ? x.contiguous() : x; }

/// x in `dtype`; an undefined x stays undefined.
inline Tensor cast_to(const Tensor& x, DType dtype) { return x.defined() ? x.to(dtype) : x; }

/// The gradients f() of the inputs, in their order. Those that are not needed are left out.
template <class... F>
Gradients gradients_of(const Backward& pass, const F&... f) {
  Gradients grads(sizeof...(F));
  size_t i = 0;
  ((pass.needs(i) ? static_cast<void>(grads[i] = f()) : void(), ++i), ...);
  return grads;
}

/// `ShapeError` if `x` has as many axes as a tensor may have.
inline void check_room_for_axis(const char* op, const Tensor& x) {
  if (x.rank() < kMaxRank) return;
  throw ShapeError(op, "at most " + std::to_string(kMaxRank - 1) + " axes", to_string(x.shape()));
}

/// `x.shape()` with another last extent.
inline Shape with_last(const Tensor& x, int64_t extent) {
  Shape shape = x.shape();
  shape[x.rank() - 1] = extent;
  return shape;
}

}  // namespace sash
