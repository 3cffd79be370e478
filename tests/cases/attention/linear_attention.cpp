#include <sash/ops/attention/approximate/linear_attention.h>

#include <sash/ops/shape/concat.h>

#include "../cases.h"

namespace sash::testing {
namespace {

struct Sizes {
  int64_t batch, heads, kv_heads, queries, keys, depth, v_depth;
};

struct Setting {
  bool causal = false, lengths = false;
  double eps = 1e-6;
};

double feature(double x) { return x > 0 ? x + 1 : std::exp(x); }

// Plain loops over all pairs.
Array expected(const Arrays& t, const Setting& setting) {
  const Array &q = t[0], &k = t[1], &v = t[2];
  const int64_t group = k.shape[1] == 0 ? 1 : q.shape[1] / k.shape[1];
  Array out({q.shape[0], q.shape[1], q.shape[2], v.shape[3]});
  for_each_index({q.shape[0], q.shape[1], q.shape[2]}, [&](const Index& at) {
    const int64_t b = at[0], h = at[1], i = at[2], h_kv = h / group;
    std::vector<double> sums(static_cast<size_t>(v.shape[3]));
    double total = setting.eps;
    for (int64_t j = 0; j < k.shape[2]; ++j) {
      if (setting.causal && j > i) continue;
      if (setting.lengths && static_cast<double>(j) >= t[3][{b}]) continue;
      double weight = 0;
      for (int64_t d = 0; d < q.shape[3]; ++d) {
        weight += feature(q[{b, h, i, d}]) * feature(k[{b, h_kv, j, d}]);
      }
      total += weight;
      for (int64_t m = 0; m < v.shape[3]; ++m) {
        sums[static_cast<size_t>(m)] += weight * v[{b, h_kv, j, m}];
      }
    }
    for (int64_t m = 0; m < v.shape[3]; ++m) {
      out[{b, h, i, m}] = sums[static_cast<size_t>(m)] / total;
    }
  });
  return out;
}

// The first tokens one at a time, then the rest at once.
Tensor recurrent(const Tensors& t, double eps) {
  LinearAttentionState state;
  std::vector<Tensor> parts;
  const int64_t length = t[0].size(2), single = std::min<int64_t>(length, 2);
  const auto step = [&](int64_t first, int64_t count) {
    parts.push_back(linear_attention_step(t[0].narrow(2, first, count),
                                          t[1].narrow(2, first, count),
                                          t[2].narrow(2, first, count), state, eps));
  };
  for (int64_t i = 0; i < single; ++i) step(i, 1);
  step(single, length - single);
  return cat(parts, 2);
}

void add_case(OpTable& table, const Setting& setting, const Sizes& s, Layout layout = contiguous) {
  std::vector<InputSpec> inputs{{{s.batch, s.heads, s.queries, s.depth}, layout},
                                {{s.batch, s.kv_heads, s.keys, s.depth}, layout},
                                {{s.batch, s.kv_heads, s.keys, s.v_depth}, layout}};
  for (size_t i = 0; i < 2; ++i) inputs[i].kinks = {0};  // where phi'' jumps
  if (setting.lengths) {
    inputs.push_back({.shape = {s.batch},
                      .low = 0,
                      .high = static_cast<double>(s.keys) + 1,
                      .dtype = DType::int32});
  }
  const std::string variant = std::string(setting.causal ? "causal, " : "") +
                              (setting.lengths ? "lengths, " : "") +
                              (setting.eps == 1e-6 ? "" : "eps, ") + describe(inputs[0]) + ", " +
                              to_string(inputs[1].shape) + ", " + to_string(inputs[2].shape);
  const auto options = [=](const Tensors& t) {
    LinearAttentionOptions made{.causal = setting.causal, .eps = setting.eps};
    if (setting.lengths) made.key_lengths = t[3];
    return made;
  };
  const OpCase common{
      .op = "linear_attention",
      .variant = variant,
      .inputs = inputs,
      .run = [=](const Tensors& t) { return linear_attention(t[0], t[1], t[2], options(t)); },
      .reference = [=](const Arrays& t) { return expected(t, setting); },
      .half_rounds = 4,           // of features, states, weights, and of the result
      .half_gradient_rounds = 8,  // of the result that was kept too
      .half_gradient_scale = 1,
  };
  table.push_back(common);
  OpCase composed = common;
  composed.variant = "composite, " + variant;
  composed.run = [=](const Tensors& t) {
    return composite::linear_attention(t[0], t[1], t[2], options(t));
  };
  table.push_back(composed);
  if (!setting.causal || setting.lengths) return;
  OpCase steps = common;
  steps.op = "linear_attention_step";
  steps.run = [=](const Tensors& t) { return recurrent(t, setting.eps); };
  table.push_back(steps);
}

}  // namespace

void add_linear_attention(OpTable& table) {
  for (const bool causal : {false, true}) {
    const Setting plain{.causal = causal};
    add_case(table, plain, {1, 1, 1, 1, 1, 1, 1});
    add_case(table, plain, {1, 2, 2, 3, 3, 2, 2});
    add_case(table, plain, {2, 4, 2, 4, 4, 3, 2});
    add_case(table, plain, {1, 3, 3, 3, 3, 2, 5}, heads);
    add_case(table, plain, {1, 2, 2, 3, 3, 4, 4}, padded);
    add_case(table, plain, {1, 2, 2, 3, 3, 2, 2}, transposed);
    add_case(table, plain, {1, 2, 2, 3, 3, 2, 2}, sliced);
    add_case(table, plain, {1, 2, 2, 3, 3, 2, 2}, expanded);
    for (const int64_t length : {63, 64, 65, 130}) {
      add_case(table, plain, {1, 2, 1, length, length, 5, 4});
    }
    add_case(table, plain, {1, 1, 1, 66, 66, 65, 33});
    add_case(table, plain, {1, 1, 1, 200, 200, 8, 16});
    add_case(table, plain, {1, 2, 1, 130, 130, 64, 64});
    add_case(table, plain, {1, 1, 1, 65, 65, 8, 136});
    add_case(table, plain, {0, 2, 2, 3, 3, 2, 2});
    add_case(table, plain, {1, 2, 2, 0, 0, 2, 2});
    add_case(table, {.causal = causal, .eps = 0.5}, {1, 2, 2, 3, 3, 2, 2});
    const Setting lengths{.causal = causal, .lengths = true};
    add_case(table, lengths, {3, 2, 1, 5, 5, 3, 2});
    add_case(table, lengths, {2, 2, 2, 140, 140, 4, 8}, heads);
  }
  const Setting plain{}, lengths{.lengths = true};
  add_case(table, plain, {2, 2, 1, 3, 7, 2, 3});
  add_case(table, plain, {1, 2, 2, 70, 5, 4, 4});
  add_case(table, plain, {1, 2, 2, 2, 150, 4, 4});
  add_case(table, plain, {1, 2, 2, 3, 0, 2, 2});
  add_case(table, plain, {1, 2, 2, 0, 3, 2, 2});
  add_case(table, lengths, {2, 2, 1, 3, 70, 4, 4});
}

}  // namespace sash::testing
