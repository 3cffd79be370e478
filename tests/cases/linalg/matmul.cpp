#include <sash/ops/linalg/matmul.h>

#include "../cases.h"

namespace sash::testing {
namespace {

std::vector<std::pair<InputSpec, InputSpec>> products() {
  return {
      {{{3, 4}}, {{4, 2}}},
      {{{1, 1}}, {{1, 1}}},
      {{{5}}, {{5}}},
      {{{5}}, {{5, 3}}},
      {{{3, 5}}, {{5}}},
      {{{2, 3, 4}}, {{4}}},
      {{{4}}, {{2, 4, 3}}},
      {{{3, 4}, transposed}, {{4, 2}}},
      {{{3, 4}}, {{4, 2}, transposed}},
      {{{3, 4}, transposed}, {{4, 2}, transposed}},
      {{{3, 4}, sliced}, {{4, 2}, padded}},
      {{{3, 4}, expanded}, {{4, 2}, expanded}},
      {{{2, 3, 4}}, {{2, 4, 5}}},
      {{{2, 3, 4}}, {{4, 5}}},
      {{{3, 4}}, {{2, 4, 5}}},
      {{{2, 1, 3, 2}}, {{3, 2, 2}}},
      {{{2, 3, 2, 4}, heads}, {{2, 3, 4, 2}, heads}},
      {{{2, 3, 2, 4}, heads}, {{2, 3, 4, 2}, transposed}},
      {{{63, 65}}, {{65, 64}}},
      {{{130, 1}}, {{1, 65}}},
      {{{1, 130}}, {{130, 1}}},
      {{{64, 130}, transposed}, {{130, 63}, transposed}},
      {{{3, 65, 17}}, {{1, 17, 66}}},
      {{{257, 300}}, {{300, 131}}},
      {{{0, 3}}, {{3, 2}}},
      {{{2, 0}}, {{0, 3}}},
      {{{2, 3}}, {{3, 0}}},
      {{{0, 2, 3}}, {{3, 4}}},
  };
}

}  // namespace

void add_matmul(OpTable& table) {
  for (const auto& [left, right] : products()) {
    table.push_back({
        .op = "matmul",
        .variant = describe(left) + " and " + describe(right),
        .inputs = {left, right},
        .run = [](const Tensors& x) { return matmul(x[0], x[1]); },
        .reference = [](const Arrays& x) { return matmul(x[0], x[1]); },
        .tolerance32 = 1e-4,        // of elements that nearly cancel
        .half_gradient_rounds = 2,  // once before batches are summed
    });
  }
  const double n = 512;
  table.push_back({
      .op = "matmul",
      .variant = "timed [512, 512] and [512, 512]",
      .inputs = {{{512, 512}}, {{512, 512}}},
      .run = [](const Tensors& x) { return matmul(x[0], x[1]); },
      .reference = [](const Arrays& x) { return matmul(x[0], x[1]); },
      .dtypes = {DType::float32},
      .tolerance32 = 1e-4,
      .timed = true,
      .operations = 2 * n * n * n,
      .bytes = 12 * n * n,
  });
}

}  // namespace sash::testing
