#pragma once

#include "../../tensor/random.h"
#include "dropout.h"

/// Dropout with a `Generator` of the caller's, instead of the device's generator.
namespace sash {

/// A result of dropout, and the mask that it was computed with.
struct DropoutResult {
  Tensor out;
  Tensor mask;  ///< bool of x's shape: whether an element was kept
};

/// `dropout` with the next numbers of `generator`. A copy of it, or its state kept, brings the same
/// masks again: those of `manual_seed(generator.seed())`.
SASH_API Tensor seeded_dropout(const Tensor& x, double p, Generator& generator);

/// The same, with the mask: out = x mask / (1 - p). Its gradient flows through `out`.
SASH_API DropoutResult dropout_with_mask(const Tensor& x, double p, Generator& generator);

/// y = x mask / (1 - p) with a mask from before; zeros if p is 1. `DTypeError` unless the mask is
/// bool, `ShapeError` unless it has x's shape, `ValueError` unless 0 <= p <= 1.
SASH_API Tensor apply_dropout_mask(const Tensor& x, const Tensor& mask, double p);

}  // namespace sash
