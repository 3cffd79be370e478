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

}  // namespace

TEST_CASE_TEMPLATE("random graphs: float64 and float32", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  compare_many(DType::float64, On::device);
  compare_many(DType::float32, On::device);
}
