#pragma once

#include "../../tensor/random.h"
#include "dropout.h"

/// Dropout with a `Generator` of the caller instead of the device's generator.
namespace sash {

/// A result of dropout, and the mask that it was computed with.
struct DropoutResult {
  Tensor out;
  Tensor mask;  ///< bool of x's shape: whether an element was kept
};

/// `dropout` with the next numbers of `generator`. A copy of the generator, or its saved state,
/// gives the same masks again. They are the masks after `manual_seed(generator.seed())`.
SASH_API Tensor seeded_dropout(const Tensor& x, double p, Generator& generator);

/// `seeded_dropout` that also returns the mask: out = x mask / (1 - p). The gradient flows through
/// `out`.
SASH_API DropoutResult dropout_with_mask(const Tensor& x, double p, Generator& generator);

/// y = x mask / (1 - p) with the mask of an earlier dropout; zeros if p is 1. `DTypeError` unless
/// the mask is bool, `ShapeError` unless it has x's shape, `ValueError` unless 0 <= p <= 1.
SASH_API Tensor apply_dropout_mask(const Tensor& x, const Tensor& mask, double p);

}  // namespace sash
