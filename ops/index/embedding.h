#pragma once

#include <optional>

#include "../../tensor/tensor.h"

namespace sash {

/// y[...] = weight[index[...]]: weight is [V, D], index int64 of any shape [...], y [..., D].
/// Throws `IndexError` naming the first index outside [0, V) and its position, `ShapeError`
/// unless weight has two axes, `DTypeError` unless the index is int64. Row `padding_idx`, if given,
/// gets no gradient; `IndexError` for one outside [0, V).
SASH_API Tensor embedding(const Tensor& weight, const Tensor& index,
                          std::optional<int64_t> padding_idx = {});

/// The gradient of `embedding` with respect to its weight: [rows, D]. Row v is the sum of all rows
/// of g [..., D] whose index [...] is v, added in a fixed order. Differentiable in g.
SASH_API Tensor embedding_backward(const Tensor& g, const Tensor& index, int64_t rows);

}  // namespace sash
