#include <sash/ops/attention/exact/normed_heads.h>

#include "../cases.h"

namespace sash::testing {
namespace {

struct Setting {
  RotaryLayout layout = RotaryLayout::half_split;
  int64_t pairs = 2;
  bool per_batch = false;  // angles [B, S, pairs]
};

// Element `at` of x [B, H, S, D] turned; t: x, cos, sin.
double turned(const Array& x, const Array& cos, const Array& sin, const Setting& setting,
              Index at) {
  const int64_t i = at[3], n = setting.pairs;
  if (i >= 2 * n) return x[at];
  const bool halves = setting.layout == RotaryLayout::half_split;
  const int64_t pair = halves ? i % n : i / 2;
  const bool second = halves ? i >= n : i % 2 == 1;
  Index other = at;
  other[3] = halves ? (i + n) % (2 * n) : i ^ 1;
  const Index angle = setting.per_batch ? Index{at[0], at[2], pair} : Index{at[2], pair};
  return second ? x[other] * sin[angle] + x[at] * cos[angle]
                : x[at] * cos[angle] - x[other] * sin[angle];
}

RotaryAngles angles_of(const Tensors& t) {
  const DType dtype = t[0].dtype() == DType::float64 ? DType::float64 : DType::float32;
  return {t[1].to(dtype), t[2].to(dtype)};
}

std::vector<InputSpec> inputs_of(const InputSpec& x, int64_t length, const Setting& setting) {
  InputSpec angle{setting.per_batch ? Shape{x.shape[0], length, setting.pairs}
                                    : Shape{length, setting.pairs}};
  angle.requires_grad = false;
  return {x, angle, angle};
}

std::string name_of(const InputSpec& x, const Setting& setting) {
  return std::string(setting.layout == RotaryLayout::half_split ? "half_split" : "interleaved") +
         (setting.per_batch ? ", of each batch, " : ", ") + std::to_string(setting.pairs) +
         " pairs of " + describe(x);
}

using Function = Tensor (*)(const Tensor&, const RotaryAngles&, RotaryLayout);

void add_case(OpTable& table, const InputSpec& x, const Setting& setting) {
  for (const bool plain : {false, true}) {
    const Function f = plain ? composite::rotary : rotary;
    table.push_back({
        .op = "rotary",
        .variant = (plain ? "composite, " : "") + name_of(x, setting),
        .inputs = inputs_of(x, x.shape[2], setting),
        .run = [=](const Tensors& t) { return f(t[0], angles_of(t), setting.layout); },
        .reference =
            [=](const Arrays& t) {
              return generate(t[0].shape, [&](const Index& at) {
                return turned(t[0], t[1], t[2], setting, at);
              });
            },
        .half_gradient_rounds = plain ? 2.0 : 1,
        .half_gradient_scale = plain ? 4.0 : 0,
    });
  }
}

// Queries, keys and values [B, heads, S, D] of packed [B, S, (heads + 2 kv_heads) D].
Arrays parts_of(const Array& packed, int64_t heads, int64_t kv_heads) {
  const int64_t depth = packed.shape[2] / (heads + 2 * kv_heads);
  Arrays parts;
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t first = i == 0 ? 0 : heads + (i - 1) * kv_heads;
    const int64_t count = i == 0 ? heads : kv_heads;
    parts.push_back(
        generate({packed.shape[0], count, packed.shape[1], depth}, [&](const Index& at) {
          return packed[{at[0], at[2], (first + at[1]) * depth + at[3]}];
        }));
  }
  return parts;
}

// All of x turned by the angles cos and sin.
Array turned(const Array& x, const Array& cos, const Array& sin, const Setting& setting) {
  return generate(x.shape, [&](const Index& at) { return turned(x, cos, sin, setting, at); });
}

// x [B, H, S, D], each head normalised.
Array normed(const Array& x, const Array& weight, const RMSNormOptions& options) {
  const int64_t depth = x.shape[3];
  return generate(x.shape, [&](const Index& at) {
    double squares = 0;
    for (int64_t e = 0; e < depth; ++e) {
      const double value = x[{at[0], at[1], at[2], e}];
      squares += value * value;
    }
    const double w = weight[{at[3]}] + (options.unit_offset ? 1 : 0);
    return x[at] * w / std::sqrt(squares / static_cast<double>(depth) + options.eps);
  });
}

// q [B, heads, S, D] and k, v of one packed tensor.
void add_packed_case(OpTable& table, const InputSpec& x, int64_t heads, int64_t kv_heads,
                     const Setting& setting) {
  table.push_back({
      .op = "split_rotary_heads",
      .variant = std::to_string(heads) + " and " + std::to_string(kv_heads) + " heads, " +
                 name_of(x, setting),
      .inputs = inputs_of(x, x.shape[1], setting),
      .run = [=](const Tensors& t) -> Tensors {
        const auto [q, k, v] =
            split_rotary_heads(t[0], angles_of(t), heads, kv_heads, setting.layout);
        return {q, k, v};
      },
      .reference = [=](const Arrays& t) -> Arrays {
        Arrays parts = parts_of(t[0], heads, kv_heads);
        for (size_t i = 0; i < 2; ++i) parts[i] = turned(parts[i], t[1], t[2], setting);
        return parts;
      },
  });
}

// The same normalised by weights [D] of queries and of keys; t: packed, both weights, and angles if
// `rotates`.
void add_normed_case(OpTable& table, const InputSpec& x, int64_t heads, int64_t kv_heads,
                     bool rotates, const Setting& setting = {}) {
  const int64_t depth = x.shape[2] / (heads + 2 * kv_heads);
  const RMSNormOptions options{.eps = 1e-5, .unit_offset = kv_heads == 1};
  std::vector<InputSpec> inputs{x, {{depth}, contiguous, 0.5, 2}, {{depth}, contiguous, 0.5, 2}};
  if (rotates) {
    const auto all = inputs_of(x, x.shape[1], setting);
    inputs.insert(inputs.end(), all.begin() + 1, all.end());
  }
  table.push_back({
      .op = "split_normed_heads",
      .variant = std::to_string(heads) + " and " + std::to_string(kv_heads) + " heads, " +
                 (rotates ? name_of(x, setting) : describe(x)),
      .inputs = inputs,
      .run = [=](const Tensors& t) -> Tensors {
        const RotaryAngles angles = rotates ? angles_of({t[0], t[3], t[4]}) : RotaryAngles();
        const auto [q, k, v] = split_normed_heads(t[0], {t[1], t[2], options}, heads, kv_heads,
                                                  angles, setting.layout);
        return {q, k, v};
      },
      .reference = [=](const Arrays& t) -> Arrays {
        Arrays parts = parts_of(t[0], heads, kv_heads);
        for (size_t i = 0; i < 2; ++i) {
          parts[i] = normed(parts[i], t[i + 1], options);
          if (rotates) parts[i] = turned(parts[i], t[3], t[4], setting);
        }
        return parts;
      },
      .half_rounds = setting.layout == RotaryLayout::interleaved ? 4.0 : 1,
      .half_gradient_rounds = 8,
  });
}

}  // namespace

void add_rotary(OpTable& table) {
  for (const RotaryLayout layout : {RotaryLayout::half_split, RotaryLayout::interleaved}) {
    add_case(table, {{2, 3, 5, 4}}, {layout, 2});
    add_case(table, {{2, 3, 5, 4}, heads}, {layout, 2});
    add_case(table, {{2, 1, 3, 7}}, {layout, 2, true});
    add_case(table, {{1, 2, 3, 7}, sliced}, {layout, 3});
    add_case(table, {{1, 2, 4, 3}, transposed}, {layout, 1});
    add_case(table, {{2, 2, 3, 4}, expanded}, {layout, 2, true});
    add_case(table, {{2, 2, 3, 48}, padded}, {layout, 16});
    add_case(table, {{1, 4, 9, 64}, heads}, {layout, 32});
    add_case(table, {{1, 2, 3, 5}}, {layout, 0});
    add_case(table, {{0, 2, 3, 4}}, {layout, 2});
    add_case(table, {{2, 2, 0, 4}}, {layout, 2});
    add_packed_case(table, {{2, 3, 16}}, 2, 1, {layout, 2});
    add_packed_case(table, {{2, 3, 36}}, 2, 2, {layout, 2, true});
    add_packed_case(table, {{2, 5, 160}}, 3, 1, {layout, 16});
    add_packed_case(table, {{1, 4, 24}, transposed}, 2, 2, {layout, 1});
  }
  add_normed_case(table, {{2, 3, 64}}, 2, 1, true, {RotaryLayout::half_split, 8});
  add_normed_case(table, {{2, 3, 64}}, 2, 1, true, {RotaryLayout::half_split, 8, true});
  add_normed_case(table, {{2, 3, 64}}, 2, 1, true, {RotaryLayout::interleaved, 4});
  add_normed_case(table, {{1, 5, 288}, padded}, 5, 2, false);
  add_normed_case(table, {{1, 4, 24}, transposed}, 2, 2, false);
  add_normed_case(table, {{0, 3, 64}}, 2, 1, false);
  const Setting setting{RotaryLayout::half_split, 32};
  table.push_back({
      .op = "rotary",
      .variant = "timed [1, 8, 2048, 64]",
      .inputs = inputs_of({{1, 8, 2048, 64}}, 2048, setting),
      .run = [](const Tensors& t) { return rotary(t[0], angles_of(t)); },
      .reference =
          [=](const Arrays& t) {
            return generate(t[0].shape,
                            [&](const Index& at) { return turned(t[0], t[1], t[2], setting, at); });
          },
      .dtypes = {DType::float32},
      .timed = true,
      .operations = 3.0 * 1024 * 1024,
      .bytes = 8.0 * 1024 * 1024,
  });
}

}  // namespace sash::testing
