#pragma once

#include "../../tensor/random.h"
#include "dropout.h"

/// Dropout with a generator of the caller's own, beside that of `manual_seed`.
namespace sash {

/// A result of dropout, and the mask that it was computed with.
struct DropoutResult {
  Tensor out;
  Tensor mask;  ///< bool of x's shape: whether an element was kept
};

/// `dropout` with the numbers that follow `state`, which moves on past them. `RandomState{.seed =
/// 7}` is a fresh generator; a copy of `state`, kept or written to a file as two integers, brings
/// the same masks again. The numbers are those of `manual_seed(state.seed)`.
SASH_API Tensor seeded_dropout(const Tensor& x, double p, RandomState& state);

/// The same, with the mask: out = x mask / (1 - p). Its gradient flows through `out`.
SASH_API DropoutResult dropout_with_mask(const Tensor& x, double p, RandomState& state);

/// y = x mask / (1 - p) with a mask from before; zeros if p is 1. `DTypeError` unless the mask is
/// bool, `ShapeError` unless it has x's shape, `ValueError` unless 0 <= p <= 1.
SASH_API Tensor apply_dropout_mask(const Tensor& x, const Tensor& mask, double p);

}  // namespace sash
