#include <sash/ops/sparse/block_sparse_matmul.h>

#include "../cases.h"

namespace sash::testing {
namespace {

// The matrix of the blocks `data`, by plain loops.
Array dense(const Array& data, const BlockPattern& pattern) {
  const int64_t block = pattern.block();
  Array w(Shape{pattern.rows(), pattern.columns()});
  for (int64_t k = 0; k < pattern.blocks(); ++k) {
    const BlockCoordinate at = pattern.coordinates()[static_cast<size_t>(k)];
    for (int64_t i = 0; i < block; ++i) {
      for (int64_t j = 0; j < block; ++j) {
        w[{at.row * block + i, at.column * block + j}] = data[{k, i, j}];
      }
    }
  }
  return w;
}

Array blocks_of(const Array& w, const BlockPattern& pattern) {
  const int64_t block = pattern.block();
  return generate({pattern.blocks(), block, block}, [&](const Index& at) {
    const BlockCoordinate place = pattern.coordinates()[static_cast<size_t>(at[0])];
    return w[{place.row * block + at[1], place.column * block + at[2]}];
  });
}

Array flat(const Array& x) {
  Array rows(Shape{count(x.shape) / std::max<int64_t>(x.shape.back(), 1), x.shape.back()});
  rows.values = x.values;
  return rows;
}

// A few blocks in no order, rows and columns without any, a full row.
BlockPattern scattered(int64_t block) {
  return {3 * block, 4 * block, block, {{2, 3}, {0, 1}, {2, 0}, {2, 2}, {2, 1}}};
}

std::string text(const BlockPattern& p) {
  return to_string({p.rows(), p.columns()}) + " in " + std::to_string(p.blocks()) + " blocks of " +
         std::to_string(p.block());
}

InputSpec data_of(const BlockPattern& p, Layout layout = contiguous) {
  return {{p.blocks(), p.block(), p.block()}, layout};
}

void add_products(OpTable& table, const BlockPattern& p, const Shape& leading,
                  Layout layout = contiguous, Layout data_layout = contiguous) {
  const auto with = [&](int64_t last) {
    Shape shape = leading;
    shape.push_back(last);
    return InputSpec{shape, layout};
  };
  const std::string of = " and " + text(p) + (data_layout == contiguous ? "" : " transposed");
  for (const bool bias : {true, false}) {
    std::vector<InputSpec> inputs{with(p.columns()), data_of(p, data_layout)};
    if (bias) inputs.push_back({{p.rows()}});
    table.push_back({
        .op = "block_sparse_linear",
        .variant = describe(inputs[0]) + of + (bias ? " with bias" : ""),
        .inputs = inputs,
        .run =
            [p](const Tensors& t) {
              return block_sparse_linear(t[0], {p, t[1]}, t.size() > 2 ? t[2] : Tensor());
            },
        .reference =
            [p](const Arrays& x) {
              const Array y = matmul(x[0], transpose(dense(x[1], p), 0, 1));
              return x.size() < 3 ? y : zip(y, x[2], [](double a, double b) { return a + b; });
            },
        .tolerance32 = 1e-4,  // of elements that nearly cancel
        .fast_checks = true,
    });
  }
  table.push_back({
      .op = "block_sparse_matmul",
      .variant = describe(with(p.rows())) + of,
      .inputs = {with(p.rows()), data_of(p, data_layout)},
      .run =
          [p](const Tensors& t) {
            return block_sparse_matmul(t[0], {p, t[1]});
          },
      .reference = [p](const Arrays& x) { return matmul(x[0], dense(x[1], p)); },
      .tolerance32 = 1e-4,
      .fast_checks = true,
  });
  table.push_back({
      .op = "sampled_matmul",
      .variant =
          describe(with(p.rows())) + " and " + describe(with(p.columns())) + " on " + text(p),
      .inputs = {with(p.rows()), with(p.columns())},
      .run = [p](const Tensors& t) { return sampled_matmul(t[0], t[1], p).data(); },
      .reference =
          [p](const Arrays& x) {
            return blocks_of(matmul(transpose(flat(x[0]), 0, 1), flat(x[1])), p);
          },
      .tolerance32 = 1e-4,
      .fast_checks = true,
  });
}

void add_conversions(OpTable& table, const BlockPattern& p) {
  table.push_back({
      .op = "BlockSparseMatrix.to_dense",
      .variant = text(p),
      .inputs = {data_of(p)},
      .run = [p](const Tensors& t) { return BlockSparseMatrix(p, t[0]).to_dense(); },
      .reference = [p](const Arrays& x) { return dense(x[0], p); },
      .fast_checks = true,
  });
  table.push_back({
      .op = "BlockSparseMatrix.from_dense",
      .variant = text(p),
      .inputs = {{{p.rows(), p.columns()}, transposed}},
      .run = [p](const Tensors& t) { return BlockSparseMatrix::from_dense(t[0], p).data(); },
      .reference = [p](const Arrays& x) { return blocks_of(x[0], p); },
      .fast_checks = true,
  });
  table.push_back({
      .op = "block_norm",
      .variant = text(p),
      .inputs = {data_of(p)},
      .run =
          [p](const Tensors& t) {
            return block_norm({p, t[0]}).to(t[0].dtype());
          },
      .reference =
          [p](const Arrays& x) {
            return generate({p.blocks()}, [&](const Index& at) {
              double squares = 0;
              for (int64_t i = 0; i < p.block(); ++i) {
                for (int64_t j = 0; j < p.block(); ++j) {
                  squares += x[0][{at[0], i, j}] * x[0][{at[0], i, j}];
                }
              }
              return std::sqrt(squares);
            });
          },
      .fast_checks = true,
  });
  table.push_back({
      .op = "block_replace",
      .variant = text(p),
      .inputs = {data_of(p), {{2, p.block(), p.block()}}},
      .run =
          [p](const Tensors& t) {
            const int64_t positions[] = {3, 0};
            const BlockCoordinate places[] = {{1, 1}, {0, 0}};
            return block_replace({p, t[0]}, positions, places, t[1]).to_dense();
          },
      .reference =
          [p](const Arrays& x) {
            const int64_t b = p.block();
            Array w = dense(x[0], p);
            for (int64_t i = 0; i < b; ++i) {
              for (int64_t j = 0; j < b; ++j) {
                w[{2 * b + i, 2 * b + j}] = w[{2 * b + i, 3 * b + j}] = 0;
                w[{b + i, b + j}] = x[1][{0, i, j}];
                w[{i, j}] = x[1][{1, i, j}];
              }
            }
            return w;
          },
      .fast_checks = true,
  });
}

}  // namespace

void add_block_sparse(OpTable& table) {
  for (const int64_t block : {16, 32}) add_products(table, scattered(block), {5});
  for (const int64_t block : {64, 128}) {
    add_products(table, {2 * block, block, block, {{1, 0}}}, {5});
  }
  add_products(table, scattered(16), {2, 3}, heads);
  add_products(table, scattered(16), {7}, sliced, transposed);
  add_products(table, scattered(32), {3}, expanded);
  add_products(table, scattered(16), {0});
  add_products(table, BlockPattern(32, 48, 16, {}), {3});
  add_products(table, BlockPattern::full(16, 16, 16), {});
  add_products(table, BlockPattern::full(64, 320, 64), {70});
  add_products(table, BlockPattern::random(160, 112, 16, 0.3, 1), {257});
  add_products(table, BlockPattern::random(128, 96, 32, 0.5, 2), {130});
  add_conversions(table, scattered(16));
  add_conversions(table, scattered(32));
}

}  // namespace sash::testing
