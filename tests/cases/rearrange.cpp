#include <sash/ops/shape/rearrange.h>

#include "cases.h"

namespace sash::testing {
namespace {

const std::vector<DType> kSome{DType::float32, DType::float64, DType::int64};

// Element i of the result is element source(i) of the input, or 7 where source(i) has no axes.
struct Row {
  std::string op;
  std::string variant;
  Shape shape;
  Tensor (*run)(T);
  Index (*source)(I);
};

void add_rows(OpTable& table, const InputSpec& input, const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    table.push_back({
        .op = row.op,
        .variant = row.variant + " of " + describe(input),
        .inputs = {input},
        .run = [run = row.run](const Tensors& x) { return run(x[0]); },
        .reference =
            [row](const Arrays& x) {
              return generate(row.shape, [&](I i) {
                const Index from = row.source(i);
                return from.empty() ? 7 : x[0][from];
              });
            },
        .dtypes = kSome,
    });
  }
}

void add_orders(OpTable& table, const InputSpec& input) {
  add_rows(
      table, input,
      {{"flip",
        "0",
        {4, 5},
        [](T x) { return flip(x, 0); },
        [](I i) { return at(3 - i[0], i[1]); }},
       {"flip",
        "-1, 0",
        {4, 5},
        [](T x) {
          return flip(x, {-1, 0});
        },
        [](I i) { return at(3 - i[0], 4 - i[1]); }},
       {"flip", "no axis", {4, 5}, [](T x) { return flip(x, {}); }, [](I i) { return i; }},
       {"roll",
        "1 along 0",
        {4, 5},
        [](T x) { return roll(x, 1, 0); },
        [](I i) { return at((i[0] + 3) % 4, i[1]); }},
       {"roll",
        "-7 along 1",
        {4, 5},
        [](T x) { return roll(x, -7, 1); },
        [](I i) { return at(i[0], (i[1] + 7) % 5); }},
       {"roll",
        "1 and 2",
        {4, 5},
        [](T x) {
          return roll(x, {1, 2}, {0, 1});
        },
        [](I i) { return at((i[0] + 3) % 4, (i[1] + 3) % 5); }},
       {"roll", "8 along 0", {4, 5}, [](T x) { return roll(x, 8, 0); }, [](I i) { return i; }}});
}

void add_repeats(OpTable& table, const InputSpec& input) {
  add_rows(table, input,
           {{"repeat",
             "[2, 1]",
             {8, 5},
             [](T x) {
               return repeat(x, {2, 1});
             },
             [](I i) { return at(i[0] % 4, i[1]); }},
            {"repeat",
             "[3, 2, 2]",
             {3, 8, 10},
             [](T x) {
               return repeat(x, {3, 2, 2});
             },
             [](I i) { return at(i[1] % 4, i[2] % 5); }},
            {"repeat",
             "[0, 1]",
             {0, 5},
             [](T x) {
               return repeat(x, {0, 1});
             },
             [](I i) { return i; }},
            {"repeat",
             "[1, 1]",
             {4, 5},
             [](T x) {
               return repeat(x, {1, 1});
             },
             [](I i) { return i; }},
            {"repeat_interleave",
             "3, axis 0",
             {12, 5},
             [](T x) { return repeat_interleave(x, 3, 0); },
             [](I i) { return at(i[0] / 3, i[1]); }},
            {"repeat_interleave",
             "2, axis -1",
             {4, 10},
             [](T x) { return repeat_interleave(x, 2, -1); },
             [](I i) { return at(i[0], i[1] / 2); }}});
}

void add_paddings(OpTable& table, const InputSpec& input) {
  add_rows(table, input,
           {{"pad",
             "1, 2",
             {4, 8},
             [](T x) {
               return pad(x, {1, 2}, 7);
             },
             [](I i) { return i[1] < 1 || i[1] > 5 ? at() : at(i[0], i[1] - 1); }},
            {"pad",
             "0, 1, 2, 0",
             {6, 6},
             [](T x) {
               return pad(x, {0, 1, 2, 0}, 7);
             },
             [](I i) { return i[0] < 2 || i[1] > 4 ? at() : at(i[0] - 2, i[1]); }},
            {"pad",
             "-1, 2",
             {4, 6},
             [](T x) {
               return pad(x, {-1, 2}, 7);
             },
             [](I i) { return i[1] > 3 ? at() : at(i[0], i[1] + 1); }},
            {"pad",
             "-2, -3",
             {4, 0},
             [](T x) {
               return pad(x, {-2, -3}, 7);
             },
             [](I i) { return i; }}});
}

void add_triangles(OpTable& table) {
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 4, 3}, Shape{0, 3}, Shape{65, 64}}) {
    for (const int64_t diagonal : {0, 1, -2}) {
      const auto add = [&](const char* name, Tensor (*run)(T, int64_t), bool lower) {
        table.push_back({
            .op = name,
            .variant = to_string(shape) + ", " + std::to_string(diagonal),
            .inputs = {{.shape = shape}},
            .run = [=](const Tensors& x) { return run(x[0], diagonal); },
            .reference =
                [=](const Arrays& x) {
                  return generate(shape, [&](I i) {
                    const int64_t beyond = i.back() - i[i.rank() - 2] - diagonal;
                    return (lower ? beyond <= 0 : beyond >= 0) ? x[0][i] : 0;
                  });
                },
            .dtypes = kSome,
        });
      };
      add("tril", tril, true);
      add("triu", triu, false);
    }
  }
}

}  // namespace

void add_rearrange(OpTable& table) {
  for (const Layout layout : {contiguous, transposed, sliced, expanded}) {
    const InputSpec input{{4, 5}, layout};
    add_orders(table, input);
    add_repeats(table, input);
    add_paddings(table, input);
  }
  add_rows(table, {{65, 64}, transposed},
           {{"flip",
             "0",
             {65, 64},
             [](T x) { return flip(x, 0); },
             [](I i) { return at(64 - i[0], i[1]); }}});
  add_triangles(table);
}

}  // namespace sash::testing
