#include <doctest/doctest.h>

#include <sash/ops/linalg/matmul.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/ops/shape/concat.h>
#include <sash/tensor/autograd/graph_dot.h>
#include <sash/tensor/factories.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

int64_t count(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("graph_dot: ops, shapes, names of leaves and of results") {
  const TensorOptions trained{.device = kCPU, .requires_grad = true};
  const Tensor w = ones({3, 4}, trained), unnamed = ones({4, 5}, trained);
  const Tensor x = ones({2, 3}, {.device = kCPU});
  const Tensor hidden = matmul(x, w), loss = sum(matmul(hidden, unnamed));
  const std::string expected = R"(digraph {
  node [shape=box, style=filled, fillcolor=white, fontname=Helvetica]
  op0 [label="matmul\nhid\"den float32 [2, 4]"]
  leaf0 [label="fc.weight\nfloat32 [3, 4]", fillcolor=lightblue]
  leaf0 -> op0
  op1 [label="matmul\nfloat32 [2, 5]"]
  op0 -> op1
  leaf1 [label="leaf\nfloat32 [4, 5]", fillcolor=lightblue]
  leaf1 -> op1
  op2 [label="sum\nfloat32 []", fillcolor=palegreen]
  op1 -> op2
}
)";
  const StateDict names{{"fc.weight", w}, {"tied.weight", w}, {"hid\"den", hidden}, {"x", x}};
  CHECK(graph_dot(loss, names) == expected);
}

TEST_CASE("graph_dot: shared ops are drawn once, a tensor used twice has two edges") {
  const Tensor x = ones({2}, {.device = kCPU, .requires_grad = true});
  Tensor y = x;
  for (int i = 0; i < 40; ++i) y = y + y;  // 2^40 paths
  const std::string text = graph_dot(y);
  CHECK(count(text, "[label=\"add") == 40);
  CHECK(count(text, " -> ") == 80);
  CHECK(count(text, "lightblue") == 1);
  CHECK(count(graph_dot(x), "leaf0 [") == 1);
}

TEST_CASE("graph_dot: long chains") {
  Tensor y = ones({1}, {.device = kCPU, .requires_grad = true});
  for (int i = 0; i < 50'000; ++i) y = y * 1.0;
  CHECK(count(graph_dot(y), "[label=\"mul") == 50'000);
}

TEST_CASE("graph_dot: edges of an op with several outputs say which") {
  const Tensor x = ones({4, 2}, {.device = kCPU, .requires_grad = true});
  const std::vector<Tensor> parts = x.split(2, 0);
  CHECK(graph_dot(cat({parts[1], parts[0]})).find("cat") != std::string::npos);
}

TEST_CASE("wrong calls: graph_dot") {
  expect_error<AutogradError>(
      "graph_dot: expected a tensor that requires grad, got one without history",
      [] { graph_dot(ones({2}, {.device = kCPU})); });
  expect_error<AutogradError>(
      "graph_dot: expected a tensor that requires grad, got an undefined one",
      [] { graph_dot(Tensor()); });
}
