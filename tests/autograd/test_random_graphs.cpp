// Graphs of random ops against plain float64 loops that carry derivatives forwards. SASH_LONG_TESTS
// draws a hundred times as many, SASH_RANDOM_COUNT any number; SASH_RANDOM_SEED sets the first
// seed.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/devices.h"
#include "../support/random_graph.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct Totals {
  int compared = 0;
  int refused = 0;          ///< by name, for something overwritten that the gradient needs
  int compared_writes = 0;  ///< of graphs with writes in place
};

// How far `found` is from `expected`, as a share of the larger of 1 and `scale`.
double error_of(double found, double expected, double scale) {
  const double error = std::abs(found - expected) / std::max({1.0, std::abs(expected), scale});
  return std::isnan(error) ? INFINITY : error;
}

// sum over leaves of gradient . direction, and the sum of the magnitudes.
struct Contraction {
  double sum = 0, magnitude = 0;
};

Contraction contract(const std::vector<Tensor>& gradients, const RandomGraph& graph,
                     double HyperDual::*direction) {
  Contraction total;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const std::vector<double> elements = gradients[i].to_vector<double>();
    const DualArray& leaf = graph.leaves[i].expected;
    REQUIRE(gradients[i].shape() == leaf.shape);
    for (size_t k = 0; k < elements.size(); ++k) {
      const double term = elements[k] * (leaf[k].*direction);
      total.sum += term;
      total.magnitude += std::abs(term);
    }
  }
  return total;
}

void compare(uint64_t seed, DType dtype, Device device, Totals& totals) {
  RandomNumbers random(seed ^ 0xabcdef);
  RandomGraph graph(seed, dtype, device);
  try {
    graph.grow(2 + static_cast<int>(random.below(12)));
  } catch (const AutogradError& error) {
    CHECK_MESSAGE(error.op().ends_with("_"), error.what());  // a write in place
    ++totals.refused;
    return;
  }
  if (!graph.well_conditioned()) return;
  CAPTURE(seed);
  CAPTURE(name(dtype));
  CAPTURE(to_string(device));
  CAPTURE(graph.text());
  const double tolerance = dtype == DType::float64 ? 1e-10 : 2e-3;

  double worst = 0;
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const DualArray& expected = graph.values[i].expected;
    REQUIRE(graph.values[i].tensor.shape() == expected.shape);
    const std::vector<double> found = graph.values[i].tensor.to_vector<double>();
    for (size_t k = 0; k < found.size(); ++k) {
      worst = std::max(worst, error_of(found[k], expected[k].value, 0));
    }
  }
  CHECK(worst < tolerance);

  // The objective: some of the values, each contracted with random numbers.
  std::vector<Tensor> roots, cotangents, inputs;
  HyperDual objective;
  for (size_t i = graph.values.size(); i-- > 0 && roots.size() < 3;) {
    const auto& [tensor_, expected, overlaps, in_leaf_memory] = graph.values[i];
    if (!tensor_.requires_grad() || (!roots.empty() && random.below(2) == 0)) continue;
    std::vector<double> weights;
    for (size_t k = 0; k < expected.count(); ++k) {
      weights.push_back(std::round(random.uniform() * 64) / 32 - 1);
      objective = objective + number(weights.back()) * expected[k];
    }
    roots.push_back(tensor_);
    cotangents.push_back(tensor(weights, expected.shape, {.dtype = dtype, .device = device}));
  }
  if (roots.empty()) return;
  for (const auto& leaf : graph.leaves) inputs.push_back(leaf.tensor);

  try {
    const std::vector<Tensor> first =
        grad(roots, inputs, cotangents, {.create_graph = true}, /*allow_unused=*/true);
    const Contraction along_u = contract(first, graph, &HyperDual::u);
    const Contraction along_w = contract(first, graph, &HyperDual::w);
    CHECK(error_of(along_u.sum, objective.u, along_u.magnitude) < tolerance);
    CHECK(error_of(along_w.sum, objective.w, along_w.magnitude) < tolerance);

    std::vector<Tensor> slopes, directions;
    for (size_t i = 0; i < first.size(); ++i) {
      if (!first[i].defined() || !first[i].requires_grad()) continue;
      std::vector<double> direction;
      const DualArray& leaf = graph.leaves[i].expected;
      for (size_t k = 0; k < leaf.count(); ++k) direction.push_back(leaf[k].u);
      slopes.push_back(first[i]);
      directions.push_back(tensor(direction, leaf.shape, {.dtype = dtype, .device = device}));
    }
    double second = 0, magnitude = 0;
    if (!slopes.empty()) {
      const auto gradients = grad(slopes, inputs, directions, {}, /*allow_unused=*/true);
      const Contraction found = contract(gradients, graph, &HyperDual::w);
      second = found.sum;
      magnitude = found.magnitude;
    }
    CHECK(error_of(second, objective.uw, magnitude) < tolerance);
    ++totals.compared;
    totals.compared_writes += graph.has_writes();
  } catch (const AutogradError& error) {
    CAPTURE(error.what());
    CHECK(graph.has_writes());
    ++totals.refused;
  }
}

void compare_many(DType dtype, Device device) {
  const uint64_t first = random_seed(1), count = random_count(300, 30'000, 5);
  Totals totals;
  for (uint64_t seed = first; seed < first + count; ++seed) compare(seed, dtype, device, totals);
  MESSAGE("compared ", totals.compared, " of ", count, " graphs, ", totals.compared_writes,
          " with writes in place; ", totals.refused, " more were refused");
  CHECK(totals.compared > static_cast<int>(count / 2));
  CHECK(totals.refused < static_cast<int>(count / 10));
}

/// The results and the first and second derivatives of a random graph, as a step.
class GraphStep {
 public:
  GraphStep(uint64_t seed, DType dtype, Device device)
      : seed_(seed), dtype_(dtype), device_(device) {}

  /// Cotangents are multiples of the input.
  std::vector<Tensor> operator()(const std::vector<Tensor>& input) {
    RandomNumbers random(seed_ ^ 0xabcdef);
    RandomGraph graph(seed_, dtype_, device_, &kept_);
    graph.grow(2 + static_cast<int>(random.below(12)));
    std::vector<Tensor> roots, cotangents, inputs, results, slopes, directions;
    for (const auto& value : graph.values) {
      results.push_back(value.tensor.detach().clone());
      if (!value.tensor.requires_grad() || random.below(2) == 0) continue;
      const Tensor ones = graph.tensor_of(std::vector<double>(value.expected.count(), 1),
                                          value.expected.shape, dtype_);
      roots.push_back(value.tensor);
      cotangents.push_back(ones * input[0]);
    }
    if (roots.empty()) return results;
    for (const auto& leaf : graph.leaves) inputs.push_back(leaf.tensor);
    for (const Tensor& slope : grad(roots, inputs, cotangents, {.create_graph = true}, true)) {
      if (!slope.defined()) continue;
      results.push_back(slope.detach());
      if (!slope.requires_grad()) continue;
      slopes.push_back(slope);
      directions.push_back(slope.detach());
    }
    if (slopes.empty()) return results;
    for (const Tensor& second : grad(slopes, inputs, directions, {}, true)) {
      if (second.defined()) results.push_back(second);
    }
    return results;
  }

 private:
  uint64_t seed_;
  DType dtype_;
  Device device_;
  std::vector<Tensor> kept_{};
};

std::vector<double> elements_of(const std::vector<Tensor>& tensors) {
  std::vector<double> all;
  for (const Tensor& x : tensors) {
    for (const double element : x.to_vector<double>()) {
      all.push_back(std::isnan(element) ? 1e300 : element);  // NaN is equal to NaN here
    }
  }
  return all;
}

void capture_many(DType dtype, Device device) {
  const uint64_t first = random_seed(1), count = random_count(100, 10'000, 5);
  uint64_t compared = 0, refused = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    CAPTURE(seed);
    const auto input = [&](double value) {
      return std::vector<Tensor>{full({}, value, {.dtype = dtype, .device = device})};
    };
    std::vector<std::vector<double>> expected;
    GraphStep eager(seed, dtype, device);
    try {
      for (const double value : {1.0, 0.5}) expected.push_back(elements_of(eager(input(value))));
    } catch (const AutogradError&) {  // something overwritten that the gradient needs
      ++refused;
      continue;
    }
    optim::CapturedStep step(optim::CapturedStep::Function(GraphStep(seed, dtype, device)),
                             {.device = device});
    for (const int call : {0, 1, 0, 1}) {
      step(input(call == 0 ? 1.0 : 0.5));
      CHECK(elements_of(step.results()) == expected[static_cast<size_t>(call)]);
    }
    if (device.is_cuda()) CHECK(step.reason() == "");
    ++compared;
  }
  MESSAGE("captured ", compared, " of ", count, " graphs; ", refused, " more were refused");
  CHECK(compared > count / 2);
}

}  // namespace

TEST_CASE_TEMPLATE("random graphs: captured steps have the bits of calls", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  capture_many(DType::float64, On::device);
  capture_many(DType::float32, On::device);
}

TEST_CASE_TEMPLATE("random graphs: float64 and float32", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  compare_many(DType::float64, On::device);
  compare_many(DType::float32, On::device);
}
