#pragma once

#include <string>
#include <vector>

#include "attention_mask.h"

namespace sash {

/// The position of each token within its text, int64 [tokens]: the number of the token minus the
/// number of the first token of its text. `masks` are the masks of a model's layers. Undefined if a
/// mask does not separate packed texts; then all tokens are one text. A text of `a & b` begins
/// where a text of a or of b begins. A text of `a | b`, or of several layers, begins where texts of
/// both begin. Computed on the device of `cu_seqlens`, without a copy to the host. `ShapeError` and
/// `ValueError` for cu_seqlens that do not fit.
SASH_API Tensor positions_in_texts(const std::vector<AttentionMask>& masks, int64_t tokens);

/// Throws `ShapeError`, `DTypeError` or `DeviceError`, which name `op`, unless `positions` are
/// int64 [T] or [B, T] on the device of tokens [B, T].
SASH_API void check_positions(const std::string& op, const Tensor& positions, const Tensor& tokens);

}  // namespace sash
