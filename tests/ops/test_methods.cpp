// Ops as members of Tensor and as operators: the same as the functions.
#include <map>
#include <string>

#include <doctest/doctest.h>

#include <sash/ops/kernels/elementwise_table.h>
#include <sash/sash.h>

#include "../support/compare.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct Pair {
  Tensor (*member)(const Tensor&);
  Tensor (*function)(const Tensor&);
};

#define SASH_PAIR(name)                                                                 \
  {                                                                                     \
#name, {                                                                            \
      [](const Tensor& x) { return x.name(); }, [](const Tensor& x) { return name(x); } \
    }                                                                                   \
  }

const std::map<std::string, Pair> kUnary{
    SASH_PAIR(abs),        SASH_PAIR(ceil),  SASH_PAIR(cos),         SASH_PAIR(erf),
    SASH_PAIR(exp),        SASH_PAIR(expm1), SASH_PAIR(floor),       SASH_PAIR(gelu),
    SASH_PAIR(isfinite),   SASH_PAIR(isinf), SASH_PAIR(isnan),       SASH_PAIR(log),
    SASH_PAIR(log1p),      SASH_PAIR(log2),  SASH_PAIR(logical_not), SASH_PAIR(neg),
    SASH_PAIR(reciprocal), SASH_PAIR(relu),  SASH_PAIR(round),       SASH_PAIR(rsqrt),
    SASH_PAIR(sigmoid),    SASH_PAIR(sign),  SASH_PAIR(silu),        SASH_PAIR(sin),
    SASH_PAIR(softplus),   SASH_PAIR(sqrt),  SASH_PAIR(square),      SASH_PAIR(tanh),
};

#undef SASH_PAIR

}  // namespace

TEST_CASE("methods: every row of the table of one tensor is a member") {
  op::UnaryOps::for_each(
      []<class Op>(Op) { CHECK_MESSAGE(kUnary.contains(Op::row.name), Op::row.name); });
  const Tensor x = rand({3, 5}, {.dtype = DType::float64}) + 0.1;
  for (const auto& entry : kUnary) {
    const std::string& name = entry.first;
    CAPTURE(name);
    const Tensor in = name == "logical_not" ? x > 0.5 : x;
    CHECK(all_same(entry.second.member(in), entry.second.function(in)));
  }
}

TEST_CASE("methods: members with arguments are the functions of their names") {
  const Tensor x = randn({3, 4, 5}), mask = x > 0;
  const Tensor index = randint(-4, 4, {3, 2, 5});
  const Tensor rows = tensor({1, -1, 1});
  const Tensor src = randn({3, 2, 5});
  for (const auto& [member, function] : std::vector<std::pair<Tensor, Tensor>>{
           {x.clamp(-1, 0.5), clamp(x, -1, 0.5)},
           {x.pow(2), pow(x, 2)},
           {x.masked_fill(mask, 3), masked_fill(x, mask, 3)},
           {x.sum(), sum(x)},
           {x.sum(1), sum(x, {1})},
           {x.sum({0, 2}, true), sum(x, {0, 2}, true)},
           {x.mean(-1), mean(x, {-1})},
           {x.var(1), var(x, {1})},
           {x.amax(1, true), amax(x, {1}, true)},
           {x.amin(), amin(x)},
           {x.argmax(1), argmax(x, 1)},
           {x.argmin(), argmin(x)},
           {x.logsumexp(2), logsumexp(x, {2})},
           {x.cumsum(1), cumsum(x, 1)},
           {x.cumprod(1), cumprod(x, 1)},
           {x.median(), median(x)},
           {x.median(1, true).values, median(x, 1, true).values},
           {x.masked_select(mask), masked_select(x, mask)},
           {x.softmax(1), softmax(x, 1)},
           {x.log_softmax(), log_softmax(x)},
           {x.matmul(x.mT()), matmul(x, x.mT())},
           {x.flip(1), flip(x, {1})},
           {x.roll(2, -1), roll(x, {2}, {-1})},
           {x.repeat({2, 1, 1}), repeat(x, {2, 1, 1})},
           {x.repeat_interleave(2, 1), repeat_interleave(x, 2, 1)},
           {x.repeat_interleave(tensor({0, 1, 2}), 0), repeat_interleave(x, tensor({0, 1, 2}), 0)},
           {x.tril(), tril(x)},
           {x.triu(1), triu(x, 1)},
           {x.gather(1, index), gather(x, 1, index)},
           {x.scatter(1, index, src), scatter(x, 1, index, src)},
           {x.scatter_add(1, index, src), scatter_add(x, 1, index, src)},
           {x.index_select(0, rows), index_select(x, 0, rows)},
           {x.index_add(0, rows, x), index_add(x, 0, rows, x)},
           {x.nonzero(), nonzero(x)},
           {x.prod(1), prod(x, 1)},
           {mask.any(-1), any(mask, -1)},
           {mask.all(), all(mask)},
           {x.norm(), norm(x)},
           {x.norm(1, 0, true), norm(x, 1, 0, true)},
           {x.std(2), sash::std(x, 2)},
           {x.max(), max(x)},
           {x.min(), min(x)},
           {x.max(1).values, max(x, 1).values},
           {x.min(1).indices, min(x, 1).indices},
           {x.sort(1, true).values, sort(x, 1, true).values},
           {x.argsort(), argsort(x)},
           {x.topk(2).indices, topk(x, 2).indices},
           {x.split(2, 1)[0], split(x, 2, 1)[0]},
           {x.split({1, 3}, 1)[1], split(x, std::vector<int64_t>{1, 3}, 1)[1]},
           {x.chunk(2, 2)[1], chunk(x, 2, 2)[1]},
           {x.unbind(1)[2], unbind(x, 1)[2]},
       }) {
    CHECK(all_same(member, function));
  }
}

TEST_CASE("methods: one extent or axis needs no braces") {
  CHECK(zeros(3).shape() == Shape{3});
  CHECK(zeros(6).view({2, 3}).view(-1).shape() == Shape{6});
  CHECK(ones({2, 3}).sum(1).to_vector<float>() == std::vector<float>{3, 3});
}

TEST_CASE("operators: those in place write to the tensor, through views too") {
  const Tensor x = zeros({2, 3});
  Tensor same = x;
  same += 2;
  same *= same;
  same[0] -= tensor({1.0, 2.0, 3.0});
  same[1] /= 4;
  CHECK(x.to_vector<float>() == std::vector<float>{3, 2, 1, 1, 1, 1});
  x[{kEllipsis, Slice(1)}] += 1;
  CHECK(x.to_vector<float>() == std::vector<float>{3, 3, 2, 1, 2, 2});
}

TEST_CASE("operators: remainder and floor_divide round down, and integers by 0 give 0") {
  const std::vector<int64_t> a{7, -7, 7, -7, 6, -6, 0, 5, -5}, b{3, 3, -3, -3, 3, -3, 5, 0, 0};
  const Tensor x = tensor(a, {9}), y = tensor(b, {9});
  CHECK((x % y).to_vector<int64_t>() == std::vector<int64_t>{1, 2, -2, -1, 0, 0, 0, 0, 0});
  CHECK(floor_divide(x, y).to_vector<int64_t>() ==
        std::vector<int64_t>{2, -3, -3, 2, 2, 2, 0, 0, 0});
  const Tensor least = tensor(std::vector<int64_t>{INT64_MIN}, {1}), minus = tensor({-1});
  CHECK((least % minus).item<int64_t>() == 0);
  CHECK(floor_divide(least, minus).item<int64_t>() == INT64_MIN);
  CHECK((tensor({-0.5, 5.5}) % 2).to_vector<double>() == std::vector<double>{1.5, 1.5});
}

TEST_CASE("methods: extents, axes and counts need no braces") {
  const Tensor x = randn({2, 3, 4});
  CHECK(all_same(x.view(4, -1), x.view({4, -1})));
  CHECK(all_same(x.reshape(3, 2, 4), x.reshape({3, 2, 4})));
  CHECK(all_same(x.permute(2, 0, 1), x.permute({2, 0, 1})));
  CHECK(all_same(x[0].expand(5, 3, 4), x[0].expand({5, 3, 4})));
  CHECK(all_same(x.flip(0, 2), x.flip({0, 2})));
  CHECK(all_same(x.repeat(1, 2, 1), x.repeat({1, 2, 1})));
}

TEST_CASE("tensor: one number, and a vector without a shape") {
  const Tensor pi = tensor(3.5), three = tensor(3), yes = tensor(true);
  CHECK(pi.shape() == Shape{});
  CHECK(pi.dtype() == default_dtype());
  CHECK(pi.item<double>() == 3.5);
  CHECK(three.dtype() == DType::int64);
  CHECK(three.item<int>() == 3);
  CHECK(yes.dtype() == DType::boolean);
  CHECK(tensor(3, {.dtype = DType::float64}).dtype() == DType::float64);
  CHECK(all_same(tensor(std::vector<double>{1, 2}), tensor<double>({1, 2})));
}

TEST_CASE("devices: a text converts to a device") {
  CHECK(zeros({2}, {.device = "cpu"}).device() == kCPU);
  CHECK(zeros({2}).to(std::string("cpu")).device() == kCPU);
  CHECK_THROWS_WITH_AS(zeros({2}).to("gpu"), doctest::Contains("'gpu'"), DeviceError);
}
