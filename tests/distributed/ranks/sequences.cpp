#include <doctest/doctest.h>
#include <sash/core/error.h>
#include <sash/nn/attention/sequence_parallel.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/reduce/reduce.h>
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
          (AttentionMask::causal_window(6) | AttentionMask::sinks(kLength + 2)) & causal};
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
  const auto error = [&](const AttentionOptions& options) {
    return sash::testing::thrown_by([&] { split.attention(q, k, v, options); });
  };
  CHECK(error({.mask = AttentionMask::global({0})}) ==
        "NotImplemented: SequenceParallel.attention: the mask global:0 is not split: expected a "
        "window, causal(), or a causal window with sinks");
  CHECK(error({.mask = AttentionMask::causal(), .bias = zeros({1}, {.dtype = DType::float64})}) ==
        "NotImplemented: SequenceParallel.attention: a bias of the whole sequence");
  CHECK(sash::testing::thrown_by([&] { split.halo(q, 2, -1, 0); }) ==
        "ValueError: SequenceParallel.halo: expected counts of at least 0, got -1");
  CHECK(sash::testing::thrown_by([&] { nn::SequenceParallel(all, 3 + all.rank()); }) ==
        "ValueError: SequenceParallel: expected the same length on all ranks, got 3 to " +
            std::to_string(2 + all.size()));
}
