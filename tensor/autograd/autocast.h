#pragma once

#include <cstdint>

#include "../tensor.h"

namespace sash {

/// Mixed precision for a scope: while it lives, ops that this thread calls cast their float32,
/// float16 and bfloat16 operands, by a recorded `to`: products and attention to `dtype`; losses,
/// softmax and norms to float32 (the list is `ops/autocast.h`). Gradients come back in each
/// operand's dtype. Other ops, and float64, are as ever.
///
///     Tensor loss;
///     {
///       const AutocastGuard autocast(DType::bfloat16);
///       loss = cross_entropy(model(x), y);
///     }
///     loss.backward();
///
/// A parameter is cast once: the guard keeps the cast until the parameter is written to, a backward
/// pass of this thread frees its graph, or the guard ends. An inner guard keeps its own. A backward
/// pass runs without autocast.
class SASH_API AutocastGuard {
 public:
  /// `DTypeError` unless float16 or bfloat16.
  explicit AutocastGuard(DType dtype);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

  DType dtype() const { return dtype_; }
  /// `x` in `to`; one cast for all calls with a leaf that requires grad.
  Tensor cast(const Tensor& x, DType to);
  void forget_casts();

 private:
  struct Casts;

  DType dtype_;
  Owned<Casts> casts_;
  AutocastGuard* outer_;
};

/// No autocast in this scope.
class SASH_API NoAutocastGuard {
 public:
  NoAutocastGuard();
  ~NoAutocastGuard();
  NoAutocastGuard(const NoAutocastGuard&) = delete;
  NoAutocastGuard& operator=(const NoAutocastGuard&) = delete;

 private:
  AutocastGuard* outer_;
};

namespace detail {
/// This thread's guard, or null.
SASH_API AutocastGuard*& autocast_guard();
}  // namespace detail

}  // namespace sash
