#include <sash/ops/linalg/matmul.h>

#include "cases.h"

namespace sash::testing {
namespace {

std::vector<std::pair<InputSpec, InputSpec>> products() {
  constexpr Layout kTransposed = Layout::transposed;
  return {
      {{.shape = {3, 4}}, {.shape = {4, 2}}},
      {{.shape = {1, 1}}, {.shape = {1, 1}}},
      {{.shape = {5}}, {.shape = {5}}},
      {{.shape = {5}}, {.shape = {5, 3}}},
      {{.shape = {3, 5}}, {.shape = {5}}},
      {{.shape = {2, 3, 4}}, {.shape = {4}}},
      {{.shape = {4}}, {.shape = {2, 4, 3}}},
      {{.shape = {3, 4}, .layout = kTransposed}, {.shape = {4, 2}}},
      {{.shape = {3, 4}}, {.shape = {4, 2}, .layout = kTransposed}},
      {{.shape = {3, 4}, .layout = kTransposed}, {.shape = {4, 2}, .layout = kTransposed}},
      {{.shape = {3, 4}, .layout = Layout::sliced}, {.shape = {4, 2}, .layout = Layout::padded}},
      {{.shape = {3, 4}, .layout = Layout::expanded},
       {.shape = {4, 2}, .layout = Layout::expanded}},
      {{.shape = {2, 3, 4}}, {.shape = {2, 4, 5}}},
      {{.shape = {2, 3, 4}}, {.shape = {4, 5}}},
      {{.shape = {3, 4}}, {.shape = {2, 4, 5}}},
      {{.shape = {2, 1, 3, 2}}, {.shape = {3, 2, 2}}},
      {{.shape = {2, 3, 2, 4}, .layout = Layout::heads},
       {.shape = {2, 3, 4, 2}, .layout = Layout::heads}},
      {{.shape = {2, 3, 2, 4}, .layout = Layout::heads},
       {.shape = {2, 3, 4, 2}, .layout = kTransposed}},
      {{.shape = {63, 65}}, {.shape = {65, 64}}},
      {{.shape = {130, 1}}, {.shape = {1, 65}}},
      {{.shape = {1, 130}}, {.shape = {130, 1}}},
      {{.shape = {64, 130}, .layout = kTransposed}, {.shape = {130, 63}, .layout = kTransposed}},
      {{.shape = {3, 65, 17}}, {.shape = {1, 17, 66}}},
      {{.shape = {257, 300}}, {.shape = {300, 131}}},
      {{.shape = {0, 3}}, {.shape = {3, 2}}},
      {{.shape = {2, 0}}, {.shape = {0, 3}}},
      {{.shape = {2, 3}}, {.shape = {3, 0}}},
      {{.shape = {0, 2, 3}}, {.shape = {3, 4}}},
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
      .inputs = {{.shape = {512, 512}}, {.shape = {512, 512}}},
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
