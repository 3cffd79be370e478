// nn::GatedDeltaNet against its formula, token by token, training, errors.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr int64_t kDim = 12, kHeads = 2, kValueHeads = 4, kDepth = 6, kWidth = 5, kKernel = 4;

nn::GatedDeltaNet small_net(bool kimi = false) {
  return nn::GatedDeltaNet(
      kDim, kHeads,
      {.value_heads = kValueHeads, .head_dim = kDepth, .v_head_dim = kWidth, .kimi = kimi});
}

// q and k [B, S, H, D], v [B, S, H_v, D_v], g [B, S, H_v, D or 1], beta [B, S, H_v, 1].
Tensor recurrence(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                  const Tensor& beta) {
  // [B, H_v, D, 1] of token t, of length 1
  const auto at = [&](const Tensor& x, int64_t t) {
    const Tensor row = repeat_interleave(x.select(1, t), kValueHeads / kHeads, 1);
    return (row / sqrt(row.square().sum({2}, true) + 1e-6)).unsqueeze(3);
  };
  Tensor s = zeros({v.size(0), kValueHeads, kDepth, kWidth}, v.options());
  std::vector<Tensor> out;
  for (int64_t t = 0; t < v.size(1); ++t) {
    const Tensor key = at(k, t);
    s = s * exp(g.select(1, t)).unsqueeze(3);
    const Tensor error = v.select(1, t).unsqueeze(2) - matmul(key.mT(), s);
    s = s + matmul(key, error) * beta.select(1, t).unsqueeze(3);
    out.push_back(matmul(at(q, t).mT(), s).select(2, 0) / std::sqrt(double(kDepth)));
  }
  return stack(out, 1);
}

// Projections head by head, the convolution by `conv1d`, the recurrence token by token.
Tensor expected(const nn::GatedDeltaNet& net, const Tensor& x) {
  constexpr int64_t group = kValueHeads / kHeads;
  const bool kimi = net.options().kimi;
  const int64_t batch = x.size(0), length = x.size(1);
  const Tensor all = linear(x, net.in_proj_qkvz.weight), ba = linear(x, net.in_proj_ba.weight);
  std::vector<Tensor> q, k, v, z, b, a;
  int64_t at = 0, gate = 0;
  const auto next = [](const Tensor& from, int64_t& first, int64_t features) {
    return from.narrow(2, std::exchange(first, first + features), features);
  };
  for (int64_t h = 0; h < kHeads; ++h) {
    q.push_back(next(all, at, kDepth));
    k.push_back(next(all, at, kDepth));
    v.push_back(next(all, at, group * kWidth));
    if (!kimi) z.push_back(next(all, at, group * kWidth));
    b.push_back(next(ba, gate, group));
    if (!kimi) a.push_back(next(ba, gate, group));
  }
  if (kimi) {
    a.push_back(linear(linear(x, net.f_a_proj->weight), net.f_b_proj->weight));
    z.push_back(linear(linear(x, net.g_a_proj->weight), net.g_b_proj->weight, net.g_b_proj->bias));
  }
  const Tensor mixed = cat({cat(q, 2), cat(k, 2), cat(v, 2)}, 2);
  const Tensor padded = conv1d(mixed.transpose(1, 2), net.conv1d.weight, {},
                               {.padding = kKernel - 1, .groups = mixed.size(2)});
  const Tensor convolved = silu(padded.narrow(2, 0, length).transpose(1, 2));
  const auto heads_of = [&](int64_t first, int64_t heads, int64_t features) {
    return convolved.narrow(2, first, heads * features).reshape({batch, length, heads, features});
  };
  const Tensor steps = softplus(cat(a, 2) + net.dt_bias).reshape({batch, length, kValueHeads, -1});
  const Tensor out =
      recurrence(heads_of(0, kHeads, kDepth), heads_of(kHeads * kDepth, kHeads, kDepth),
                 heads_of(2 * kHeads * kDepth, kValueHeads, kWidth),
                 steps * -exp(net.A_log).unsqueeze(1), sigmoid(cat(b, 2)).unsqueeze(3));
  const Tensor normed = rms_norm(out, {kWidth}, net.norm.weight);
  const Tensor gates = cat(z, 2).reshape({batch, length, kValueHeads, kWidth});
  return linear((normed * (kimi ? sigmoid(gates) : silu(gates))).reshape({batch, length, -1}),
                net.out_proj.weight);
}

void check_formula(Device device, bool kimi) {
  manual_seed(1);
  nn::GatedDeltaNet net = small_net(kimi);
  net.to(DType::float64);
  net.to(device);
  const Tensor x = randn({2, 70, kDim}, {.dtype = DType::float64}).to(device);
  const Tensor y = net(x), wanted = expected(net, x);
  CHECK(relative_error(y, wanted) <= 1e-12);
  const Tensor g = randn(y.shape(), {.dtype = DType::float64}).to(device);
  const std::vector<Tensor> leaves = net.parameters();
  CHECK(leaves.size() == (kimi ? 12 : 7));
  const std::vector<Tensor> found = grad({y}, leaves, {g}), same = grad({wanted}, leaves, {g});
  for (size_t i = 0; i < leaves.size(); ++i) CHECK(relative_error(found[i], same[i]) <= 1e-11);
}

void check_decoding(Device device) {
  const NoGradGuard no_grad;
  manual_seed(2);
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    nn::GatedDeltaNet net = small_net(dtype == DType::bfloat16);
    net.to(dtype);
    net.to(device);
    const Tensor x = randn({2, 80, kDim}, {.dtype = dtype}).to(device);
    const Tensor all = net(x);
    nn::GatedDeltaNetCache cache;
    std::vector<Tensor> parts;
    int64_t at = 0;
    for (const int64_t count : {2, 67, 1, 1, 9}) {
      parts.push_back(net(x.narrow(1, at, count), cache));
      at += count;
      CHECK(cache.inputs.shape() ==
            Shape{2, kKernel - 1, 2 * kHeads * kDepth + kValueHeads * kWidth});
      CHECK(cache.state.s.shape() == Shape{2, kValueHeads, kDepth, kWidth});
    }
    CHECK(relative_error(cat(parts, 1), all) <= (dtype == DType::float32 ? 1e-5 : 2e-2));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("GatedDeltaNet: values and gradients of its formula", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const bool kimi : {false, true}) check_formula(On::device, kimi);
}

TEST_CASE_TEMPLATE("GatedDeltaNet: decoding with a cache equals all tokens at once", On, Cpu,
                   Cuda) {
  if (!missing(On::device)) check_decoding(On::device);
}

TEST_CASE("GatedDeltaNet: parameters have the names of Qwen3-Next") {
  nn::GatedDeltaNet net = small_net();
  const std::vector<std::pair<std::string, Shape>> wanted{
      {"A_log", {kValueHeads}},
      {"dt_bias", {kValueHeads}},
      {"in_proj_qkvz.weight", {2 * kHeads * kDepth + 2 * kValueHeads * kWidth, kDim}},
      {"in_proj_ba.weight", {2 * kValueHeads, kDim}},
      {"out_proj.weight", {kDim, kValueHeads * kWidth}},
      {"conv1d.weight", {2 * kHeads * kDepth + kValueHeads * kWidth, 1, kKernel}},
      {"norm.weight", {kWidth}}};
  const StateDict found = net.named_parameters();
  REQUIRE(found.size() == wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    CHECK(found[i].first == wanted[i].first);
    CHECK(found[i].second.shape() == wanted[i].second);
  }
  CHECK(net.describe() == "GatedDeltaNet(12, 2 heads, 4 value heads)");
  CHECK(small_net(true).describe() == "GatedDeltaNet(12, 2 heads, 4 value heads, kimi)");
}

TEST_CASE("GatedDeltaNet: decays start as in Mamba-2") {
  for (const bool kimi : {false, true}) {
    const nn::GatedDeltaNet net(64, 32, {.kimi = kimi});
    CHECK(net.dt_bias.shape() == Shape{kimi ? 64 : 32});
    const Tensor step = softplus(net.dt_bias);
    CHECK(step.min().item<double>() > 0.99e-3);
    CHECK(step.max().item<double>() < 0.101);
    CHECK(std::exp(log(step).mean().item<double>()) == doctest::Approx(0.01).epsilon(0.5));
  }
}

TEST_CASE("GatedDeltaNet: autocast and halves") {
  nn::GatedDeltaNet net = small_net();
  const Tensor x = randn({1, 9, kDim}), wanted = net(x);
  for (const DType half : {DType::float16, DType::bfloat16}) {
    const AutocastGuard guard(half);
    const Tensor y = net(x);
    CHECK(y.dtype() == half);
    CHECK(relative_error(y, wanted) <= 3e-2);
  }
}

TEST_CASE("GatedDeltaNet: learns to recall the value of a key") {
  manual_seed(3);
  nn::GatedDeltaNet net(8, 2);
  optim::Adam adam(net.parameters(), {.lr = 1e-2});
  const Tensor x = randn({4, 16, 8});
  const Tensor target = x.narrow(1, 0, 1).expand(x.shape());  // the first token, at each token
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    adam.zero_grad();
    const Tensor loss = mse_loss(net(x), target);
    loss.backward();
    adam.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  CHECK(last < 0.6 * first);
}

TEST_CASE("GatedDeltaNet: caches of other layers") {
  const NoGradGuard no_grad;
  nn::GatedDeltaNet net(8, 2);
  const auto tokens = [](int64_t batch) { return randn({batch, 5, 8}); };
  nn::GatedDeltaNetCache cache, half;
  net(tokens(1), cache);
  const Tensor inputs = cache.inputs.clone();
  half.inputs = inputs;
  const auto continued = [&](nn::GatedDeltaNet&& other) { other(tokens(1), cache); };
  const std::string wrong = "ShapeError: GatedDeltaNet: expected a cache with inputs ";
  expect_errors({
      {wrong + "[2, 3, 24], got [1, 3, 24]", [&] { net(tokens(2), cache); }},
      {wrong + "[1, 2, 24], got [1, 3, 24]",
       [&] { continued(nn::GatedDeltaNet(8, 2, {.kernel = 3})); }},
      {wrong + "[1, 4, 24], got [1, 3, 24]",
       [&] { continued(nn::GatedDeltaNet(8, 2, {.kernel = 5})); }},
      {"ShapeError: GatedDeltaNet: expected shape [1, 4, 2, 2], got [1, 2, 4, 4]",
       [&] { continued(nn::GatedDeltaNet(8, 4)); }},
      {"ValueError: GatedDeltaNet: expected a cache with inputs and a state, or neither, got one "
       "of "
       "them",
       [&] { net(tokens(1), half); }},
  });
  CHECK(all_same(cache.inputs, inputs));  // errors leave the cache as it was

  nn::MultiheadAttention dense(8, 2), delta(8, 2, {.attention = "gated_delta"});
  nn::MobaAttention moba(8, 2, {.block = 2});
  nn::KeyValueCache keys = dense.new_cache(), blocks = moba.new_cache(), state = delta.new_cache(),
                    window(AttentionMask::causal_window(3));
  const Tensor x = tokens(1);
  dense(x, keys);
  moba(x, blocks);
  delta(x, state);
  expect_errors({
      {"ValueError: in delta: GatedDeltaNet: expected its own cache, got one with keys and values",
       [&] { delta(x, keys); }},
      {"ValueError: in delta: GatedDeltaNet: expected its own cache, got one with keys and values",
       [&] { delta(x, blocks); }},
      {"ValueError: KeyValueCache: expected a cache of keys and values, got the state of a "
       "recurrence",
       [&] { dense(x, state); }},
      {"ValueError: attention_kind: expected causal or no mask for 'gated_delta:4', got "
       "'window:2,0'",
       [&] { delta(x, window); }},
      {"ValueError: attention_kind: expected causal, key_lengths or no mask for 'moba:2,top_k=3', "
       "got 'window:2,0'",
       [&] { moba(x, window); }},
      {"ValueError: KeyValueCache: expected a cache for 'moba:3,top_k=3', got one for "
       "'moba:2,top_k=3'",
       [&] { nn::MobaAttention(8, 2, {.block = 3})(x, blocks); }},
      {"ValueError: KeyValueCache: expected a cache for "
       "'nsa:2,top_k=4,window=4,first=1,neighbours=1', "
       "got one for 'moba:2,top_k=3'",
       [&] { nn::NativeSparseAttention(8, 2, {.block = 2, .top_k = 4, .window = 4})(x, blocks); }},
  });
  CHECK(window.length() == 0);
  CHECK(blocks.length() == x.size(1));
}

TEST_CASE("GatedDeltaNet: wrong calls") {
  nn::GatedDeltaNet net = small_net();
  expect_errors({
      {"ValueError: GatedDeltaNet: expected a positive dim, got 0",
       [] { nn::GatedDeltaNet(0, 1); }},
      {"ValueError: GatedDeltaNet: expected a positive number of heads, got 0",
       [] { nn::GatedDeltaNet(8, 0); }},
      {"ValueError: GatedDeltaNet: expected heads that divide dim, or a head_dim, got 3 heads and "
       "dim 8",
       [] { nn::GatedDeltaNet(8, 3); }},
      {"ValueError: GatedDeltaNet: expected value_heads that are a multiple of heads, got 3 and 2",
       [] { nn::GatedDeltaNet(8, 2, {.value_heads = 3}); }},
      {"ValueError: GatedDeltaNet: expected a positive number of value heads, got -2",
       [] { nn::GatedDeltaNet(8, 2, {.value_heads = -2}); }},
      {"ValueError: GatedDeltaNet: expected a positive head_dim, got -1",
       [] { nn::GatedDeltaNet(8, 2, {.head_dim = -1}); }},
      {"ValueError: GatedDeltaNet: expected a positive v_head_dim, got -1",
       [] { nn::GatedDeltaNet(8, 2, {.v_head_dim = -1}); }},
      {"ValueError: GatedDeltaNet: expected a positive kernel, got 0",
       [] { nn::GatedDeltaNet(8, 2, {.kernel = 0}); }},
      {"ValueError: GatedDeltaNet: expected eps > 0, got 0",
       [] { nn::GatedDeltaNet(8, 2, {.eps = 0}); }},
      {"ShapeError: GatedDeltaNet: expected a last extent of 12, got [1, 3, 8]",
       [&] {
         net(zeros({1, 3, 8}));
       }},
      {"ShapeError: GatedDeltaNet: expected 3 axes, got [3, 12]",
       [&] {
         net(zeros({3, 12}));
       }},
  });
}
