#include <sash/ops/attention/exact/packed_heads.h>
#include <sash/ops/shape/views.h>

#include "cases.h"

namespace sash::testing {
namespace {

// `call` is the function's name, a space and what tells the call apart.
void add(OpTable& table, const std::string& call, const InputSpec& input,
         std::function<Tensor(T)> run, std::function<Array(const Array&)> reference) {
  table.push_back({
      .op = call.substr(0, call.find(' ')),
      .variant = call.substr(call.find(' ') + 1) + " of " + describe(input),
      .inputs = {input},
      .run = [run = std::move(run)](const Tensors& x) { return run(x[0]); },
      .reference = [reference = std::move(reference)](const Arrays& x) { return reference(x[0]); },
      .dtypes = {DType::float32, DType::float64, DType::int64},
  });
}

// The same elements in the same order under another shape.
void add_shapes(OpTable& table) {
  struct Row {
    std::string call;
    InputSpec input;
    Shape shape;
    Tensor (*run)(T);
  };
  const std::vector<Row> rows{
      {"view [3, 4]", {{2, 6}}, {3, 4}, [](T x) { return x.view(at(3, 4)); }},
      {"view [-1]", {{2, 3, 4}}, {24}, [](T x) { return x.view({-1}); }},
      {"view [2, -1, 4]", {{6, 4}, padded}, {2, 3, 4}, [](T x) { return x.view(at(2, -1, 4)); }},
      {"view [1, 1]", {{}}, {1, 1}, [](T x) { return x.view(at(1, 1)); }},
      {"view [5, 0]", {{0, 3}}, {5, 0}, [](T x) { return x.view(at(5, 0)); }},
      {"reshape [4, 3]", {{3, 4}, transposed}, {4, 3}, [](T x) { return x.reshape(at(4, 3)); }},
      {"reshape [12]", {{3, 4}, expanded}, {12}, [](T x) { return x.reshape({12}); }},
      {"reshape [2, -1]", {{2, 3, 4}, heads}, {2, 12}, [](T x) { return x.reshape(at(2, -1)); }},
      {"reshape [65, 64]", {{64, 65}}, {65, 64}, [](T x) { return x.reshape(at(65, 64)); }},
      {"flatten all", {{2, 3, 2}}, {12}, [](T x) { return x.flatten(); }},
      {"flatten 1 to 2", {{2, 3, 2, 2}}, {2, 6, 2}, [](T x) { return x.flatten(1, 2); }},
      {"flatten 0 to 1", {{2, 3, 2}, heads}, {6, 2}, [](T x) { return x.flatten(0, 1); }},
      {"squeeze 1", {{3, 1, 4}}, {3, 4}, [](T x) { return x.squeeze(1); }},
      {"squeeze an axis that stays", {{3, 1, 4}}, {3, 1, 4}, [](T x) { return x.squeeze(-1); }},
      {"squeeze all", {{1, 3, 1, 4}, transposed}, {3, 4}, [](T x) { return x.squeeze(); }},
      {"unsqueeze -1", {{3, 4}, transposed}, {3, 4, 1}, [](T x) { return x.unsqueeze(-1); }},
      {"unsqueeze 0", {{3}}, {1, 3}, [](T x) { return x.unsqueeze(0); }},
  };
  for (const Row& row : rows) {
    add(table, row.call, row.input, row.run, [shape = row.shape](const Array& x) {
      Array y = x;
      y.shape = shape;
      return y;
    });
  }
}

// Element i of the result is element source(i) of the input.
struct Row {
  std::string call;
  Shape shape;
  Tensor (*run)(T);
  Index (*source)(I);
};

void add_rows(OpTable& table, const InputSpec& input, const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    add(table, row.call, input, row.run, [row](const Array& x) {
      return generate(row.shape, [&](I i) { return x[row.source(i)]; });
    });
  }
}

void add_orders(OpTable& table) {
  for (const Layout layout : {contiguous, heads, sliced}) {
    add_rows(
        table, {{2, 3, 4}, layout},
        {{"permute 2, 0, 1",
          {4, 2, 3},
          [](T x) { return x.permute(at(2, 0, 1)); },
          [](I i) { return at(i[1], i[2], i[0]); }},
         {"movedim 0, -1",
          {3, 4, 2},
          [](T x) { return x.movedim(0, -1); },
          [](I i) { return at(i[2], i[0], i[1]); }},
         {"movedim 2, 1",
          {2, 4, 3},
          [](T x) { return x.movedim(2, 1); },
          [](I i) { return at(i[0], i[2], i[1]); }},
         {"transpose 0, 2",
          {4, 3, 2},
          [](T x) { return x.transpose(0, 2); },
          [](I i) { return at(i[2], i[1], i[0]); }},
         {"mT", {2, 4, 3}, [](T x) { return x.mT(); }, [](I i) { return at(i[0], i[2], i[1]); }}});
  }
}

void add_expansions(OpTable& table) {
  add_rows(table, {{3, 1}},
           {{"expand [2, 3, 4]",
             {2, 3, 4},
             [](T x) { return x.expand(at(2, 3, 4)); },
             [](I i) { return at(i[1], 0); }}});
  add_rows(table, {{1, 4}, sliced},
           {{"expand [5, -1]",
             {5, 4},
             [](T x) { return x.expand(at(5, -1)); },
             [](I i) { return at(0, i[1]); }}});
  add_rows(table, {{3}},
           {{"expand [0, 3]",
             {0, 3},
             [](T x) { return x.expand(at(0, 3)); },
             [](I i) { return at(i[1]); }}});
}

void add_parts(OpTable& table) {
  add_rows(
      table, {{5, 7}, transposed},
      {{"slice 1, 1:6:2",
        {5, 3},
        [](T x) { return x.slice(1, 1, 6, 2); },
        [](I i) { return at(i[0], 1 + 2 * i[1]); }},
       {"slice 0, -3:",
        {3, 7},
        [](T x) { return x.slice(0, -3); },
        [](I i) { return at(i[0] + 2, i[1]); }},
       {"slice 0, 2:99:3",
        {1, 7},
        [](T x) { return x.slice(0, 2, 99, 3); },
        [](I i) { return at(i[0] + 2, i[1]); }},
       {"slice 0, 4:2", {0, 7}, [](T x) { return x.slice(0, 4, 2); }, [](I i) { return i; }},
       {"narrow 1, 2, 4",
        {5, 4},
        [](T x) { return x.narrow(1, 2, 4); },
        [](I i) { return at(i[0], i[1] + 2); }},
       {"select 1, -2", {5}, [](T x) { return x.select(1, -2); }, [](I i) { return at(i[0], 5); }},
       {"operator[] 3", {7}, [](T x) { return x[3]; }, [](I i) { return at(3, i[0]); }}});
}

void add_slice_backward(OpTable& table) {
  for (const Layout layout : {contiguous, transposed}) {
    add(
        table, "slice_backward axis 1 from 1 by 2", {{2, 3}, layout},
        [](T x) { return slice_backward(x, at(2, 7), 1, 1, 2); },
        [](const Array& x) {
          Array y(Shape{2, 7});
          for_each_index(x.shape, [&](I i) { y[at(i[0], 1 + 2 * i[1])] = x[i]; });
          return y;
        });
  }
}

void add_windows(OpTable& table) {
  for (const Layout layout : {contiguous, transposed, sliced}) {
    add_rows(table, {{3, 7}, layout},
             {{"unfold 1, 3, 2",
               {3, 3, 3},
               [](T x) { return x.unfold(1, 3, 2); },
               [](I i) { return at(i[0], 2 * i[1] + i[2]); }},
              {"unfold 0, 2, 1",
               {2, 7, 2},
               [](T x) { return x.unfold(0, 2, 1); },
               [](I i) { return at(i[0] + i[2], i[1]); }},
              {"unfold -1, 2, 5",
               {3, 2, 2},
               [](T x) { return x.unfold(-1, 2, 5); },
               [](I i) { return at(i[0], 5 * i[1] + i[2]); }},
              {"unfold 1, 6, 1",
               {3, 2, 6},
               [](T x) { return x.unfold(1, 6, 1); },
               [](I i) { return at(i[0], i[1] + i[2]); }}});
  }
  for (const auto& [count, size] : {std::pair<int64_t, int64_t>{3, 3}, {2, 5}}) {
    add(
        table, "unfold_backward axis 0 by 2", {{count, 2, size}},
        [](T x) { return unfold_backward(x, at(7, 2), 0, 2); },
        [](const Array& x) {
          Array y(Shape{7, 2});
          for_each_index(x.shape, [&](I i) { y[at(2 * i[0] + i[2], i[1])] += x[i]; });
          return y;
        });
    table.back().dtypes = {DType::float32, DType::float64};
  }
}

void add_heads(OpTable& table) {
  for (const Layout layout : {contiguous, sliced}) {
    add_rows(table, {{2, 4, 6}, layout},
             {{"split_heads 3",
               {2, 3, 4, 2},
               [](T x) { return split_heads(x, 3); },
               [](I i) { return at(i[0], i[2], 2 * i[1] + i[3]); }}});
    add_rows(table, {{2, 3, 4, 2}, layout},
             {{"merge_heads",
               {2, 4, 6},
               [](T x) { return merge_heads(x); },
               [](I i) { return at(i[0], i[2] / 2, i[1], i[2] % 2); }}});
  }
}

}  // namespace

void add_views(OpTable& table) {
  add_shapes(table);
  add_orders(table);
  add_expansions(table);
  add_parts(table);
  add_slice_backward(table);
  add_windows(table);
  add_heads(table);
}

}  // namespace sash::testing
