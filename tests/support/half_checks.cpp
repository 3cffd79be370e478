#include <algorithm>
#include <cmath>
#include <sstream>

#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

#include "op_inputs.h"
#include "op_table.h"
#include "random_numbers.h"

namespace sash::testing {
namespace {

/// The case's numbers, those in the dtype of the run as `half` holds them.
Arrays half_values(const OpCase& op_case, DType half) {
  Arrays values = input_values(op_case, half);
  for (size_t i = 0; i < values.size(); ++i) {
    if (op_case.inputs[i].dtype.value_or(half) != half) continue;
    for (double& value : values[i].values) value = rounded(value, half);
  }
  return values;
}

Tensors results_of(const OpCase& op_case, const Arrays& values, DType dtype, Device device) {
  const NoGradGuard no_grad;
  return op_case.run(tensors(make_inputs(op_case, values, dtype, device)));
}

/// For cotangents that `half` holds.
Arrays half_gradients(const OpCase& op_case, const Arrays& values, DType half, DType dtype,
                      Device device) {
  RandomNumbers random(11);
  return gradients_of(op_case, values, dtype, device,
                      [&] { return rounded(2 * random.uniform() - 1, half); });
}

/// Half a unit in the last place of `value`.
double half_unit(double value, DType half) {
  int exponent = 0;
  std::frexp(value, &exponent);
  return half == DType::float16 ? std::ldexp(1, std::max(exponent - 12, -25))
                                : std::ldexp(1, exponent - 9);
}

struct Expected {
  const Array& exact;   // float64
  const Array& single;  // float32
  DType half;
  double rounds;
  double scale;
  double tolerance;
};

/// The bound of op_table.h over all elements; NaN and infinity where the rounded float32 has them.
std::string compare(const std::string& what, const Array& actual, const Expected& expected) {
  const Array &exact = expected.exact, &single = expected.single;
  if (actual.shape != exact.shape) {
    return what + ": expected shape " + to_string(exact.shape) + ", got " + to_string(actual.shape);
  }
  double largest = 0, error = 0, worst = -1;
  size_t at = 0;
  for (size_t i = 0; i < exact.values.size(); ++i) {
    const double a = actual.values[i], e = exact.values[i];
    const double r = rounded(single.values[i], expected.half);
    double off = std::abs(a - e);
    if (!std::isfinite(r)) {
      off = a == r || (std::isnan(a) && std::isnan(r)) ? 0 : HUGE_VAL;
    } else {
      largest = std::max(largest, std::abs(e));
      error = std::max(error, std::abs(r - e));
    }
    if (std::isnan(off)) off = HUGE_VAL;
    if (off > worst) worst = off, at = i;
  }
  const double rounding =
      std::max(2 * error, half_unit(std::max(largest, expected.scale), expected.half));
  const double limit = expected.rounds * rounding + expected.tolerance * largest;
  if (worst <= limit) return {};
  std::ostringstream text;
  text.precision(9);
  text << what << ", element " << at << ": expected " << exact.values[at] << ", got "
       << actual.values[at] << ": off by " << (worst - expected.tolerance * largest) / rounding
       << " roundings";
  return text.str();
}

}  // namespace

std::string check_half_results(const OpCase& op_case, DType half, Device device) {
  const Arrays values = half_values(op_case, half);
  const Tensors exact = results_of(op_case, values, DType::float64, kCPU);
  const Tensors single = results_of(op_case, values, DType::float32, kCPU);
  const Tensors found = results_of(op_case, values, half, device);
  for (size_t i = 0; i < exact.size(); ++i) {
    const std::string what = "result " + std::to_string(i);
    const DType dtype = op_case.results.empty() ? half : op_case.results.at(i);
    if (found[i].dtype() != dtype) {
      return what + ": expected " + std::string(name(dtype)) + ", got " +
             std::string(name(found[i].dtype()));
    }
    const Array actual = to_array(found[i]), e = to_array(exact[i]), s = to_array(single[i]);
    if (is_half(dtype)) {
      std::string problem =
          compare(what, actual, {e, s, half, op_case.half_rounds, 0, op_case.tolerance32});
      if (!problem.empty()) return problem;
      continue;
    }
    for (size_t j = 0; j < e.values.size(); ++j) {
      const double limit = is_floating(dtype) ? op_case.tolerance32 * std::abs(e.values[j]) : 0;
      if (std::abs(actual.values[j] - e.values[j]) <= limit) continue;
      return what + ", element " + std::to_string(j) + ": expected " + std::to_string(e.values[j]) +
             ", got " + std::to_string(actual.values[j]);
    }
  }
  return {};
}

std::string check_half_gradients(const OpCase& op_case, DType half, Device device) {
  const Arrays values = half_values(op_case, half);
  const Arrays exact = half_gradients(op_case, values, half, DType::float64, kCPU);
  const Arrays single = half_gradients(op_case, values, half, DType::float32, kCPU);
  const Arrays found = half_gradients(op_case, values, half, half, device);
  for (size_t i = 0; i < exact.size(); ++i) {
    std::string problem = compare("gradient of differentiable input " + std::to_string(i), found[i],
                                  {exact[i], single[i], half, op_case.half_gradient_rounds,
                                   op_case.half_gradient_scale, op_case.gradient32});
    if (!problem.empty()) return problem;
  }
  return {};
}

}  // namespace sash::testing
