#pragma once

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

#include <sash/sash.h>

#include "row_errors.h"

/// Calls of the gated delta rule, and their results and gradients.
namespace sash::testing::delta {

struct Sizes {
  int64_t batch, heads, value_heads, length, depth, width;
};

enum class Gate { none, head, feature };

// q, k, v, beta, initial state, and g if there is one; with cotangents of both results.
struct Problem {
  std::vector<Tensor> inputs;
  Tensor g_out, g_state;
  Tensor texts{};

  Problem(const Sizes& s, Gate gate, DType dtype, Device device, double decay = 0.1) {
    const auto make = [&](const Shape& shape, DType as) {
      return randn(shape, {.dtype = as}).to(device);
    };
    const DType sums = is_half(dtype) ? DType::float32 : dtype;
    const Shape keys{s.batch, s.heads, s.length, s.depth},
        values{s.batch, s.value_heads, s.length, s.width}, tokens{s.batch, s.value_heads, s.length},
        state{s.batch, s.value_heads, s.depth, s.width};
    inputs = {make(keys, dtype), make(keys, dtype), make(values, dtype),
              sigmoid(make(tokens, dtype)), make(state, sums)};
    if (gate != Gate::none) {
      Shape gates = tokens;
      if (gate == Gate::feature) gates.push_back(s.depth);
      inputs.push_back(softplus(make(gates, sums)) * -decay);
    }
    g_out = make(values, dtype);
    g_state = make(state, sums);
  }
};

inline const std::vector<std::string> kGradients{"dq", "dk", "dv", "dbeta", "dstate", "dg"};

struct Answer {
  RecurrentResult y;
  std::vector<Tensor> gradients;
};

enum class Kind { kernels, composite };

// The answer in `dtype` and on `device`. Without them, in the dtype and on the device of the
// problem.
inline Answer answer(Kind kind, const Problem& x, std::optional<DType> dtype = {},
                     std::optional<Device> device = {}) {
  std::vector<Tensor> leaves;
  const auto moved = [&](const Tensor& t) {
    return t.detach().to(device.value_or(t.device())).to(dtype.value_or(t.dtype()));
  };
  for (const Tensor& t : x.inputs) leaves.push_back(moved(t).clone().requires_grad_());
  RecurrentOptions options{
      .g = leaves.size() > 5 ? leaves[5] : Tensor(), .normalize = true, .initial_state = leaves[4]};
  if (x.texts.defined()) options.cu_seqlens = x.texts.to(leaves[0].device());
  const auto f = kind == Kind::kernels ? gated_delta_rule : composite::gated_delta_rule;
  const RecurrentResult y = f(leaves[0], leaves[1], leaves[2], leaves[3], options);
  return {y, grad({y.out, y.state}, leaves, {moved(x.g_out), moved(x.g_state)})};
}

inline double tolerance(DType dtype) {
  switch (dtype) {
    case DType::bfloat16:
      return 1e-2;
    case DType::float16:
      return 1.5e-3;
    case DType::float32:
      return 5e-6;
    default:
      return 1e-12;
  }
}

inline void check_same_answers(const Answer& found, const Answer& expected, double limit) {
  check_rows("out", found.y.out, expected.y.out, limit);
  check_rows("state", found.y.state, expected.y.state, limit);
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    CAPTURE(kGradients[i]);
    CHECK(relative_error(found.gradients[i], expected.gradients[i]) <= 2 * limit);
  }
}

}  // namespace sash::testing::delta
