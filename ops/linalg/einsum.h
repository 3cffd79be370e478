#pragma once

#include <string>
#include <vector>

#include "../../tensor/tensor.h"

namespace sash {

/// The sum of products that `equation` names: `einsum("bhqd,bhkd->bhqk", {q, k})`.
///
/// Each operand has a letter (a to z, A to Z) per axis, and letters that the result lacks are
/// summed over. Without `->`, the result has the letters that occur once, in alphabetical order.
/// `...` stands for further axes, which broadcast. A letter twice in one operand takes the
/// diagonal; axes of extent 1 broadcast to others of the same letter. Spaces are ignored.
///
/// Operands are contracted in pairs by `matmul`, the pair with the smallest result first. That plan
/// is made once per equation and shapes. Operands and result have one dtype, floating or integer.
///
/// `ValueError` for an equation that cannot be read, `ShapeError` for operands that do not fit it.
SASH_API Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands);

}  // namespace sash
