#include <sash/ops/shape/concat.h>

#include "cases.h"

namespace sash::testing {
namespace {

Array cat_of(const Arrays& parts, int64_t along) {
  const int axis = positive(along, parts[0].shape.rank());
  Shape shape = parts[0].shape;
  shape[axis] = 0;
  for (const Array& part : parts) shape[axis] += part.shape[axis];
  return generate(shape, [&](const Index& index) {
    int64_t at = index[axis];
    size_t part = 0;
    while (at >= parts[part].shape[axis]) at -= parts[part++].shape[axis];
    return parts[part][replaced(index, axis, at)];
  });
}

Array piece(const Array& x, int axis, int64_t start, int64_t length) {
  return generate(replaced(x.shape, axis, length), [&](const Index& index) {
    return x[replaced(index, axis, start + index[axis])];
  });
}

Arrays split_of(const Array& x, const std::vector<int64_t>& lengths, int64_t along) {
  const int axis = positive(along, x.shape.rank());
  Arrays pieces;
  int64_t start = 0;
  for (const int64_t length : lengths) {
    pieces.push_back(piece(x, axis, start, length));
    start += length;
  }
  return pieces;
}

const std::vector<DType> kSome{DType::float32, DType::float64, DType::int64};

void add_cat(OpTable& table, std::vector<InputSpec> inputs, int64_t axis) {
  std::string variant = "axis " + std::to_string(axis);
  for (const InputSpec& input : inputs) variant += ", " + describe(input);
  table.push_back({
      .op = "cat",
      .variant = variant,
      .inputs = std::move(inputs),
      .run = [axis](const Tensors& x) { return cat(x, axis); },
      .reference = [axis](const Arrays& x) { return cat_of(x, axis); },
      .dtypes = kSome,
  });
}

void add_stack(OpTable& table, const InputSpec& input, int64_t axis) {
  table.push_back({
      .op = "stack",
      .variant = "axis " + std::to_string(axis) + " of three " + describe(input),
      .inputs = {input, input, input},
      .run = [axis](const Tensors& x) { return stack(x, axis); },
      .reference =
          [axis](const Arrays& x) {
            const int at = positive(axis, x[0].shape.rank() + 1);
            return generate(with(x[0].shape, at, 3), [&](const Index& index) {
              return x[static_cast<size_t>(index[at])][without(index, at)];
            });
          },
      .dtypes = kSome,
  });
}

void add_pieces(OpTable& table, const std::string& name, const std::string& option,
                const InputSpec& input, std::vector<int64_t> lengths, int64_t axis,
                std::function<Tensors(const Tensor&)> run) {
  table.push_back({
      .op = name,
      .variant = option + ", axis " + std::to_string(axis) + " of " + describe(input),
      .inputs = {input},
      .run = [run = std::move(run)](const Tensors& x) { return run(x[0]); },
      .reference = [lengths, axis](const Arrays& x) { return split_of(x[0], lengths, axis); },
  });
}

}  // namespace

void add_concat(OpTable& table) {
  add_cat(table, {{{2, 3}}, {{1, 3}}, {{4, 3}}}, 0);
  add_cat(table, {{{2, 3}}, {{2, 1}}}, -1);
  add_cat(table, {{{2, 3}}, {{0, 3}}}, 0);
  add_cat(table, {{{5}}}, 0);
  add_cat(table, {{{2, 3, 2}, heads}, {{2, 1, 2}}}, 1);
  add_cat(table, {{{3, 4}, transposed}, {{3, 2}, sliced}, {{3, 2}, expanded}}, 1);
  add_cat(table, {{{65, 63}}, {{65, 65}}}, 1);
  add_cat(table, {{{2, 3}}, {.shape = {4, 3}, .low = 0, .high = 9, .dtype = DType::uint8}}, 0);
  table.back().variant += ", uint8";

  add_stack(table, {{2, 3}}, 0);
  add_stack(table, {{2, 3}, transposed}, 1);
  add_stack(table, {{3}}, -1);
  add_stack(table, {{}}, 0);

  const InputSpec matrix{{5, 4}, padded};
  add_pieces(table, "split", "2, 0, 3", matrix, {2, 0, 3}, 0, [](const Tensor& x) {
    return split(x, std::vector<int64_t>{2, 0, 3}, 0);
  });
  add_pieces(table, "split", "by 2", matrix, {2, 2, 1}, 0,
             [](const Tensor& x) { return split(x, 2, 0); });
  add_pieces(table, "split", "by 3", matrix, {3, 1}, -1,
             [](const Tensor& x) { return split(x, 3, -1); });
  add_pieces(table, "chunk", "3", matrix, {2, 2, 1}, 0,
             [](const Tensor& x) { return chunk(x, 3, 0); });
  for (const int64_t axis : {0, -1}) {
    table.push_back({
        .op = "unbind",
        .variant = "axis " + std::to_string(axis),
        .inputs = {matrix},
        .run = [axis](const Tensors& x) { return unbind(x[0], axis); },
        .reference =
            [axis](const Arrays& x) {
              const int along = positive(axis, 2);
              Arrays slices;
              for (int64_t i = 0; i < x[0].shape[along]; ++i) {
                slices.push_back(generate(without(x[0].shape, along), [&](const Index& index) {
                  return x[0][with(index, along, i)];
                }));
              }
              return slices;
            },
    });
  }
  add_pieces(table, "chunk", "2", {{2, 6}}, {3, 3}, 1,
             [](const Tensor& x) { return chunk(x, 2, 1); });
}

}  // namespace sash::testing
