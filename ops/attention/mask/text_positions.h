#pragma once

#include <string>
#include <vector>

#include "attention_mask.h"

namespace sash {

/// Where each of `tokens` tokens stands in its own text, int64 [tokens], if each of `masks`, those
/// of a model's layers, keeps packed texts apart: i less the first token of its text. Computed on
/// the device of `cu_seqlens`, without a copy to the host. Undefined if a mask does not, so that
/// the row is one text. Texts of `a & b` begin where one of a or of b does, texts of `a | b` and of
/// several layers where one of both does. `ShapeError` and `ValueError` for cu_seqlens that do not
/// fit.
SASH_API Tensor positions_in_texts(const std::vector<AttentionMask>& masks, int64_t tokens);

/// `ShapeError`, `DTypeError` or `DeviceError` of `op` unless `positions` are int64 [T] or [B, T]
/// where tokens [B, T] are.
SASH_API void check_positions(const std::string& op, const Tensor& positions, const Tensor& tokens);

}  // namespace sash
