// Multi-head attention whose projections are optional and whose widths differ, trained against the
// mean squared error, against plain loops in float64; on each device.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/attention/plain_attention.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct Sizes {
  int64_t batch, heads, queries, keys, head;
};

/// y = x w' + b for rows of x; the identity if there is no w.
struct PlainLinear {
  Values w, b;
  int64_t in = 0, out = 0;
  Values dw{}, db{};

  Values forward(const Values& x) const { return w.empty() ? x : plain_linear(x, w, b); }
  /// The gradient of x; keeps those of w and b.
  Values backward(const Values& x, const Values& g) {
    if (w.empty()) return g;
    const auto i_count = static_cast<size_t>(in), o_count = static_cast<size_t>(out);
    Values dx(x.size());
    dw.assign(w.size(), 0);
    db.assign(b.size(), 0);
    for (size_t row = 0; row < x.size() / i_count; ++row) {
      for (size_t o = 0; o < o_count; ++o) {
        const double go = g[row * o_count + o];
        db[o] += go;
        for (size_t i = 0; i < i_count; ++i) {
          dw[o * i_count + i] += go * x[row * i_count + i];
          dx[row * i_count + i] += go * w[o * i_count + i];
        }
      }
    }
    return dx;
  }
};

/// Rows [B, S, H D] as heads [B, H, S, D].
Array heads_of(const Values& rows, int64_t batch, int64_t heads, int64_t head) {
  const auto length = static_cast<int64_t>(rows.size()) / (batch * heads * head);
  return generate({batch, heads, length, head}, [&](const Index& at) {
    return rows[static_cast<size_t>(((at[0] * length + at[2]) * heads + at[1]) * head + at[3])];
  });
}
Values rows_of(const Array& heads) { return transpose(heads, 1, 2).values; }

void append(Values& to, const Values& more) { to.insert(to.end(), more.begin(), more.end()); }

struct Problem {
  Sizes sizes;
  int64_t dim;
  nn::MultiheadAttentionOptions options;
  std::vector<int32_t> lengths{};  // of the keys; none: all
};

using Results = std::map<std::string, Values>;

constexpr uint64_t kSeed = 77;

/// Module and inputs, of numbers that float32 holds, in float64 on the CPU.
struct Setup {
  Problem problem;
  nn::MultiheadAttention module;
  Tensor q, k, v, target;

  explicit Setup(const Problem& p) : problem(p), module(p.dim, p.sizes.heads, p.options) {
    const auto& [batch, heads, queries, keys, head] = p.sizes;
    const nn::MultiheadAttentionOptions& o = p.options;
    const int64_t value = o.v_head_dim > 0 ? o.v_head_dim : head;
    const auto width = [&](bool projected, int64_t own, int64_t features) {
      return projected ? (own > 0 ? own : p.dim) : p.sizes.heads * features;
    };
    const auto numbers = [](const Shape& shape) {
      return randn(shape, {.dtype = DType::float32, .device = kCPU}).to(DType::float64);
    };
    q = numbers({batch, queries, width(o.q_proj, p.dim, head)});
    k = numbers({batch, keys, width(o.k_proj, o.kdim, head)});
    v = numbers({batch, keys, width(o.v_proj, o.vdim, value)});
    target = numbers({batch, queries, o.out_proj ? p.dim : heads * value});
    module.to(DType::float64);
    module.to(kCPU);
    for (auto& [name, parameter] : module.state_dict()) {
      const double scale = parameter.rank() == 2 ? std::sqrt(1.0 / double(parameter.size(1))) : 0.5;
      parameter.copy_((numbers(parameter.shape()) * scale).to(DType::float32));
    }
  }

  AttentionMask mask(Device device) const {
    if (problem.lengths.empty()) return {};
    const auto count = static_cast<int64_t>(problem.lengths.size());
    return AttentionMask::key_lengths(tensor(problem.lengths, {count}, {.device = device}));
  }

  /// Output and all gradients by the module.
  Results run(DType dtype, Device device) {
    module.to(dtype);
    module.to(device);
    module.zero_grad();
    const auto variable = [&](const Tensor& x) {
      return x.to(dtype).to(device).detach().requires_grad_();
    };
    const Tensor x[3] = {variable(q), variable(k), variable(v)};
    manual_seed(kSeed);
    const Tensor y = module(x[0], x[1], x[2], mask(device));
    mse_loss(y, target.to(dtype).to(device)).backward();
    Results found{{"out", y.to_vector<double>()},
                  {"dq", x[0].grad().to_vector<double>()},
                  {"dk", x[1].grad().to_vector<double>()},
                  {"dv", x[2].grad().to_vector<double>()}};
    for (const auto& [name, parameter] : module.named_parameters()) {
      found[name] = parameter.grad().to_vector<double>();
    }
    module.to(kCPU);
    module.to(DType::float64);
    return found;
  }

  /// The same by plain loops.
  Results expected() const {
    const auto& [batch, heads, queries, keys, head] = problem.sizes;
    const int64_t value = module.v_head_dim();
    int64_t row = 0;
    const auto linear_of = [&](bool present, const Tensor& own, int64_t out, int64_t in) {
      PlainLinear f{.w = {}, .b = {}, .in = in, .out = out};
      if (!present) return f;
      const Tensor packed = module.in_proj_weight;
      f.w = (own.defined() ? own : packed.narrow(0, row, out)).to_vector<double>();
      f.b = module.in_proj_bias.narrow(0, row, out).to_vector<double>();
      row += out;
      return f;
    };
    const nn::MultiheadAttentionOptions& o = problem.options;
    PlainLinear to_q = linear_of(o.q_proj, module.q_proj_weight, heads * head, q.size(2));
    PlainLinear to_k = linear_of(o.k_proj, module.k_proj_weight, heads * head, k.size(2));
    PlainLinear to_v = linear_of(o.v_proj, module.v_proj_weight, heads * value, v.size(2));
    PlainLinear last{.w = {}, .b = {}, .in = heads * value, .out = problem.dim};
    if (o.out_proj) {
      last.w = module.out_proj.weight.to_vector<double>();
      last.b = module.out_proj.bias.to_vector<double>();
    }
    const Values x[3] = {q.to_vector<double>(), k.to_vector<double>(), v.to_vector<double>()};
    AttentionProblem attention;
    attention.q = heads_of(to_q.forward(x[0]), batch, heads, head);
    attention.k = heads_of(to_k.forward(x[1]), batch, heads, head);
    attention.v = heads_of(to_v.forward(x[2]), batch, heads, value);
    attention.scale = 1 / std::sqrt(static_cast<double>(head));
    attention.dropout = o.dropout;
    attention.seed = kSeed;
    if (!problem.lengths.empty()) {
      attention.sees = [this](const MaskIndex& at) {
        return at.key < problem.lengths[static_cast<size_t>(at.batch)];
      };
    }
    const Values merged = rows_of(solve(attention).out), out = last.forward(merged);
    const Values wanted = target.to_vector<double>();
    Values g(out.size());
    for (size_t i = 0; i < g.size(); ++i) {
      g[i] = 2 * (out[i] - wanted[i]) / static_cast<double>(g.size());
    }
    attention.g = heads_of(last.backward(merged, g), batch, heads, value);
    const AttentionAnswer answer = solve(attention);
    Results all{{"out", out},
                {"dq", to_q.backward(x[0], rows_of(answer.dq))},
                {"dk", to_k.backward(x[1], rows_of(answer.dk))},
                {"dv", to_v.backward(x[2], rows_of(answer.dv))}};
    const bool packed = module.in_proj_weight.defined();
    const std::pair<const char*, const PlainLinear*> parts[] = {
        {"q_proj_weight", &to_q}, {"k_proj_weight", &to_k}, {"v_proj_weight", &to_v}};
    for (const auto& [name, part] : parts) {
      if (part->w.empty()) continue;
      append(all[packed ? "in_proj_weight" : name], part->dw);
      append(all["in_proj_bias"], part->db);
    }
    if (o.out_proj) {
      all["out_proj.weight"] = last.dw;
      all["out_proj.bias"] = last.db;
    }
    return all;
  }
};

/// The largest error over the largest element.
double error_of(const Values& found, const Values& expected) {
  REQUIRE(found.size() == expected.size());
  double error = 0, largest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    error = std::max(error, std::abs(found[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
    if (std::isnan(found[i])) return HUGE_VAL;
  }
  return largest == 0 ? error : error / largest;
}

void check_results(const Results& found, const Results& expected, double tolerance) {
  for (const auto& result : expected) {
    CAPTURE(result.first);
    REQUIRE(found.count(result.first) == 1);
    CHECK(error_of(found.at(result.first), result.second) <= tolerance);
  }
  CHECK(found.size() == expected.size());
}

void check_problem(const std::string& what, const Problem& problem, Device device) {
  CAPTURE(what);
  Setup setup(problem);
  const Results expected = setup.expected();
  check_results(setup.run(DType::float64, device), expected, 1e-11);
  check_results(setup.run(DType::float32, device), expected, 1e-5);
}

const Sizes kSmall{2, 3, 4, 5, 6}, kOther{4, 5, 6, 7, 8};

}  // namespace

TEST_CASE_TEMPLATE("multi-head attention: against plain loops, all gradients", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(31);
  for (const Sizes& sizes : {kSmall, kOther}) {
    const int64_t dim = sizes.heads * sizes.head;
    const auto check = [&](const std::string& what, const nn::MultiheadAttentionOptions& options) {
      check_problem(what, {sizes, dim, options}, On::device);
    };
    check("packed", {});
    check("keys and values of other widths", {.kdim = 10, .vdim = 7});
    check("values with wider heads", {.v_head_dim = sizes.head + 3});
    check("no projection of queries", {.q_proj = false});
    check("no projection of keys", {.kdim = 0, .k_proj = false});
    check("no projection of values", {.v_proj = false});
    check("no last projection", {.out_proj = false});
    check("no projections",
          {.v_head_dim = 5, .q_proj = false, .k_proj = false, .v_proj = false, .out_proj = false});
    check("dropout", {.dropout = 0.4, .kdim = 9});
  }
  // Heads whose features do not make up dim.
  const auto check = [&](const std::string& what, int64_t dim,
                         const nn::MultiheadAttentionOptions& options,
                         const std::vector<int32_t>& lengths) {
    check_problem(what, {kSmall, dim, options, lengths}, On::device);
  };
  check("head_dim", 11, {.head_dim = 6}, {});
  check("head_dim and v_head_dim", 11, {.head_dim = 6, .v_head_dim = 2}, {});
  check("padding", 18, {}, {2, 5});
  check("padding, one item of nothing else", 18, {.dropout = 0.5}, {5, 0});
}

TEST_CASE_TEMPLATE("multi-head attention: 8 x 4 heads of 64, 128 queries and keys, against float64",
                   On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(32);
  Setup setup({{short_tests() ? 2 : 8, 4, 128, 128, 64}, 256, {}});
  const Results expected = setup.run(DType::float64, kCPU);
  check_results(setup.run(DType::float32, On::device), expected, 1e-5);
}

TEST_CASE_TEMPLATE("multi-head attention: the weights are those of the result", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(33);
  const TensorOptions options{.dtype = DType::float64, .device = On::device};
  nn::MultiheadAttention m(12, 6, {.dropout = 0.3, .kv_heads = 2, .kdim = 5, .v_head_dim = 3});
  m.to(DType::float64);
  m.to(On::device);
  const Tensor q = randn({2, 4, 12}, options), k = randn({2, 7, 5}, options),
               v = randn({2, 7, 12}, options);
  const AttentionMask mask =
      AttentionMask::key_lengths(tensor(std::vector<int32_t>{7, 3}, {2}, {.device = On::device}));
  manual_seed(1);
  const Tensor y = m(q, k, v, mask);
  manual_seed(1);
  const nn::AttentionWithWeights each = m.forward_with_weights(q, k, v, mask, false);
  CHECK(largest_difference(each.out, y) < 1e-12);
  CHECK(each.weights.shape() == Shape{2, 6, 4, 7});
  m.eval();
  const nn::AttentionWithWeights mean = m.forward_with_weights(q, k, v, mask);
  CHECK(mean.weights.shape() == Shape{2, 4, 7});
  CHECK(largest_difference(mean.weights.sum({2}), ones({2, 4}, options)) < 1e-12);
  CHECK(all_equal(mean.weights.select(0, 1).narrow(1, 3, 4), 0));
  CHECK(largest_difference(mean.out, m(q, k, v, mask)) < 1e-12);
  // A bool tensor of the keys that may be seen is padding too.
  const Tensor visible =
      lt(arange(0, 7, 1, {.device = On::device}).view({1, 1, 1, 7}),
         tensor(std::vector<int64_t>{7, 3}, {2, 1, 1, 1}, {.device = On::device}));
  CHECK(largest_difference(m(q, k, v, AttentionMask(visible)), mean.out) < 1e-12);
}

TEST_CASE("multi-head attention: a cache of keys and values, with heads of different widths") {
  manual_seed(34);
  const NoGradGuard no_grad;
  nn::MultiheadAttention m(10, 4, {.kv_heads = 2, .head_dim = 3, .v_head_dim = 5});
  m.to(DType::float64);
  const Tensor x = randn({2, 6, 10}, {.dtype = DType::float64});
  const Tensor all = m(x, AttentionMask::causal());
  CHECK(largest_difference(m(x, x, x, AttentionMask::causal()), all) == 0);
  nn::KeyValueCache cache = m.new_cache();
  for (int64_t i = 0; i < 6; ++i) {
    CHECK(largest_difference(m(x.narrow(1, i, 1), cache), all.narrow(1, i, 1)) < 1e-12);
  }
}

TEST_CASE("multi-head attention: keys of the state dictionary") {
  using Names = std::vector<std::string>;
  CHECK(keys(nn::MultiheadAttention(8, 2, {.kdim = 3})) ==
        Names{"q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "out_proj.weight",
              "out_proj.bias"});
  CHECK(keys(nn::MultiheadAttention(8, 2, {.bias = false, .k_proj = false, .out_proj = false})) ==
        Names{"q_proj_weight", "v_proj_weight"});
  const nn::MultiheadAttention m(
      8, 4, {.kv_heads = 2, .kdim = 3, .vdim = 5, .head_dim = 6, .v_head_dim = 7});
  CHECK(m.q_proj_weight.shape() == Shape{24, 8});
  CHECK(m.k_proj_weight.shape() == Shape{12, 3});
  CHECK(m.v_proj_weight.shape() == Shape{14, 5});
  CHECK(m.in_proj_bias.shape() == Shape{50});
  CHECK(m.out_proj.weight.shape() == Shape{8, 28});
  CHECK(!m.in_proj_weight.defined());
  CHECK(m.describe() ==
        "MultiheadAttention(8, heads 4, kv_heads 2, head_dim 6, v_head_dim 7, kdim 3, vdim 5)");
}

TEST_CASE("multi-head attention: errors of widths") {
  nn::MultiheadAttention m(8, 2, {.kdim = 3, .v_proj = false});
  const Tensor q = zeros({1, 2, 8}), k = zeros({1, 4, 3});
  expect_errors({
      {"ValueError: MultiheadAttention: expected kdim of at least 0, got -1",
       [] { nn::MultiheadAttention(8, 2, {.kdim = -1}); }},
      {"ShapeError: MultiheadAttention: expected k of shape [B, S, 3], got [1, 2, 8]",
       [&] { m(q, q, q); }},
      {"ShapeError: MultiheadAttention: expected v of shape [B, S, 8], got [1, 4, 3]",
       [&] { m(q, k, k); }},
      {"ShapeError: MultiheadAttention: expected k of shape [B, S, 3], got [1, 2, 8]",
       [&] { m(q); }},
      {"ShapeError: MultiheadAttention: expected k and v of one length and q of their batch size, "
       "got [1, 2, 8], [1, 4, 3] and [1, 2, 8]",
       [&] { m(q, k, q); }},
      {"NotImplemented: MultiheadAttention: linear attention returns no weights",
       [] {
         const Tensor x = zeros({1, 2, 8});
         nn::MultiheadAttention(8, 2, {.attention = "linear"}).forward_with_weights(x, x, x);
       }},
      {"ValueError: LongformerAttention: expected packed projections for global_projections, got "
       "separate or missing ones",
       [] { nn::LongformerAttention(8, 2, {}, {.kdim = 3}); }},
  });
}
