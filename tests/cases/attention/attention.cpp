#include <sash/ops/attention/exact/attention.h>

#include <sash/tensor/random.h>

#include "../../support/attention/attention_reference.h"
#include "../cases.h"

namespace sash::testing {
namespace {

constexpr uint64_t kSeed = 99;

struct Setting {
  std::string option;
  bool causal = false;
  std::optional<int64_t> window{};  // symmetric
  Shape mask{};                     // of a bool tensor, if not empty
  std::optional<double> scale{};
  double dropout = 0;
  double softcap = 0;
  bool bias = false;
  int64_t relative_reach = -1;  // of the relative bias, if not negative
  bool slopes = false;
  bool lengths = false;
  bool sinks = false;  // sink logits
  // Blocks of so many keys that an index of [1, heads, queries / 2, 2] selects, if not 0.
  int64_t block = 0, index_heads = 1;
};

constexpr int64_t kQueriesPerRow = 2;

struct Sizes {
  int64_t batch, heads, kv_heads, queries, keys, depth, v_depth;
};

// Where the inputs after q, k and v stand.
struct Places {
  size_t mask, bias, relative, slopes, lengths, sinks, index;

  explicit Places(const Setting& setting) {
    size_t next = 3;
    const auto take = [&](bool present) { return present ? next++ : 0; };
    mask = take(!setting.mask.empty());
    bias = take(setting.bias);
    relative = take(setting.relative_reach >= 0);
    slopes = take(setting.slopes);
    lengths = take(setting.lengths);
    sinks = take(setting.sinks);
    index = take(setting.block > 0);
  }
};

std::vector<InputSpec> inputs_of(const Setting& setting, const Sizes& s, Layout layout) {
  std::vector<InputSpec> inputs{{{s.batch, s.heads, s.queries, s.depth}, layout},
                                {{s.batch, s.kv_heads, s.keys, s.depth}, layout},
                                {{s.batch, s.kv_heads, s.keys, s.v_depth}, layout}};
  if (!setting.mask.empty()) {
    inputs.push_back({.shape = setting.mask, .low = 0, .high = 2, .dtype = DType::boolean});
  }
  if (setting.bias) inputs.push_back({{s.heads, s.queries, s.keys}});
  if (setting.relative_reach >= 0) {
    inputs.push_back({{s.heads, 2 * setting.relative_reach + 1}});
  }
  if (setting.slopes) {
    inputs.push_back(
        {.shape = {s.heads}, .low = 0, .dtype = DType::float32, .requires_grad = false});
  }
  if (setting.lengths) {
    inputs.push_back({.shape = {s.batch},
                      .low = 0,
                      .high = static_cast<double>(s.keys) + 1,
                      .dtype = DType::int32});
  }
  if (setting.sinks) inputs.push_back({{s.heads}});
  if (setting.block > 0) {
    const int64_t rows = (s.queries + kQueriesPerRow - 1) / kQueriesPerRow;
    const int64_t blocks = (s.keys + setting.block - 1) / setting.block;
    inputs.push_back({.shape = {1, setting.index_heads, rows, 2},
                      .low = -1,
                      .high = static_cast<double>(blocks),
                      .dtype = DType::int32});
  }
  return inputs;
}

// Whether a query sees a key.
bool sees(const Setting& setting, const Arrays& t, const MaskIndex& at) {
  const Places places(setting);
  const int64_t position = at.query + t[1].shape[2] - t[0].shape[2];
  if (setting.causal && at.key > position) return false;
  if (setting.window && std::abs(at.key - position) > *setting.window) return false;
  if (setting.lengths && static_cast<double>(at.key) >= t[places.lengths][{at.batch}]) return false;
  if (places.index) {
    const Array& index = t[places.index];
    const int64_t h = at.head * setting.index_heads / t[0].shape[1];
    bool selected = false;
    for (int64_t n = 0; n < 2; ++n) {
      const double block = index[{0, h, at.query / kQueriesPerRow, n}];
      selected = selected || block == static_cast<double>(at.key / setting.block);
    }
    if (!selected) return false;
  }
  return !places.mask || t[places.mask].broadcast({at.batch, at.head, at.query, at.key}) != 0;
}

AttentionProblem problem_of(const Setting& setting, const Arrays& t) {
  const Places places(setting);
  AttentionProblem problem;
  problem.q = t[0];
  problem.k = t[1];
  problem.v = t[2];
  problem.sees = [&](const MaskIndex& at) { return sees(setting, t, at); };
  problem.scale = setting.scale.value_or(1 / std::sqrt(static_cast<double>(t[0].shape[3])));
  problem.softcap = setting.softcap;
  problem.dropout = setting.dropout;
  problem.seed = kSeed;
  if (places.bias) problem.bias = t[places.bias];
  if (places.relative) problem.relative_bias = t[places.relative];
  if (places.slopes) problem.slopes = t[places.slopes].values;
  if (places.sinks) problem.sink_logits = t[places.sinks].values;
  return problem;
}

AttentionOptions options_of(const Setting& setting, const Tensors& t) {
  const Places places(setting);
  AttentionOptions options;
  if (setting.causal) options.mask = AttentionMask::causal();
  if (setting.window) {
    options.mask = options.mask & AttentionMask::symmetric_window(*setting.window);
  }
  if (places.mask) options.mask = options.mask & AttentionMask(t[places.mask]);
  if (places.lengths) options.mask = options.mask & AttentionMask::key_lengths(t[places.lengths]);
  if (places.index) {
    options.mask =
        options.mask & AttentionMask::selected(t[places.index], setting.block, kQueriesPerRow);
  }
  options.scale = setting.scale;
  options.dropout = setting.dropout;
  options.softcap = setting.softcap;
  if (places.bias) options.bias = t[places.bias];
  if (places.relative) options.relative_bias = t[places.relative];
  if (places.slopes) options.alibi_slopes = t[places.slopes];
  if (places.sinks) options.sink_logits = t[places.sinks];
  return options;
}

AttentionWithLse fused(const Tensors& t, const AttentionOptions& options) {
  manual_seed(kSeed);
  return attention_with_lse(t[0], t[1], t[2], options);
}

AttentionWithLse composed(const Tensors& t, const AttentionOptions& options) {
  manual_seed(kSeed);
  const int64_t weights = t[0].size(0) * t[0].size(1) * t[0].size(2) * t[1].size(2);
  return composite::attention(t[0], t[1], t[2], options, next_philox(t[0].device(), weights));
}

std::string variant_of(const Setting& setting, const std::vector<InputSpec>& inputs) {
  return setting.option + describe(inputs[0]) + ", " + to_string(inputs[1].shape) + ", " +
         to_string(inputs[2].shape);
}

void add_case(OpTable& table, const Setting& setting, const Sizes& s, Layout layout = contiguous) {
  const std::vector<InputSpec> inputs = inputs_of(setting, s, layout);
  for (const bool fused_kernel : {true, false}) {
    table.push_back({
        .op = "attention",
        .variant = (fused_kernel ? "" : "composite, ") + variant_of(setting, inputs),
        .inputs = inputs,
        .run =
            [=](const Tensors& t) {
              return (fused_kernel ? fused : composed)(t, options_of(setting, t)).out;
            },
        .reference = [=](const Arrays& t) { return solve(problem_of(setting, t)).out; },
        // of the weights, of the result, and with sinks of their share and the product
        .half_rounds = fused_kernel ? (setting.sinks ? 4.0 : 2) : 8,
        // of the result that was kept, and its own
        .half_gradient_rounds = fused_kernel && !setting.sinks ? 4.0 : 8,
        .half_gradient_scale = 1,
    });
  }
}

// The log-sum-exp, and the weights.
void add_others(OpTable& table, const Setting& setting, const Sizes& s) {
  const std::vector<InputSpec> inputs = inputs_of(setting, s, contiguous);
  table.push_back({
      .op = "attention_with_lse",
      .variant = variant_of(setting, inputs),
      .inputs = inputs,
      .run =
          [=](const Tensors& t) {
            const AttentionWithLse both = fused(t, options_of(setting, t));
            return Tensors{both.out, both.lse.to(both.out.dtype())};
          },
      .reference =
          [=](const Arrays& t) {
            const AttentionAnswer answer = solve(problem_of(setting, t));
            return Arrays{answer.out, answer.lse};
          },
      .half_rounds = setting.sinks ? 4.0 : 2,
      .half_gradient_rounds = setting.sinks ? 8.0 : 4,
      .half_gradient_scale = 1,
  });
  table.push_back({
      .op = "attention_probabilities",
      .variant = variant_of(setting, inputs),
      .inputs = inputs,
      .run =
          [=](const Tensors& t) {
            manual_seed(kSeed);
            return attention_probabilities(t[0], t[1], options_of(setting, t)) * t[2].sum();
          },
      .reference =
          [=](const Arrays& t) {
            // The weights are what attention makes of the identity.
            AttentionProblem problem = problem_of(setting, t);
            const int64_t keys = t[1].shape[2];
            problem.v = generate({t[1].shape[0], t[1].shape[1], keys, keys},
                                 [](const Index& at) { return at[2] == at[3] ? 1.0 : 0.0; });
            double sum = 0;
            for (const double v : t[2].values) sum += v;
            return map(solve(problem).out, [sum](double w) { return w * sum; });
          },
      .half_rounds = 16,
      .half_gradient_rounds = 16,
      .half_gradient_scale = 4,
  });
}

}  // namespace

void add_attention(OpTable& table) {
  const Setting plain{.option = ""}, causal{.option = "causal, ", .causal = true};
  for (const Setting& setting : {plain, causal}) {
    add_case(table, setting, {1, 1, 1, 1, 1, 1, 1});
    add_case(table, setting, {1, 2, 2, 3, 3, 2, 2});
    add_case(table, setting, {2, 2, 1, 2, 4, 3, 2});
    add_case(table, setting, {1, 1, 1, 4, 2, 2, 3});  // causal: the first two queries see no key
    add_case(table, setting, {1, 3, 3, 3, 3, 2, 2}, heads);
    add_case(table, setting, {1, 2, 2, 3, 3, 4, 4}, padded);
    add_case(table, setting, {1, 2, 2, 2, 3, 2, 2}, transposed);
    add_case(table, setting, {1, 2, 2, 2, 3, 2, 2}, sliced);
    add_case(table, setting, {1, 2, 2, 2, 3, 2, 2}, expanded);
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
           {2, 2, 2, 3, 4, 2, 2}, heads);

  const Setting window{.option = "window 5, ", .window = 5};
  const Setting softcap{.option = "softcap, causal, ", .causal = true, .softcap = 0.7};
  const Setting bias{.option = "bias, ", .bias = true};
  const Setting relative{.option = "relative bias, window, ", .window = 40, .relative_reach = 3};
  const Setting slopes{.option = "slopes, ", .slopes = true};
  const Setting lengths{.option = "lengths, ", .lengths = true};
  const Setting all{.option = "everything, ",
                    .causal = true,
                    .window = 9,
                    .mask = {4, 7},
                    .scale = 0.4,
                    .dropout = 0.3,
                    .softcap = 1.5,
                    .bias = true,
                    .relative_reach = 2,
                    .slopes = true,
                    .lengths = true};
  const Setting sinks{.option = "sink logits, causal, ", .causal = true, .sinks = true};
  // The first two queries see no key: the log-sum-exp is the sink.
  add_case(table, sinks, {1, 2, 2, 4, 2, 2, 3});
  add_case(table, {.option = "sink logits, dropout, ", .dropout = 0.3, .sinks = true},
           {2, 2, 1, 3, 3, 2, 2});
  add_others(table, sinks, {1, 2, 2, 4, 2, 2, 3});
  for (const Setting& setting : {sinks, window, softcap, bias, relative, slopes, lengths}) {
    add_case(table, setting, {2, 2, 1, 4, 7, 3, 2});
    add_case(table, setting, {1, 2, 2, 66, 65, 4, 5});
    add_others(table, setting, {2, 2, 1, 4, 7, 3, 2});
  }
  const Setting selected{.option = "selected, causal, ", .causal = true, .block = 3};
  Setting of_key_heads = selected, with_bias = selected;
  of_key_heads.index_heads = 2;
  with_bias.option = "selected, causal, bias, ";
  with_bias.bias = true;
  add_case(table, selected, {2, 2, 1, 5, 7, 3, 2});
  add_case(table, selected, {1, 2, 2, 6, 4, 2, 2}, heads);
  add_case(table, of_key_heads, {1, 4, 2, 66, 65, 4, 5});
  add_case(table, with_bias, {2, 2, 1, 5, 7, 3, 2});
  add_case(table, all, {2, 2, 1, 4, 7, 3, 2});
  // Without what hides a whole row, whose log-sum-exp is infinite.
  Setting visible_rows = all;
  visible_rows.mask = {};
  add_others(table, visible_rows, {2, 2, 1, 4, 7, 3, 2});
  add_others(table, plain, {1, 2, 2, 3, 3, 2, 2});
  add_case(table, window, {1, 1, 1, 130, 300, 8, 8});
}

}  // namespace sash::testing
