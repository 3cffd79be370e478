#include <sash/ops/attention.h>

#include <sash/tensor/random.h>

#include "cases.h"

namespace sash::testing {
namespace {

constexpr uint64_t kSeed = 99;

struct Setting {
  std::string option;
  bool causal = false;
  Shape mask{};  // of a bool tensor, if not empty
  std::optional<double> scale{};
  double dropout = 0;
};

// Whether query i of q [B, H, Sq, D] sees key j.
bool sees(const Setting& setting, const Arrays& t, const Index& query, int64_t j) {
  const int64_t queries = t[0].shape[2], keys = t[1].shape[2];
  if (setting.causal && j > query[2] + keys - queries) return false;
  return setting.mask.empty() || t[3].broadcast({query[0], query[1], query[2], j}) != 0;
}

// Attention weights of one query over all keys.
std::vector<double> weights_of(const Setting& setting, const Arrays& t, const Index& query) {
  const Array &q = t[0], &k = t[1];
  const int64_t keys = k.shape[2], depth = q.shape[3];
  const int64_t head = query[1] / (q.shape[1] / k.shape[1]);
  const double scale = setting.scale.value_or(1 / std::sqrt(static_cast<double>(depth)));
  std::vector<double> scores;
  for (int64_t j = 0; j < keys; ++j) {
    double score = 0;
    for (int64_t d = 0; d < depth; ++d) {
      score += q[{query[0], query[1], query[2], d}] * k[{query[0], head, j, d}];
    }
    scores.push_back(sees(setting, t, query, j) ? scale * score : -kInfinity);
  }
  std::vector<double> weights = softmax_line(scores);
  if (setting.dropout == 0) return weights;
  const int64_t row = (query[0] * q.shape[1] + query[1]) * q.shape[2] + query[2];
  for (int64_t j = 0; j < keys; ++j) {
    const bool kept =
        random_word(kSeed, static_cast<uint64_t>(row * keys + j)) >= setting.dropout * 4294967296.0;
    weights[static_cast<size_t>(j)] *= kept ? 1 / (1 - setting.dropout) : 0;
  }
  return weights;
}

Array attention_of(const Setting& setting, const Arrays& t) {
  const Array &q = t[0], &v = t[2];
  const int64_t group = q.shape[1] / v.shape[1], depth = v.shape[3];
  Array y({q.shape[0], q.shape[1], q.shape[2], depth});
  for_each_index({q.shape[0], q.shape[1], q.shape[2]}, [&](const Index& query) {
    const std::vector<double> weights = weights_of(setting, t, query);
    for (int64_t d = 0; d < depth; ++d) {
      double sum = 0;
      for (int64_t j = 0; j < v.shape[2]; ++j) {
        sum += weights[static_cast<size_t>(j)] * v[{query[0], query[1] / group, j, d}];
      }
      y[{query[0], query[1], query[2], d}] = sum;
    }
  });
  return y;
}

AttentionOptions options_of(const Setting& setting, const Tensors& t) {
  AttentionOptions options;
  if (setting.causal) options.mask = AttentionMask::causal();
  if (!setting.mask.empty()) options.mask = options.mask & AttentionMask(t[3]);
  options.scale = setting.scale;
  options.dropout = setting.dropout;
  return options;
}

Tensor fused(const Tensors& t, const AttentionOptions& options) {
  manual_seed(kSeed);
  return attention(t[0], t[1], t[2], options);
}

Tensor composed(const Tensors& t, const AttentionOptions& options) {
  manual_seed(kSeed);
  const int64_t weights = t[0].size(0) * t[0].size(1) * t[0].size(2) * t[1].size(2);
  return composite::attention(t[0], t[1], t[2], options, next_philox(t[0].device(), weights));
}

struct Sizes {
  int64_t batch, heads, kv_heads, queries, keys, depth, v_depth;
};

void add_case(OpTable& table, const Setting& setting, const Sizes& s,
              Layout layout = Layout::contiguous) {
  std::vector<InputSpec> inputs{
      {.shape = {s.batch, s.heads, s.queries, s.depth}, .layout = layout},
      {.shape = {s.batch, s.kv_heads, s.keys, s.depth}, .layout = layout},
      {.shape = {s.batch, s.kv_heads, s.keys, s.v_depth}, .layout = layout}};
  if (!setting.mask.empty()) {
    inputs.push_back({.shape = setting.mask, .low = 0, .high = 2, .dtype = DType::boolean});
  }
  const std::string variant = setting.option + describe(inputs[0]) + ", " +
                              to_string(inputs[1].shape) + ", " + to_string(inputs[2].shape);
  for (const bool fused_kernel : {true, false}) {
    table.push_back({
        .op = "attention",
        .variant = (fused_kernel ? "" : "composite, ") + variant,
        .inputs = inputs,
        .run =
            [=](const Tensors& t) {
              return (fused_kernel ? fused : composed)(t, options_of(setting, t));
            },
        .reference = [=](const Arrays& t) { return attention_of(setting, t); },
        .half_rounds = fused_kernel ? 1.0 : 8,
        .half_gradient_rounds = fused_kernel ? 4.0 : 8,  // of the result that was kept, and its own
        .half_gradient_scale = 1,
    });
  }
}

}  // namespace

void add_attention(OpTable& table) {
  const Setting plain{.option = ""}, causal{.option = "causal, ", .causal = true};
  for (const Setting& setting : {plain, causal}) {
    add_case(table, setting, {1, 1, 1, 1, 1, 1, 1});
    add_case(table, setting, {1, 2, 2, 3, 3, 2, 2});
    add_case(table, setting, {2, 2, 1, 2, 4, 3, 2});
    add_case(table, setting, {1, 1, 1, 4, 2, 2, 3});  // causal: the first two queries see no key
    add_case(table, setting, {1, 3, 3, 3, 3, 2, 2}, Layout::heads);
    add_case(table, setting, {1, 2, 2, 3, 3, 4, 4}, Layout::padded);
    add_case(table, setting, {1, 2, 2, 2, 3, 2, 2}, Layout::transposed);
    add_case(table, setting, {1, 2, 2, 2, 3, 2, 2}, Layout::sliced);
    add_case(table, setting, {1, 2, 2, 2, 3, 2, 2}, Layout::expanded);
    for (const int64_t length : {63, 64, 65, 130}) {
      add_case(table, setting, {1, 2, 1, length, length, 5, 5});
    }
    add_case(table, setting, {1, 1, 1, 65, 130, 33, 17});
    add_case(table, setting, {1, 1, 1, 130, 63, 64, 65});
    add_case(table, setting, {0, 2, 2, 3, 3, 2, 2});
    add_case(table, setting, {1, 2, 2, 0, 3, 2, 2});
    add_case(table, setting, {1, 2, 2, 3, 0, 2, 2});
  }
  for (const Shape& mask : {Shape{3, 4}, Shape{2, 1, 3, 4}, Shape{2, 1, 1, 4}, Shape{2, 2, 3, 1}}) {
    const Setting masked{.option = "mask " + to_string(mask) + ", ", .mask = mask};
    add_case(table, masked, {2, 2, 2, 3, 4, 2, 2});
  }
  const Setting both{.option = "causal and mask, ", .causal = true, .mask = {66, 70}};
  add_case(table, both, {2, 2, 1, 66, 70, 3, 4});
  add_case(table, {.option = "scale 0.3, ", .causal = true, .scale = 0.3}, {1, 2, 2, 3, 3, 4, 4});
  add_case(table, {.option = "dropout, ", .dropout = 0.3}, {2, 2, 1, 3, 3, 2, 2});
  add_case(table, {.option = "dropout, causal, ", .causal = true, .dropout = 0.5},
           {1, 2, 2, 65, 66, 3, 3});
  add_case(table, {.option = "dropout, mask, ", .mask = {3, 4}, .dropout = 0.5},
           {2, 2, 2, 3, 4, 2, 2}, Layout::heads);
}

}  // namespace sash::testing
