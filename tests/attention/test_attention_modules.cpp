#include <doctest/doctest.h>

#include <sash/nn/attention/bigbird_attention.h>
#include <sash/nn/attention/longformer_attention.h>
#include <sash/nn/attention/position_bias.h>
#include <sash/nn/attention/window_attention.h>
#include <sash/nn/init.h>
#include <sash/nn/models/transformer.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/autograd/gradcheck.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <algorithm>
#include <cmath>

#include "../support/attention/plain_attention.h"
#include "../support/expect_error.h"
#include "../support/op_inputs.h"

/// Attention modules against plain loops, in float64.
using namespace sash;
using namespace sash::testing;

namespace {

const TensorOptions kDouble{.dtype = DType::float64};

// Random weights, biases and tables, in float64.
template <class M>
M randomised(M module) {
  module.to(DType::float64);
  for (auto& [name, p] : module.state_dict()) p.copy_(randn(p.shape(), kDouble) * 0.7);
  return module;
}

AttentionProblem seeing(Sees sees) {
  AttentionProblem problem;
  problem.sees = std::move(sees);
  return problem;
}

// What a dense mask shows.
AttentionProblem seeing(const nn::MultiheadAttention& m, const AttentionMask& mask, int64_t s) {
  const Tensor dense = mask.to_dense({1, m.heads(), s, s}).expand({1, m.heads(), s, s});
  return seeing([=, cells = dense.to_vector<bool>()](const MaskIndex& at) {
    return bool(cells[size_t((at.head * s + at.query) * s + at.key)]);
  });
}

// Every gradient of a module, and that of its input [1, S, dim].
GradcheckReport check_gradients(nn::MultiheadAttention& module, int64_t s,
                                const AttentionMask& mask = {}) {
  std::vector<Tensor> inputs{randn({1, s, module.dim()}, kDouble).requires_grad_()};
  for (const Tensor& p : module.parameters()) inputs.push_back(p);
  return gradcheck([&](const std::vector<Tensor>& in) { return module(in[0], mask); }, inputs);
}

}  // namespace

TEST_CASE("keys of attention modules") {
  const Names plain{"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"};
  const Names relative{"in_proj_weight", "in_proj_bias", "relative_bias", "out_proj.weight",
                       "out_proj.bias"};
  CHECK(keys(nn::MultiheadAttention(8, 4, {.kv_heads = 2, .softcap = 5, .alibi = true})) == plain);
  CHECK(keys(nn::MultiheadAttention(8, 4, {.relative_positions = 3})) == relative);
  CHECK(keys(nn::WindowAttention(8, 2, {.left = 3, .right = 0})) == plain);
  CHECK(keys(nn::BigBirdAttention(8, 2)) == plain);
  CHECK(keys(nn::LongformerAttention(8, 2, {.global_projections = false})) == plain);
  Names longformer = plain;
  for (const char* name : {"query_global", "key_global", "value_global"}) {
    longformer.push_back(std::string(name) + ".weight");
    longformer.push_back(std::string(name) + ".bias");
  }
  CHECK(keys(nn::LongformerAttention(8, 2)) == longformer);
  CHECK(keys(nn::LongformerAttention(8, 2, {}, {.bias = false})) ==
        Names{"in_proj_weight", "out_proj.weight", "query_global.weight", "key_global.weight",
              "value_global.weight"});
  const nn::MultiheadAttention grouped(8, 4, {.kv_heads = 2, .relative_positions = 3});
  CHECK(grouped.in_proj_weight.shape() == Shape{16, 8});
  CHECK(grouped.in_proj_bias.shape() == Shape{16});
  CHECK(grouped.relative_bias.to_vector<float>() == std::vector<float>(28, 0.0f));
  CHECK(nn::LongformerAttention(8, 4, {}, {.kv_heads = 1}).key_global->weight.shape() ==
        Shape{2, 8});
}

TEST_CASE("a window, grouped heads, a softcap, slopes and relative positions against plain loops") {
  manual_seed(1);
  const int64_t s = 9;
  auto m = randomised(nn::MultiheadAttention(12, 6,
                                             {.attention = "window:3,1",
                                              .kv_heads = 2,
                                              .softcap = 2,
                                              .alibi = true,
                                              .relative_positions = 2}));
  AttentionProblem problem =
      seeing([](const MaskIndex& at) { return at.key + 3 >= at.query && at.key <= at.query + 1; });
  problem.softcap = 2;
  problem.relative_bias = to_array(m.relative_bias);
  for (int h = 1; h <= 6; ++h) problem.slopes.push_back(std::exp2(-8.0 * h / 6));
  const Tensor x = randn({1, s, 12}, kDouble);
  // Slopes are float32.
  CHECK(largest_difference(m(x), plain_module(x, m, problem)) < 1e-6);
  CHECK(check_gradients(m, 5).ok);
  // A mask for the call narrows the module's own.
  problem.sees = [](const MaskIndex& at) { return at.key + 3 >= at.query && at.key <= at.query; };
  const Tensor narrowed = plain_module(x, m, problem);
  CHECK(largest_difference(m(x, AttentionMask::causal()), narrowed) < 1e-6);
  // Queries of their own go through the same projection, and stand at the last keys.
  const Tensor last = m(x.narrow(1, 6, 3), x, x, AttentionMask::causal());
  CHECK(largest_difference(last, narrowed.narrow(1, 6, 3)) < 1e-6);
}

TEST_CASE("sink logits: a parameter of the module") {
  manual_seed(3);
  auto m = randomised(
      nn::MultiheadAttention(8, 4, {.attention = "causal", .kv_heads = 2, .sink_logits = true}));
  CHECK(keys(m).size() == 5);
  CHECK(nn::MultiheadAttention(8, 4, {.sink_logits = true}).sink_logits.to_vector<float>() ==
        std::vector<float>(4, 0.0f));
  AttentionProblem problem = seeing([](const MaskIndex& at) { return at.key <= at.query; });
  problem.sink_logits = m.sink_logits.to_vector<double>();
  const Tensor x = randn({1, 6, 8}, kDouble);
  CHECK(largest_difference(m(x), plain_module(x, m, problem)) < 1e-12);
  CHECK(check_gradients(m, 5).ok);
  const nn::TransformerEncoder encoder({.dim = 8, .heads = 2, .layers = 1, .sink_logits = true});
  CHECK(keys(encoder)[2] == "layers.0.self_attn.sink_logits");
  expect_error<ShapeError>("attention: expected sink logits [2], one per head, got [3]", [] {
    const Tensor q = zeros({1, 2, 3, 4});
    attention(q, q, q, {.sink_logits = zeros({3})});
  });
  expect_error<DTypeError>("attention: expected a floating dtype, got int64", [] {
    const Tensor q = zeros({1, 1, 3, 4});
    attention(q, q, q, {.sink_logits = zeros({1}, {.dtype = DType::int64})});
  });
}

TEST_CASE("alibi_slopes are powers of two, position_bias is what attention adds") {
  CHECK(nn::alibi_slopes(4).to_vector<float>() ==
        std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f});
  manual_seed(2);
  const Tensor q = randn({2, 4, 3, 5}, kDouble), k = randn({2, 4, 7, 5}, kDouble);
  const Tensor table = randn({4, 5}, kDouble), slopes = nn::alibi_slopes(4);
  const Tensor added = attention(q, k, k, {.relative_bias = table, .alibi_slopes = slopes});
  const auto with_bias = [&](const Tensor& relative, const Tensor& alibi) {
    return nn::position_bias(relative, alibi, {4, 5, 6}, {0, 1, 2, 3, 4, 5, 6});
  };
  const Tensor bias = with_bias(table, slopes);
  CHECK(bias.shape() == Shape{1, 4, 3, 7});
  CHECK(largest_difference(attention(q, k, k, {.bias = bias}), added) < 1e-12);
  CHECK(largest_difference(with_bias(table, {}) + with_bias({}, slopes).to(DType::float64), bias) <
        1e-12);
  CHECK(!with_bias({}, {}).defined());
}

TEST_CASE("relative positions get their gradient from a cache that has turned") {
  manual_seed(4);
  nn::MultiheadAttention m(8, 2, {.attention = "causal_window:3", .relative_positions = 2});
  nn::init::normal_(m.relative_bias);
  m.requires_grad_(false);
  m.relative_bias.requires_grad_(true);
  const Tensor x = randn({1, 6, 8}), g = randn({1, 6, 8});
  const Tensor want = grad({m(x)}, {m.relative_bias}, {g})[0];
  nn::KeyValueCache cache = m.new_cache();
  for (int64_t i = 0; i < 6; ++i) m(x.narrow(1, i, 1), cache).backward(g.narrow(1, i, 1));
  CHECK(largest_difference(m.relative_bias.grad(), want) < 1e-5);
}

TEST_CASE("window and BigBird modules are attention under their masks") {
  manual_seed(3);
  const Tensor x = randn({1, 11, 8}, kDouble);
  const auto check = [&](nn::MultiheadAttention& m, const AttentionMask& mask) {
    CHECK(m.mask().to_string() == mask.to_string());
    CHECK(largest_difference(m(x), plain_module(x, m, seeing(m, mask, 11))) < 1e-12);
    const GradcheckReport report = check_gradients(m, 5);
    CHECK_MESSAGE(report.ok, report.message());
  };
  auto window = randomised(nn::WindowAttention(8, 2, {.left = 2, .right = 1}));
  check(window, AttentionMask::window(2, 1));
  auto open = randomised(nn::WindowAttention(8, 2, {.right = 1}));
  check(open, AttentionMask::window(std::nullopt, 1));
  auto causal = randomised(nn::WindowAttention(8, 2, nn::AttentionWindow::causal(3)));
  check(causal, AttentionMask::causal_window(3));
  auto symmetric =
      randomised(nn::WindowAttention(8, 2, nn::AttentionWindow::symmetric(2), {.kv_heads = 1}));
  check(symmetric, AttentionMask::symmetric_window(2));
  const BigBirdOptions blocks{.block = 2, .window = 1, .global = 1, .random = 1, .seed = 3};
  auto bigbird = randomised(nn::BigBirdAttention(8, 2, blocks));
  check(bigbird, AttentionMask::bigbird(blocks));
  // The mask of the options narrows the module's.
  auto both =
      randomised(nn::WindowAttention(8, 2, {.left = 4, .right = 4}, {.attention = "causal"}));
  const AttentionProblem problem = seeing(both, AttentionMask::window(4, 0), 11);
  CHECK(largest_difference(both(x), plain_module(x, both, problem)) < 1e-12);
}

TEST_CASE("attention modules without keys give the bias of their last projection") {
  manual_seed(6);
  const TensorOptions boolean{.dtype = DType::boolean};
  nn::BigBirdAttention bigbird(8, 2, {.block = 2});
  nn::WindowAttention window(8, 2, {.left = 1, .right = 1});
  nn::MultiheadAttention attention(8, 2);
  const Tensor q = randn({2, 5, 8}), none = zeros({2, 0, 8});
  const AttentionMask sparse = AttentionMask::block_sparse(zeros({3, 0}, boolean), 2);
  const std::vector<std::pair<nn::MultiheadAttention*, AttentionMask>> cases{
      {&bigbird, {}}, {&window, {}}, {&attention, sparse}, {&bigbird, sparse}};
  for (const auto& c : cases) {
    nn::MultiheadAttention* const module = c.first;
    CAPTURE(module->describe());
    Tensor bias = module->out_proj.bias;
    {
      const NoGradGuard no_grad;
      bias.copy_(randn({8}));
    }
    const Tensor y = module->forward(q, none, none, c.second);
    CHECK(largest_difference(y, bias.expand({2, 5, 8})) == 0);
    y.sum().backward();
    CHECK(largest_difference(bias.grad(), full({8}, 10)) == 0);
    bias.zero_grad();
    CHECK(module->forward(none, none, none, {}).shape() == Shape{2, 0, 8});
  }
}

TEST_CASE("Longformer with global projections against plain loops") {
  manual_seed(4);
  const int64_t s = 10;
  auto m = randomised(
      nn::LongformerAttention(12, 3, {.window = 1, .global = {0, 6}, .dilations = {1, 2, 3}}));
  const Tensor x = randn({1, s, 12}, kDouble);
  const Values in = x.to_vector<double>();
  Values rows = plain_rows(
      in, m, seeing([](const MaskIndex& at) {
        const int64_t distance = std::abs(at.key - at.query);  // the dilation of head h is h + 1
        return at.key == 0 || at.key == 6 || distance == 0 || distance == at.head + 1;
      }));
  const Values global =
      plain_heads(plain_linear(in, *m.query_global), plain_linear(in, *m.key_global),
                  plain_linear(in, *m.value_global), m);
  for (const std::ptrdiff_t i : {0, 6}) {
    std::copy_n(global.begin() + 12 * i, 12, rows.begin() + 12 * i);
  }
  CHECK(largest_difference(m(x), tensor(plain_linear(rows, m.out_proj), x.shape())) < 1e-12);
  CHECK(largest_difference(m(x, x, x), m(x)) == 0);
  const GradcheckReport report = check_gradients(m, 7);
  CHECK_MESSAGE(report.ok, report.message());
}

TEST_CASE("a call's mask applies to the global rows of a Longformer") {
  manual_seed(5);
  auto m = randomised(nn::LongformerAttention(8, 2, {.window = 2, .global = {1}}));
  const Tensor x = randn({2, 9, 8}, kDouble);
  const AttentionMask padding = AttentionMask::key_lengths(tensor<int32_t>({9, 6}));
  const Tensor y = m(x, padding);
  CHECK(largest_difference(y.narrow(0, 0, 1), m(x.narrow(0, 0, 1))) < 1e-12);
  const Tensor shorter = m(x.narrow(0, 1, 1).narrow(1, 0, 6));
  CHECK(largest_difference(y.narrow(0, 1, 1).narrow(1, 0, 6), shorter) < 1e-12);
  const GradcheckReport report = check_gradients(m, 6, AttentionMask::causal());
  CHECK_MESSAGE(report.ok, report.message());
}

TEST_CASE("a new Longformer computes the same with and without global projections") {
  manual_seed(6);
  nn::LongformerAttention own(8, 2, {.window = 2, .global = {0, 3}});
  nn::LongformerAttention shared(8, 2,
                                 {.window = 2, .global = {0, 3}, .global_projections = false});
  shared.load_state_dict(own.state_dict(), false);
  const Tensor x = randn({2, 9, 8});
  CHECK(largest_difference(own(x), shared(x)) < 1e-6);
  const Tensor expected = plain_module(x.narrow(0, 0, 1).to(DType::float64), shared,
                                       seeing(shared, AttentionMask::parse("longformer:2,0,3"), 9));
  CHECK(largest_difference(shared(x).narrow(0, 0, 1), expected) < 1e-5);
  Tensor(*find(own.state_dict(), "query_global.weight")).mul_(2);
  const Tensor difference = own(x) - shared(x);
  CHECK(largest_difference(difference.narrow(1, 1, 2), zeros({2, 2, 8})) < 1e-6);
  CHECK(largest_difference(difference.narrow(1, 3, 1), zeros({2, 1, 8})) > 1e-3);
}

TEST_CASE("layers take their mask as text") {
  manual_seed(7);
  nn::TransformerOptions options{.dim = 8, .heads = 4, .dropout = 0, .kv_heads = 2, .alibi = true};
  nn::TransformerEncoderLayer dense(options);
  options.attention = "causal_window:3 | sinks:1 & causal";
  nn::TransformerEncoderLayer windowed(options);
  windowed.load_state_dict(dense.state_dict());
  const Tensor x = randn({2, 9, 8});
  const AttentionMask mask = AttentionMask::parse(options.attention);
  CHECK(largest_difference(windowed(x), dense(x, mask)) == 0);
  CHECK(largest_difference(windowed(x), dense(x)) > 1e-3);
  CHECK(windowed.self_attn.mask().to_string() == mask.to_string());
}

TEST_CASE("slopes are cast with their module and are not in its state") {
  manual_seed(8);
  nn::MultiheadAttention attention(8, 2, {.alibi = true});
  const Tensor x = randn({1, 6, 8});
  const Tensor y = attention(x);
  attention.to(DType::float64);
  CHECK(largest_difference(attention(x.to(DType::float64)), y) < 1e-5);
}

TEST_CASE("attention modules print what they see") {
  const auto line = [](const nn::Module& module) { return module.describe(); };
  CHECK(line(nn::MultiheadAttention(8, 2)) == "MultiheadAttention(8, heads 2)");
  CHECK(line(nn::MultiheadAttention(8, 4,
                                    {.dropout = 0.5,
                                     .attention = "causal",
                                     .kv_heads = 2,
                                     .softcap = 3,
                                     .alibi = true,
                                     .relative_positions = 7})) ==
        "MultiheadAttention(8, heads 4, kv_heads 2, causal, softcap 3, alibi, relative positions "
        "7, dropout 0.5)");
  CHECK(line(nn::WindowAttention(8, 2, {.left = 4, .right = 0})) ==
        "WindowAttention(8, heads 2, window:4,0)");
  CHECK(line(nn::LongformerAttention(8, 2, {.window = 4})) ==
        "LongformerAttention(8, heads 2, window:4,4 | global:0)");
}

TEST_CASE("wrong calls: attention modules") {
  using Options = nn::MultiheadAttentionOptions;
  const auto make = [](const Options& options) { nn::MultiheadAttention(8, 4, options); };
  expect_error<ValueError>("MultiheadAttention: expected heads divisible by kv_heads, got 4 and 3",
                           [&] { make({.kv_heads = 3}); });
  expect_error<ValueError>("MultiheadAttention: expected kv_heads of at least 0, got -1",
                           [&] { make({.kv_heads = -1}); });
  expect_error<ValueError>("MultiheadAttention: expected a finite softcap of at least 0, got -2",
                           [&] { make({.softcap = -2}); });
  expect_error<ValueError>("MultiheadAttention: expected relative_positions of at least 0, got -1",
                           [&] { make({.relative_positions = -1}); });
  CHECK_THROWS_WITH_AS(make({.attention = "windw:3,0"}), doctest::Contains("'windw:3,0'"),
                       ValueError);
  CHECK_THROWS_AS(nn::TransformerEncoderLayer({.dim = 8, .heads = 2, .attention = "window:1"}),
                  ValueError);
  CHECK_THROWS_AS(nn::WindowAttention(8, 2, {.left = -1}), ValueError);
  CHECK_THROWS_AS(nn::WindowAttention(8, 2, nn::AttentionWindow::causal(0)), ValueError);
  CHECK_THROWS_AS(nn::BigBirdAttention(8, 2, {.window = 2}), ValueError);
  CHECK_THROWS_AS(nn::LongformerAttention(8, 2, {.window = -1}), ValueError);
  CHECK_THROWS_AS(nn::LongformerAttention(8, 2, {.global = {-1}}), ValueError);
  expect_error<ValueError>("LongformerAttention: expected a dilation for each of 2 heads, got 3",
                           [] {
                             nn::LongformerAttention(8, 2, {.dilations = {1, 2, 3}});
                           });
  nn::LongformerAttention longformer(8, 2);
  const Tensor x = zeros({1, 4, 8}), y = zeros({1, 4, 8});
  expect_error<ValueError>(
      "LongformerAttention: expected self-attention, as global projections need, got other keys or "
      "values than queries",
      [&] { longformer(x, y, y); });
  expect_error<ShapeError>("LongformerAttention: expected x of shape [B, S, 8], got [4, 8]", [&] {
    longformer(zeros({4, 8}));
  });
  nn::KeyValueCache cache;
  expect_error<NotImplemented>(
      "LongformerAttention: it takes no cache with global projections, which see later tokens",
      [&] { longformer(x, cache); });
}
