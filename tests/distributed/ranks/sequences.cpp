#include <doctest/doctest.h>
#include <sash/core/error.h>
#include <sash/nn/attention/multihead_attention.h>
#include <sash/nn/attention/sequence_parallel.h>
#include <sash/nn/models/decoder.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/ops/shape/concat.h>
#include <sash/optim/data_parallel.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <string>
#include <vector>

#include "../../support/expect_error.h"

using namespace sash;
using distributed::Group;
using distributed::world;

namespace {

constexpr int64_t kLength = 12;  // tokens of a rank

// Tensors of the whole sequence, the same on all ranks.
struct Whole {
  Tensor q, k, v, g;

  explicit Whole(int ranks) {
    Generator generator(uint64_t{17});
    const GeneratorGuard guard(generator);
    const int64_t total = ranks * kLength;
    const TensorOptions options{.dtype = DType::float64};
    q = randn({2, 4, total, 8}, options);
    k = randn({2, 2, total, 8}, options);
    v = randn({2, 2, total, 6}, options);
    g = randn({2, 4, total, 6}, options);
  }
};

Tensor leaf(const Tensor& x) { return x.detach().clone().requires_grad_(); }

double distance(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  return (a.detach() - b.detach()).abs().max().to(DType::float64).item<double>();
}

std::vector<AttentionMask> masks() {
  const AttentionMask causal = AttentionMask::causal();
  return {AttentionMask::causal_window(5),
          AttentionMask::causal_window(1),
          AttentionMask::causal_window(kLength + 1),
          AttentionMask::causal_window(2 * kLength + 5),
          causal,
          AttentionMask(),
          AttentionMask::window(3, 2),
          AttentionMask::window(0, 4),
          AttentionMask::window(kLength + 3, 2 * kLength - 1),
          AttentionMask::window({}, 3),
          AttentionMask::window(2, {}),
          (AttentionMask::causal_window(4) | AttentionMask::sinks(3)) & causal,
          (AttentionMask::causal_window(6) | AttentionMask::sinks(kLength + 2)) & causal,
          AttentionMask::global({0, 7}) | AttentionMask::window(2, 2),
          AttentionMask::dilated_window(3, 2, 2)};
}

}  // namespace

TEST_CASE("sequences: attention of the stretches is that of the sequence") {
  const Group all = world();
  const Whole whole(all.size());
  const nn::SequenceParallel split(all, kLength);
  for (const AttentionMask& mask : masks()) {
    CAPTURE(mask.to_string());
    const Tensor q = leaf(whole.q), k = leaf(whole.k), v = leaf(whole.v);
    const Tensor out = attention(q, k, v, {.mask = mask});
    (out * whole.g).sum().backward();

    const Tensor own_q = leaf(split.stretch(whole.q, 2)), own_k = leaf(split.stretch(whole.k, 2)),
                 own_v = leaf(split.stretch(whole.v, 2));
    const Tensor own = split.attention(own_q, own_k, own_v, {.mask = mask});
    CHECK(distance(own, split.stretch(out, 2)) < 1e-12);
    (own * split.stretch(whole.g, 2)).sum().backward();
    CHECK(distance(own_q.grad(), split.stretch(q.grad(), 2)) < 1e-12);
    CHECK(distance(own_k.grad(), split.stretch(k.grad(), 2)) < 1e-12);
    CHECK(distance(own_v.grad(), split.stretch(v.grad(), 2)) < 1e-12);
  }
}

TEST_CASE("sequences: a relative bias, ALiBi and a softcap by distance") {
  const Group all = world();
  const Whole whole(all.size());
  const nn::SequenceParallel split(all, kLength);
  const Tensor bias = arange(0, 4 * 7, 1).to(DType::float64).view({4, 7}) * 0.1;
  const Tensor slopes = tensor(std::vector<float>{0.5F, 0.25F, 0.1F, 0.0F}, {4});
  for (const AttentionMask& mask : {AttentionMask::causal_window(7), AttentionMask::window(4, 3)}) {
    const AttentionOptions options{
        .mask = mask, .softcap = 3, .relative_bias = bias, .alibi_slopes = slopes};
    const Tensor out = attention(whole.q, whole.k, whole.v, options);
    const Tensor own = split.attention(split.stretch(whole.q, 2), split.stretch(whole.k, 2),
                                       split.stretch(whole.v, 2), options);
    CHECK(distance(own, split.stretch(out, 2)) < 1e-12);
  }
}

TEST_CASE("sequences: second derivatives cross ranks") {
  const Group all = world();
  const Whole whole(all.size());
  const nn::SequenceParallel split(all, kLength);
  const auto second = [](const Tensor& x, const Tensor& y) {
    const Tensor first = grad({y.square().sum()}, {x}, {}, {.create_graph = true})[0];
    first.square().sum().backward();
  };
  const Tensor k = leaf(whole.k);
  // Each element counts once for each rank that sees it: the sum over the windows of all ranks.
  std::vector<Tensor> seen;
  for (int r = 0; r < all.size(); ++r) {
    const int64_t first = std::max<int64_t>(0, r * kLength - 5);
    const int64_t past = std::min(all.size() * kLength, (r + 1) * kLength + 2);
    seen.push_back(k.narrow(2, first, past - first).square().sum());
  }
  Tensor y = seen[0];
  for (size_t r = 1; r < seen.size(); ++r) y = y + seen[r];
  const Tensor first = grad({y}, {k}, {}, {.create_graph = true})[0];
  first.square().sum().backward();

  const Tensor own = leaf(split.stretch(whole.k, 2));
  second(own, split.halo(own, 2, 5, 2));
  CHECK(distance(own.grad(), split.stretch(k.grad(), 2)) < 1e-10);
}

TEST_CASE("sequences: labels are the next tokens, across ranks") {
  const Group all = world();
  const nn::SequenceParallel split(all, 5);
  const int64_t total = 5 * all.size();
  const Tensor tokens = arange(0, total, 1, {.dtype = DType::int64}).view({1, total});
  std::vector<int64_t> expected;
  for (int64_t i = split.offset() + 1; i <= split.offset() + 5; ++i) {
    expected.push_back(i < total ? i : -100);
  }
  CHECK(split.next_tokens(split.stretch(tokens, 1), 1).to(kCPU).to_vector<int64_t>() == expected);
  CHECK(nn::SequenceParallel(Group(), 3)
            .next_tokens(arange(0, 3, 1, {.dtype = DType::int64}), -1)
            .to(kCPU)
            .to_vector<int64_t>() == std::vector<int64_t>{1, 2, -100});
}

TEST_CASE("sequences: what cannot be split is refused with a reason") {
  const Group all = world();
  const Whole whole(all.size());
  const nn::SequenceParallel split(all, kLength);
  const Tensor q = split.stretch(whole.q, 2), k = split.stretch(whole.k, 2),
               v = split.stretch(whole.v, 2);
  const Tensor odd = q.narrow(1, 0, 3);
  const std::string ranks = std::to_string(all.size());
  CHECK(sash::testing::thrown_by(
            [&] { split.attention(odd, odd, odd, {.mask = AttentionMask::global({0})}); }) ==
        "NotImplemented: SequenceParallel.attention: a halo is for windows, causal(), and a "
        "causal window with sinks, without a bias, not for global:0; heads can be split only "
        "if their number is a multiple of the " +
            ranks + " ranks, not 3 and 3");
  CHECK(sash::testing::thrown_by([&] {
          split.attention(q.narrow(2, 0, 5), k.narrow(2, 0, 5), v.narrow(2, 0, 5), {});
        }) == "ShapeError: SequenceParallel.attention: expected 12 tokens, got [2, 4, 5, 8]");
  nn::Linear linear(3, 3);
  CHECK(sash::testing::thrown_by([&] { split.apply(linear); }) ==
        "ValueError: SequenceParallel.apply: expected a model with attention modules, got none");
  nn::MultiheadAttention kind(8, 2, {.attention = "causal_linear"});
  CHECK(sash::testing::thrown_by([&] { split.apply(kind); }) ==
        "NotImplemented: MultiheadAttention: causal_linear attention over a split sequence");
  CHECK(sash::testing::thrown_by([&] { split.halo(q, 2, -1, 0); }) ==
        "ValueError: SequenceParallel.halo: expected counts of at least 0, got -1");
  CHECK(sash::testing::thrown_by([&] { nn::SequenceParallel(all, 3 + all.rank()); }) ==
        "ValueError: SequenceParallel: expected the same length on all ranks, got 3 to " +
            std::to_string(2 + all.size()));
}

TEST_CASE("sequences: texts that cross ranks, biases and sink logits, by heads") {
  const Group all = world();
  const Whole whole(all.size());
  const nn::SequenceParallel split(all, kLength);
  const int64_t total = split.total();
  std::vector<int> starts;  // of texts of 7 tokens
  for (int64_t i = 0; i < total; i += 7) starts.push_back(static_cast<int>(i));
  starts.push_back(static_cast<int>(total));
  const Tensor texts = tensor(starts, {static_cast<int64_t>(starts.size())});
  const Tensor bias = leaf(whole.q.narrow(3, 0, 1).matmul(whole.q.narrow(3, 1, 1).mT()));
  const Tensor sinks = leaf(arange(0, 4, 1).to(DType::float64));
  const AttentionOptions options{.mask = AttentionMask::packed(texts) & AttentionMask::causal(),
                                 .bias = bias,
                                 .sink_logits = sinks};
  const Tensor q = leaf(whole.q), k = leaf(whole.k), v = leaf(whole.v);
  const Tensor out = attention(q, k, v, options);
  (out * whole.g).sum().backward();
  const Tensor bias_grad = bias.grad(), sinks_grad = sinks.grad();

  AttentionOptions own_options = options;
  own_options.bias = leaf(bias);
  own_options.sink_logits = leaf(sinks);
  const Tensor own_q = leaf(split.stretch(whole.q, 2)), own_k = leaf(split.stretch(whole.k, 2)),
               own_v = leaf(split.stretch(whole.v, 2));
  const Tensor own = split.attention(own_q, own_k, own_v, own_options);
  CHECK(distance(own, split.stretch(out, 2)) < 1e-12);
  (own * split.stretch(whole.g, 2)).sum().backward();
  CHECK(distance(own_q.grad(), split.stretch(q.grad(), 2)) < 1e-12);
  CHECK(distance(own_k.grad(), split.stretch(k.grad(), 2)) < 1e-12);
  CHECK(distance(own_v.grad(), split.stretch(v.grad(), 2)) < 1e-12);
  // Each rank has the gradient of its heads; the sum over ranks is that of all.
  const Tensor bias_sum = own_options.bias.grad(), sinks_sum = own_options.sink_logits.grad();
  all.all_reduce(bias_sum);
  all.all_reduce(sinks_sum);
  CHECK(distance(bias_sum, bias_grad) < 1e-12);
  CHECK(distance(sinks_sum, sinks_grad) < 1e-12);
}

TEST_CASE("sequences: second derivatives of attention cross ranks") {
  const Group all = world();
  const Whole whole(all.size());
  const nn::SequenceParallel split(all, kLength);
  for (const AttentionMask& mask : {AttentionMask::causal_window(5), AttentionMask::causal()}) {
    const auto second = [](const Tensor& y, const Tensor& g, const Tensor& k) {
      const Tensor first = grad({(y * g).sum()}, {k}, {}, {.create_graph = true})[0];
      first.square().sum().backward();
    };
    const Tensor k = leaf(whole.k);
    second(attention(whole.q, k, whole.v, {.mask = mask}), whole.g, k);
    const Tensor own = leaf(split.stretch(whole.k, 2));
    second(
        split.attention(split.stretch(whole.q, 2), own, split.stretch(whole.v, 2), {.mask = mask}),
        split.stretch(whole.g, 2), own);
    CHECK(distance(own.grad(), split.stretch(k.grad(), 2)) < 1e-10);
  }
}

TEST_CASE("sequences: a model over stretches has the loss and the gradients of the whole") {
  const Group all = world();
  nn::TransformerConfig config;
  config.vocab = 17;
  config.dim = 32;
  config.layers = 2;
  config.heads = 4;
  config.attention = {{AttentionMask::causal_window(9), nn::RotaryOptions()},
                      {AttentionMask::causal(), nn::RotaryOptions()}};
  manual_seed(3);
  nn::Decoder model(config), alone(config);
  alone.load_state_dict(model.state_dict());
  const nn::SequenceParallel split(all, kLength);
  Generator generator(uint64_t{5});
  const GeneratorGuard guard(generator);
  const Tensor tokens = randint(0, 17, {2, split.total()});
  const Tensor last = full({2, 1}, -100, {.dtype = DType::int64});
  const Tensor targets = cat({tokens.narrow(1, 1, split.total() - 1), last}, 1);
  const auto one_loss = [&](nn::Decoder& m, const Tensor& x, const Tensor& y, const Tensor& at) {
    return m.loss(x, y, {.reduction = Reduction::sum}, {}, at);
  };
  const Tensor whole_loss = one_loss(alone, tokens, targets, {});
  whole_loss.backward();

  split.apply(model);
  const optim::DataParallel parallel(model, all);
  const Tensor own = split.stretch(tokens, 1).contiguous();
  const Tensor own_loss = one_loss(model, own, split.next_tokens(own, 1), split.positions(2));
  own_loss.backward();
  CHECK(all.all_reduce(own_loss.item<double>()) == doctest::Approx(whole_loss.item<double>()));
  const auto expected = alone.named_parameters(), got = model.named_parameters();
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(expected[i].first);
    const Tensor sum = got[i].second.grad() * static_cast<double>(all.size());
    CHECK(distance(sum, expected[i].second.grad()) < 1e-4);
  }
}

TEST_CASE("sequences: halves agree with the whole sequence within their rounding") {
  const Group all = world();
  const Whole whole(all.size());
  const nn::SequenceParallel split(all, kLength);
  const auto half = [](const Tensor& x) { return leaf(x.to(DType::bfloat16)); };
  for (const AttentionMask& mask : {AttentionMask::causal_window(5), AttentionMask::window(3, 2)}) {
    const Tensor q = half(whole.q), k = half(whole.k), v = half(whole.v);
    const Tensor out = attention(q, k, v, {.mask = mask}), g = half(whole.g).detach();
    out.backward(g);
    const Tensor own_q = half(split.stretch(whole.q, 2)), own_k = half(split.stretch(whole.k, 2)),
                 own_v = half(split.stretch(whole.v, 2));
    const Tensor own = split.attention(own_q, own_k, own_v, {.mask = mask});
    own.backward(split.stretch(g, 2).contiguous());
    CHECK(distance(own, split.stretch(out, 2)) < 0.03);
    CHECK(distance(own_q.grad(), split.stretch(q.grad(), 2)) < 0.06);
    CHECK(distance(own_k.grad(), split.stretch(k.grad(), 2)) < 0.06);
    CHECK(distance(own_v.grad(), split.stretch(v.grad(), 2)) < 0.06);
  }
}
