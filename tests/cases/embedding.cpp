#include <sash/ops/index/embedding.h>

#include "cases.h"

namespace sash::testing {
namespace {

void add_lookup(OpTable& table, const InputSpec& weight, const InputSpec& index) {
  table.push_back({
      .op = "embedding",
      .variant = describe(weight) + " at " + describe(index),
      .inputs = {weight, index},
      .run = [](const Tensors& t) { return embedding(t[0], t[1]); },
      .reference =
          [](const Arrays& t) {
            const int last = t[1].shape.rank();
            return generate(with(t[1].shape, last, t[0].shape[1]), [&](const Index& i) {
              return t[0][{static_cast<int64_t>(t[1][without(i, last)]), i[last]}];
            });
          },
  });
}

void add_gradient(OpTable& table, const InputSpec& g, const InputSpec& index, int64_t rows) {
  table.push_back({
      .op = "embedding_backward",
      .variant = describe(g) + " at " + describe(index),
      .inputs = {g, index},
      .run = [rows](const Tensors& t) { return embedding_backward(t[0], t[1], rows); },
      .reference =
          [rows](const Arrays& t) {
            const int last = t[1].shape.rank();
            Array y(Shape{rows, t[0].shape[last]});
            for_each_index(t[0].shape, [&](const Index& i) {
              y[{static_cast<int64_t>(t[1][without(i, last)]), i[last]}] += t[0][i];
            });
            return y;
          },
  });
}

}  // namespace

void add_embedding(OpTable& table) {
  add_lookup(table, {{5, 3}}, indices({7}, 5));
  add_lookup(table, {{5, 3}}, indices({}, 5));
  add_lookup(table, {{4, 1}}, indices({2, 3}, 4));
  add_lookup(table, {{4, 3}, transposed}, indices({3, 2}, 4, transposed));
  add_lookup(table, {{4, 3}, padded}, indices({2, 2}, 4, sliced));
  add_lookup(table, {{65, 130}}, indices({3, 64}, 65));
  add_lookup(table, {{3, 2}}, indices({0}, 3));

  add_gradient(table, {{7, 3}}, indices({7}, 4), 5);
  add_gradient(table, {{2, 3, 2}, heads}, indices({2, 3}, 4, transposed), 4);
  add_gradient(table, {{130, 65}}, indices({130}, 9), 9);
}

}  // namespace sash::testing
