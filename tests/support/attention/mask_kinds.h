#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sash/core/backend/device.h>

#include "../random_numbers.h"
#include "attention_reference.h"

/// Masks, each with its definition as a plain comparison.
namespace sash::testing {

/// A mask and its definition.
struct NamedMask {
  std::string name;
  AttentionMask mask;
  Sees sees;
};

/// A way to make masks with random parameters that fit `shape`; tensors go to `device`.
struct MaskKind {
  std::string name;
  std::function<NamedMask(RandomNumbers& random, const MaskShape& shape, Device device)> make;
  bool square = false;  ///< needs S_q = S_k
};

/// One entry for each named part of `AttentionMask`.
const std::vector<MaskKind>& mask_kinds();
/// Whether they also draw unbounded windows and the largest int64; off at first.
void draw_extremes(bool draw);
NamedMask both(const NamedMask& a, const NamedMask& b);
NamedMask either(const NamedMask& a, const NamedMask& b);

/// `mask.sees` of all pairs, [B, H, S_q, S_k] of 0 and 1.
std::vector<double> defined(const NamedMask& mask, const MaskShape& shape);

}  // namespace sash::testing
