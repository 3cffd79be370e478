#pragma once

#include <string>

#include "attention_mask.h"

namespace sash {

/// One head of a mask as text: a character per cell of at most `width` x `width`, from ' ' (none
/// visible) over '.', ':' and '+' to '#' (all). `ValueError` for lengths outside [1, 4096].
SASH_API std::string mask_picture(const AttentionMask& mask, int64_t queries, int64_t keys,
                                  int64_t width = 64);

/// The visible share of each cell of the picture: float64 [rows, columns] on the CPU, of at most
/// `width` cells along the longer side.
SASH_API Tensor mask_shares(const AttentionMask& mask, int64_t queries, int64_t keys,
                            int64_t width = 64);

}  // namespace sash
