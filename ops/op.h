#pragma once

#include <array>
#include <span>
#include <utility>

#include "../tensor/autograd/node.h"
#include "../tensor/factories.h"
#include "../tensor/run_kernel.h"
#include "autocast.h"
#include "checks.h"
#include "elementwise/binary.h"
#include "elementwise/compare.h"
#include "elementwise/unary.h"
#include "elementwise/where.h"
#include "reduce/reduce.h"
#include "rows.h"

/// What the sources of ops need: checks, autocast, new tensors, kernels, the tape, the plain ops
/// that gradients and composites are written in, and these.
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

/// Throws unless both are defined and on one device.
inline void check_defined_together(const char* op, const Tensor& a, const Tensor& b) {
  check_defined(op, a);
  check_defined(op, b);
  check_same_device(op, a, b);
}

/// Throws unless both are defined, on one device and of one floating dtype.
inline void check_floating_pair(const char* op, const Tensor& a, const Tensor& b) {
  check_compatible(op, a, b);
  check_floating(op, a);
}

/// `ShapeError` if `x` has as many axes as a tensor may have.
inline void check_room_for_axis(const char* op, const Tensor& x) {
  if (x.rank() < kMaxRank) return;
  throw ShapeError(op, "at most " + std::to_string(kMaxRank - 1) + " axes", to_string(x.shape()));
}

/// The gradients of composite(inputs..., options...), as recorded ops: what a fused op returns
/// where a second derivative may follow. `inputs` are all differentiable inputs of the op, in their
/// order.
template <size_t kInputs, class Composite, class... Options>
Gradients gradients_of_composite(const Backward& pass, const Tensor& g, const Composite& composite,
                                 const std::array<Tensor, kInputs>& inputs,
                                 const Options&... options) {
  const auto call = [&](std::span<const Tensor> in) {
    return [&]<size_t... i>(std::index_sequence<i...>) { return composite(in[i]..., options...); }
    (std::make_index_sequence<kInputs>());
  };
  return differentiate(call, inputs, g, pass);
}

/// `x.shape()` with another last extent.
inline Shape with_last(const Tensor& x, int64_t extent) {
  Shape shape = x.shape();
  shape[x.rank() - 1] = extent;
  return shape;
}

/// `x.shape()` without one of its axes.
inline Shape without_axis(const Tensor& x, int axis) {
  Shape shape = x.shape();
  shape.erase(axis);
  return shape;
}

}  // namespace sash
