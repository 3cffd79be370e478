#pragma once

#include <functional>
#include <vector>

#include <sash/ops/attention/exact/attention.h>

#include "../random_numbers.h"
#include "../reference.h"

/// Attention over masks in plain float64 loops.
namespace sash::testing {

/// Whether a query sees a key.
using Sees = std::function<bool(const MaskIndex&)>;

/// Inputs of a call: q [B, H, S_q, D], k [B, H_kv, S_k, D], v [B, H_kv, S_k, D_v]. Arrays without
/// elements are absent.
struct AttentionProblem {
  Array q{{0}}, k{{0}}, v{{0}};
  Sees sees = [](const MaskIndex&) { return true; };
  double scale = 1, softcap = 0, dropout = 0;
  uint64_t seed = 0;                    ///< of the dropout mask, whose stream starts at 0
  Array bias{{0}}, relative_bias{{0}};  ///< [H, S_q, S_k] and [H, 2 R + 1]
  std::vector<double> slopes{};         ///< of ALiBi, one a head
  std::vector<double> sink_logits{};    ///< one a head; forward only
  Array g{{0}}, g_lse{{0}};             ///< cotangents; without `g` there are no gradients
  /// out and lse of a forward pass over all keys, if `k` and `v` are only some of them.
  Array saved_out{{0}}, saved_lse{{0}};
  /// Applied to the result of each step; rounding makes this the formula in a half type.
  std::function<double(double)> round = [](double x) { return x; };
};

struct AttentionAnswer {
  Array out{{0}}, lse{{0}};
  Array dq{{0}}, dk{{0}}, dv{{0}}, dbias{{0}}, drelative{{0}};
};

AttentionAnswer solve(const AttentionProblem& problem);

}  // namespace sash::testing
