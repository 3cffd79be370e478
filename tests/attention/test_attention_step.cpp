// A token's attention over a cache in one pass, against the same from plain ops on the CPU.
#include <doctest/doctest.h>

#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/attention/exact/attention_step.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <cmath>

#include "../support/attention/row_errors.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct Case {
  int64_t heads, kv_heads, width, slots;
  DType dtype = DType::float32;
  CausalReach reach{};
  int64_t pairs = 0;  // rotated
  RotaryLayout layout = RotaryLayout::half_split;
  double softcap = 0;
  bool sinks = false;
  int64_t batch = 1;
};

Tensor position_of(int64_t p, Device device) {
  return full({1}, p, {.dtype = DType::int64, .device = device});
}

struct Cache {
  Tensor keys, values;
};

Cache cache_on(const Case& c, Device device) {
  const TensorOptions options{.dtype = c.dtype, .device = device};
  return {zeros({c.batch, c.kv_heads, c.slots, c.width}, options),
          zeros({c.batch, c.kv_heads, c.slots, c.width}, options)};
}

// Tokens one after the other, the last far behind the ring's first turn.
void check(const Case& c, Device device) {
  manual_seed(3);
  AttentionStepOptions options{.softcap = c.softcap, .layout = c.layout, .reach = c.reach};
  if (c.pairs > 0) {
    const Tensor sine = rand({c.slots * 3, c.pairs});
    options.angles = {sqrt(sine * sine * -1 + 1), sine};
  }
  if (c.sinks) options.sink_logits = randn({c.heads}).to(c.dtype);
  AttentionStepOptions there = options;
  for (Tensor* x : {&there.angles.cos, &there.angles.sin, &there.sink_logits}) {
    if (x->defined()) *x = x->to(device);
  }
  const Cache plain = cache_on(c, kCPU), own = cache_on(c, device);
  const int64_t tokens = c.reach.recent ? 3 * c.slots : c.slots;
  const double bound = c.dtype == DType::float32 ? 2e-6 : 1e-2;
  double worst = 0;
  for (int64_t p = 0; p < tokens; ++p) {
    // Views of one packed row, as a model has them.
    const Tensor packed = randn({c.batch, 1, c.heads + 2 * c.kv_heads, c.width}).to(c.dtype);
    const auto part = [&](Device on, int64_t first, int64_t count) {
      return packed.to(on).transpose(1, 2).narrow(1, first, count);
    };
    const auto step = [&](const Cache& cache, Device on, const AttentionStepOptions& by) {
      const auto run = on.is_cpu() ? composite::attention_step : attention_step;
      return run(part(on, 0, c.heads), part(on, c.heads, c.kv_heads),
                 part(on, c.heads + c.kv_heads, c.kv_heads), cache.keys, cache.values,
                 position_of(p, on), by);
    };
    const Tensor expected = step(plain, kCPU, options), found = step(own, device, there);
    REQUIRE(found.shape() == expected.shape());
    worst = std::max({worst, relative_error(found, expected), row_error(found, expected) / kRows});
  }
  CHECK(worst < bound);
  CHECK(relative_error(own.keys, plain.keys) < bound);
  CHECK(all_same(own.values.to(kCPU), plain.values));
}

}  // namespace

TEST_CASE_TEMPLATE("attention step: heads, rings, rotations and halves as from plain ops", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  using enum DType;
  for (const Case& c : std::initializer_list<Case>{
           {.heads = 4, .kv_heads = 4, .width = 4, .slots = 9},
           {.heads = 9, .kv_heads = 3, .width = 64, .slots = 40, .pairs = 32},
           {.heads = 6, .kv_heads = 1, .width = 16, .slots = 7, .reach = {.recent = 5, .first = 2}},
           {.heads = 2,
           .kv_heads = 2,
           .width = 96,
           .slots = 5,
           .reach = {.recent = 5},
           .pairs = 16},
           {.heads = 4,
           .kv_heads = 2,
           .width = 128,
           .slots = 6,
           .pairs = 64,
           .layout = RotaryLayout::interleaved},
           {.heads = 4, .kv_heads = 2, .width = 32, .slots = 11, .softcap = 2, .sinks = true},
           {.heads = 4, .kv_heads = 2, .width = 32, .slots = 6, .pairs = 8, .batch = 3},
           {.heads = 9,
           .kv_heads = 3,
           .width = 64,
           .slots = 12,
           .dtype = bfloat16,
           .reach = {.recent = 8, .first = 4},
           .pairs = 32},
           {.heads = 4, .kv_heads = 1, .width = 256, .slots = 6, .dtype = bfloat16, .pairs = 128},
           {.heads = 8, .kv_heads = 1, .width = 64, .slots = 6, .dtype = float16, .sinks = true},
           {.heads = 64, .kv_heads = 8, .width = 16, .slots = 5, .pairs = 8, .batch = 3},
           {.heads = 48,
           .kv_heads = 16,
           .width = 64,
           .slots = 7,
           .dtype = bfloat16,
           .reach = {.recent = 5, .first = 2},
           .pairs = 32,
           .sinks = true,
           .batch = 3},
       }) {
    INFO(c.heads, " heads of ", c.width, ", ", c.slots, " slots");
    check(c, On::device);
  }
}

// Slots shared by several blocks, few of them in use and all.
TEST_CASE_TEMPLATE("attention step: many slots", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  manual_seed(4);
  for (const int64_t slots : {130, 300, 1100}) {
    const Tensor keys = randn({1, 2, slots, 64}), values = randn({1, 2, slots, 64});
    const int64_t heads = slots == 130 ? 6 : slots == 300 ? 2 : 34;
    const Tensor q = randn({1, heads, 1, 64}), k = randn({1, 2, 1, 64}), v = randn({1, 2, 1, 64});
    for (const int64_t p : {int64_t{0}, int64_t{3}, int64_t{129}, slots - 1}) {
      const Cache plain{keys.clone(), values.clone()};
      const Cache own{keys.clone().to(device), values.clone().to(device)};
      const Tensor expected =
          composite::attention_step(q, k, v, plain.keys, plain.values, position_of(p, kCPU));
      const Tensor found = attention_step(q.to(device), k.to(device), v.to(device), own.keys,
                                          own.values, position_of(p, device));
      check_rows("out", found, expected, 2e-6);
      CHECK(all_same(own.keys.to(kCPU), plain.keys));
      CHECK(all_same(own.values.to(kCPU), plain.values));
    }
  }
}

// Caches that start at the second element of their memory.
TEST_CASE_TEMPLATE("attention step: caches that kernels cannot read by vectors", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  manual_seed(4);
  const auto one_on = [&](const Tensor& x) {
    const Tensor memory = zeros({x.numel() + 1}, {.device = device});
    Tensor view = memory.narrow(0, 1, x.numel()).view(x.shape());
    view.copy_(x.to(device));
    return view;
  };
  const Tensor keys = randn({1, 2, 20, 64}), values = randn({1, 2, 20, 64});
  const Tensor q = randn({1, 6, 1, 64}), k = randn({1, 2, 1, 64}), v = randn({1, 2, 1, 64});
  const Cache plain{keys.clone(), values.clone()};
  const Tensor expected =
      composite::attention_step(q, k, v, plain.keys, plain.values, position_of(7, kCPU));
  for (const bool both : {true, false}) {
    const Cache own{both ? one_on(keys) : keys.clone().to(device), one_on(values)};
    const Tensor found = attention_step(q.to(device), k.to(device), v.to(device), own.keys,
                                        own.values, position_of(7, device));
    check_rows("out", found, expected, 2e-6);
    CHECK(all_same(own.keys.to(kCPU), plain.keys));
    CHECK(all_same(own.values.to(kCPU), plain.values));
  }
}

TEST_CASE("attention step: wrong calls") {
  const Tensor q = zeros({1, 4, 1, 8}), k = zeros({1, 2, 1, 8}), keys = zeros({1, 2, 5, 8});
  const Tensor at = position_of(0, kCPU);
  const auto call = [&](const Tensor& q_, const Tensor& k_, const Tensor& keys_,
                        const Tensor& position, const AttentionStepOptions& options = {}) {
    return [=] { attention_step(q_, k_, k_, keys_, keys_, position, options); };
  };
  const std::string op = ": attention_step: expected ";
  expect_errors({
      {"ShapeError" + op + "shape [1, 4, 1, 8], got [1, 4, 2, 8]",
       call(zeros({1, 4, 2, 8}), k, keys, at)},
      {"ShapeError" + op + "shape [1, 2, 1, 8], got [1, 1, 1, 8]",
       call(q, zeros({1, 1, 1, 8}), keys, at)},
      {"ShapeError" + op + "one position, got [2]",
       call(q, k, keys, zeros({2}, {.dtype = DType::int64}))},
      {"DTypeError" + op + "int64, got float32", call(q, k, keys, zeros({1}))},
      {"ValueError" + op + "contiguous caches, got others",
       call(q, k, zeros({1, 2, 8, 5}).transpose(2, 3), at)},
      {"ValueError" + op + "an exact reach, got one that is not",
       call(q, k, keys, at, {.reach = {.exact = false}})},
      {"ValueError" + op + "a reach of first tokens and at least one recent one, got 2 and 0",
       call(q, k, keys, at, {.reach = {.recent = 0, .first = 2}})},
      {"ValueError" + op + "a reach of first tokens and at least one recent one, got -1 and 1",
       call(q, k, keys, at, {.reach = {.first = -1}})},
      {"ValueError" + op + "a softcap above 0, or 0 for none, got -1",
       call(q, k, keys, at, {.softcap = -1})},
      {"IndexError" + op + "a position with a slot among 5, got 5",
       call(q, k, keys, position_of(5, kCPU))},
      {"IndexError" + op + "a position with a slot among 5, got -1",
       call(q, k, keys, position_of(-1, kCPU))},
      {"IndexError" + op + "a position below the 2 of the angles, got 3",
       call(q, k, keys, position_of(3, kCPU), {.angles = {zeros({2, 4}), zeros({2, 4})}})},
  });
}

TEST_CASE_TEMPLATE("attention step: each token sees the keys within its reach", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  manual_seed(6);
  constexpr int64_t kTokens = 14, kRecent = 4, kFirst = 2;
  const TensorOptions there{.device = device};
  const Tensor q = randn({2, 4, kTokens, 16}, there), k = randn({2, 2, kTokens, 16}, there);
  const Tensor v = randn({2, 2, kTokens, 16}, there);
  const Tensor expected =
      attention(q, k, v,
                {.mask = (AttentionMask::window(kRecent - 1, 0) | AttentionMask::sinks(kFirst)) &
                         AttentionMask::causal()});
  const Tensor keys = zeros({2, 2, kRecent + kFirst, 16}, there), values = zeros_like(keys);
  for (int64_t p = 0; p < kTokens; ++p) {
    CAPTURE(p);
    const auto at = [p](const Tensor& x) { return x.narrow(2, p, 1); };
    const Tensor y = attention_step(at(q), at(k), at(v), keys, values, position_of(p, device),
                                    {.reach = {.recent = kRecent, .first = kFirst}});
    CHECK(relative_error(y, at(expected)) < 2e-6);
  }
}
