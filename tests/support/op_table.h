#pragma once

#include <map>
#include <string>
#include <vector>

#include <sash/core/backend/backend.h>

#include "op_case.h"

namespace sash::testing {

/// Every row of the table, in the order of families; made once.
const OpTable& op_table();

// ---- The uses. Each returns what was wrong, or an empty string.
// ----------------------------------

/// The forward pass against the plain reference: shapes, dtypes and elements of every result;
/// inputs and the sentinels around them must be untouched.
std::string check_forward(const OpCase& op_case, DType dtype, Device device);

/// gradcheck and, if the case is twice differentiable, gradgradcheck, in float64.
std::string check_gradients(const OpCase& op_case, Device device);

/// Gradients in float32 against those in float64, for a random cotangent.
std::string check_float32_gradients(const OpCase& op_case, Device device);

/// Results, or gradients for a random cotangent, on `device` against the CPU's.
std::string check_results_against_cpu(const OpCase& op_case, DType dtype, Device device);
std::string check_gradients_against_cpu(const OpCase& op_case, DType dtype, Device device);

/// Results, or gradients for a random cotangent, in float16 or bfloat16 on `device`, for inputs
/// that the half type holds: their largest error, measured against float64 on the CPU, is at most
///
///     rounds max(2 e, h) + tolerance32 max|y|
///
/// with e the error of float32 on the CPU, rounded at the end, h half a unit in the last place of
/// max|y| (of the case's scale, if larger), and `rounds` the case's. Results that are no half
/// numbers: equal to float32.
std::string check_half_results(const OpCase& op_case, DType half, Device device);
std::string check_half_gradients(const OpCase& op_case, DType half, Device device);

/// What a backend cannot do yet: lines "cuda forward softmax" or "cuda gradient softmax/axis 0",
/// for all cases of an op or for one; '#' starts a comment.
class UnsupportedList {
 public:
  explicit UnsupportedList(const std::string& path);

  bool contains(DeviceType type, const std::string& use, const OpCase& op_case) const;

 private:
  std::vector<std::string> lines_;
};

/// The outcome of running all cases on one backend.
struct BackendTally {
  int64_t run = 0;
  int64_t skipped = 0;
  std::vector<std::string> problems;
  /// Lines to add to the list of what is unsupported: pairs whose kernel is missing.
  std::vector<std::string> missing;
};

/// Which cases of the table to check: every `stride`-th, beginning with the one at `first`.
struct Share {
  int64_t stride = 1;
  int64_t first = 0;

  bool has(int64_t place) const { return place % stride == first; }
};

/// Checks a share of the cases on `device` against the CPU. A listed pair counts as skipped, and
/// it is a problem if it works all the same; a pair that is not listed must work.
BackendTally check_backend(Device device, const UnsupportedList& unsupported, Share share);

/// The same in float16 and bfloat16, for the cases that have float32 and float64; the uses are
/// listed as "half forward" and "half gradient".
BackendTally check_halves(Device device, const UnsupportedList& unsupported, Share share);

/// Inputs for timing a case, and the case itself run on them once.
Tensors timing_inputs(const OpCase& op_case, DType dtype, Device device);

}  // namespace sash::testing
