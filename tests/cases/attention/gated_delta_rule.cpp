#include <sash/ops/attention/recurrent/gated_delta_rule.h>

#include <sash/ops/shape/concat.h>

#include "../cases.h"

namespace sash::testing {
namespace {

struct Sizes {
  int64_t batch, heads, value_heads, length, depth, width;
};

enum class Gate { none, head, feature };

struct Setting {
  Gate gate = Gate::none;
  bool beta = true, normalize = false, initial = false;
  std::vector<double> texts{};  // cu_seqlens
  std::optional<double> scale{};
  double low = -1;  // of g
};

// Where an input is among those of a case; -1: it has none.
struct Places {
  int g = -1, beta = -1, initial = -1, texts = -1;
};

void normalize_rows(Array& x) {
  for_each_index({x.shape[0], x.shape[1], x.shape[2]}, [&](const Index& at) {
    double sum = 1e-6;
    for (int64_t d = 0; d < x.shape[3]; ++d) sum += std::pow(x[with(at, 3, d)], 2);
    for (int64_t d = 0; d < x.shape[3]; ++d) x[with(at, 3, d)] /= std::sqrt(sum);
  });
}

// One token after the other.
std::vector<Array> expected(const Arrays& t, const Setting& setting, const Places& places) {
  Array q = t[0], k = t[1];
  const Array& v = t[2];
  if (setting.normalize) normalize_rows(q), normalize_rows(k);
  const int64_t heads = v.shape[1], depth = q.shape[3], width = v.shape[3];
  const int64_t group = q.shape[1] == 0 ? 1 : heads / q.shape[1];
  const double scale = setting.scale.value_or(1 / std::sqrt(static_cast<double>(depth)));
  const auto texts = static_cast<int64_t>(setting.texts.size()) - 1;
  Array out(v.shape), states({texts < 0 ? v.shape[0] : texts, heads, depth, width});
  for_each_index({states.shape[0], heads}, [&](const Index& at) {
    const int64_t h = at[1], b = texts < 0 ? at[0] : 0;
    Array s(Shape{depth, width});
    for_each_index(s.shape, [&](const Index& i) {
      if (setting.initial) s[i] = t[size_t(places.initial)][{at[0], h, i[0], i[1]}];
    });
    const auto bound = [&](size_t i) { return static_cast<int64_t>(setting.texts[i]); };
    const int64_t begin = texts < 0 ? 0 : bound(size_t(at[0]));
    const int64_t end = texts < 0 ? v.shape[2] : bound(size_t(at[0]) + 1);
    for (int64_t n = begin; n < end; ++n) {
      const auto key = [&](int64_t d) { return k[{b, h / group, n, d}]; };
      for_each_index(s.shape, [&](const Index& i) {
        if (setting.gate == Gate::none) return;
        const Array& g = t[size_t(places.g)];
        s[i] *= std::exp(setting.gate == Gate::head ? g[{b, h, n}] : g[{b, h, n, i[0]}]);
      });
      for (int64_t m = 0; m < width; ++m) {
        double u = v[{b, h, n, m}], result = 0;
        if (setting.beta) {
          for (int64_t d = 0; d < depth; ++d) u -= key(d) * s[{d, m}];
          u *= t[size_t(places.beta)][{b, h, n}];
        }
        for (int64_t d = 0; d < depth; ++d) {
          s[{d, m}] += key(d) * u;
          result += q[{b, h / group, n, d}] * s[{d, m}];
        }
        out[{b, h, n, m}] = scale * result;
      }
    }
    for_each_index(s.shape, [&](const Index& i) { states[{at[0], h, i[0], i[1]}] = s[i]; });
  });
  return {out, states};
}

RecurrentOptions options(const Tensors& t, const Setting& setting, const Places& places) {
  const auto optional = [&](int i) { return i < 0 ? Tensor() : t[size_t(i)]; };
  RecurrentOptions made{.g = optional(places.g),
                        .scale = setting.scale,
                        .normalize = setting.normalize,
                        .initial_state = optional(places.initial),
                        .cu_seqlens = optional(places.texts)};
  if (setting.initial && is_half(t[0].dtype())) {
    made.initial_state = made.initial_state.to(DType::float32);
  }
  return made;
}

// The first tokens one at a time, then the rest at once.
RecurrentResult recurrent(const Tensors& t, RecurrentOptions options, const Tensor& beta) {
  RecurrentState state{options.initial_state};
  options.initial_state = {};
  const Tensor g = options.g;
  std::vector<Tensor> parts;
  const int64_t length = t[0].size(2), single = std::min<int64_t>(length, 2);
  const auto step = [&](int64_t first, int64_t count) {
    const auto part = [&](const Tensor& x) { return x.narrow(2, first, count); };
    if (g.defined()) options.g = part(g);
    parts.push_back(
        gated_delta_rule_step(part(t[0]), part(t[1]), part(t[2]), part(beta), state, options));
  };
  for (int64_t i = 0; i < single; ++i) step(i, 1);
  step(single, length - single);
  return {cat(parts, 2), state.s};
}

Several<Tensor> results(const RecurrentResult& y) {
  return Tensors{y.out, y.state.to(y.out.dtype())};
}

void add_case(OpTable& table, const Setting& setting, const Sizes& s, Layout layout = contiguous) {
  const double unit = s.depth == 0 ? 1 : 1 / std::sqrt(static_cast<double>(s.depth));
  const Shape tokens{s.batch, s.value_heads, s.length};
  const Shape keys{s.batch, s.heads, s.length, s.depth};
  std::vector<InputSpec> inputs{{keys, layout, -unit, unit},
                                {keys, layout, -unit, unit},
                                {{s.batch, s.value_heads, s.length, s.width}, layout, -1, 1}};
  Places places;
  const auto add = [&](int& place, const InputSpec& spec) {
    place = static_cast<int>(inputs.size());
    inputs.push_back(spec);
  };
  std::string variant = setting.gate == Gate::none   ? ""
                        : setting.gate == Gate::head ? "a gate for each head, "
                                                     : "a gate for each feature, ";
  if (setting.gate == Gate::head) add(places.g, {tokens, layout, setting.low, 0});
  if (setting.gate == Gate::feature) {
    add(places.g, {{s.batch, s.value_heads, s.length, s.depth}, layout, setting.low, 0});
  }
  if (setting.beta) add(places.beta, {tokens, layout, 0, 1});
  const auto texts = static_cast<int64_t>(setting.texts.size()) - 1;
  if (setting.initial) {
    add(places.initial, {{texts < 0 ? s.batch : texts, s.value_heads, s.depth, s.width}, layout});
    variant += "initial state, ";
  }
  if (texts >= 0) {
    add(places.texts, {.shape = {texts + 1}, .dtype = DType::int32, .elements = setting.texts});
    variant += std::to_string(texts) + " texts, ";
  }
  if (setting.normalize) variant += "normalised, ";
  if (setting.scale) variant += "scale, ";
  if (setting.low != -1) variant += "g from " + std::to_string(int(setting.low)) + ", ";
  variant += describe(inputs[0]) + ", " + to_string(inputs[2].shape);
  const auto beta = [=](const Tensors& t) {
    return setting.beta ? t[size_t(places.beta)] : Tensor();
  };
  const OpCase common{
      .op = setting.beta ? "gated_delta_rule" : "decayed_linear_attention",
      .variant = variant,
      .inputs = inputs,
      .run =
          [=](const Tensors& t) {
            const RecurrentOptions made = options(t, setting, places);
            return results(setting.beta ? gated_delta_rule(t[0], t[1], t[2], beta(t), made)
                                        : decayed_linear_attention(t[0], t[1], t[2], made));
          },
      .reference = [=](const Arrays& t) { return expected(t, setting, places); },
      .half_rounds = setting.normalize ? 4.0 : 1.0,  // of normalised q and k too
      .half_gradient_rounds = 4,
      .half_gradient_scale = 1,
  };
  table.push_back(common);
  OpCase composed = common;
  composed.variant = "composite, " + variant;
  composed.run = [=](const Tensors& t) {
    return results(
        composite::gated_delta_rule(t[0], t[1], t[2], beta(t), options(t, setting, places)));
  };
  table.push_back(composed);
  if (!setting.beta || texts >= 0) return;
  OpCase steps = common;
  steps.op = "gated_delta_rule_step";
  steps.run = [=](const Tensors& t) {
    return results(recurrent(t, options(t, setting, places), beta(t)));
  };
  table.push_back(steps);
}

}  // namespace

void add_gated_delta_rule(OpTable& table) {
  for (const bool beta : {true, false}) {
    for (const Gate gate : {Gate::none, Gate::head, Gate::feature}) {
      const Setting plain{.gate = gate, .beta = beta};
      add_case(table, plain, {1, 1, 1, 1, 1, 1});
      add_case(table, plain, {1, 2, 2, 3, 2, 2});
      add_case(table, plain, {2, 2, 4, 4, 3, 2});
      for (const Layout layout : {heads, padded, transposed, sliced, expanded}) {
        add_case(table, plain, {1, 1, 2, 3, 2, 4}, layout);
      }
      for (const int64_t length : {63, 64, 65, 130}) {
        add_case(table, plain, {1, 1, 2, length, 5, 4});
      }
      add_case(table, plain, {1, 1, 1, 70, 33, 65});
      add_case(table, plain, {1, 1, 1, 66, 65, 33});
      add_case(table, plain, {0, 2, 2, 3, 2, 2});
      add_case(table, plain, {1, 2, 2, 0, 2, 2});
      Setting more = plain;
      more.initial = true;
      add_case(table, more, {2, 1, 2, 3, 2, 2});
      add_case(table, more, {1, 2, 2, 0, 2, 2});
      add_case(table, more, {1, 1, 2, 70, 3, 5}, heads);
      more.texts = {0, 3, 3, 70, 71};
      add_case(table, more, {1, 1, 2, 71, 3, 2});
      more.normalize = true;
      more.texts = {0, 2, 4};
      add_case(table, more, {1, 2, 2, 4, 3, 2});
      more = plain;
      more.scale = 0.5;
      add_case(table, more, {1, 2, 2, 3, 2, 2});
      if (gate == Gate::none) continue;
      more = plain;
      more.low = -50;
      add_case(table, more, {1, 1, 2, 130, 5, 4});
    }
  }
}

}  // namespace sash::testing
