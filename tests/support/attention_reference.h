#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sash/ops/attention/attention.h>

#include "random_numbers.h"
#include "reference.h"

/// Attention over masks in plain float64 loops, and masks by their definitions.
namespace sash::testing {

/// Whether a query sees a key.
using Sees = std::function<bool(const MaskIndex&)>;

/// A mask, and apart from it, what it should show.
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
/// Whether they also draw windows without an end and the largest numbers; not so at first.
void draw_extremes(bool draw);
NamedMask both(const NamedMask& a, const NamedMask& b);
NamedMask either(const NamedMask& a, const NamedMask& b);

/// Everything that goes into a call; bias [H, S_q, S_k] and relative_bias [H, 2 R + 1] may be
/// empty.
struct AttentionProblem {
  Array q{{}}, k{{}}, v{{}};
  Sees sees;
  double scale = 1, softcap = 0, dropout = 0;
  uint64_t seed = 0;  ///< of the dropout mask, whose stream starts at 0
  Array bias{{0}}, relative_bias{{0}};
  std::vector<double> slopes{};
  Array g{{}}, g_lse{{}};  ///< cotangents
  /// What each step's result goes through: rounding makes it the formula in a half type.
  std::function<double(double)> round = [](double x) { return x; };
};

struct AttentionAnswer {
  Array out{{}}, lse{{}};
  Array dq{{}}, dk{{}}, dv{{}}, dbias{{0}}, drelative{{0}};
};

AttentionAnswer solve(const AttentionProblem& problem);

}  // namespace sash::testing
