// The gated delta rule on each backend: values and gradients over several chunks, packed texts,
// extreme decays, bits, memory, decoding, errors.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <sash/core/parallel.h>
#include <sash/sash.h>

#include "../support/attention/delta_rule.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/random_numbers.h"

using namespace sash;
using namespace sash::testing;
using namespace sash::testing::delta;

namespace {

// Against the recurrence in float64. With whole chunks, CUDA passes gradients of states in the
// memory of results.
void check_values(Device device) {
  const std::vector<Sizes> sizes{{2, 2, 4, 192, 64, 64},
                                 {2, 2, 2, 128, 64, 64},
                                 {1, 2, 2, 192, 128, 128},
                                 {1, 1, 1, 150, 128, 128},
                                 {1, 2, 2, 100, 40, 72}};
  manual_seed(3);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64}) {
    for (const Sizes& s : sizes) {
      for (const Gate gate : {Gate::none, Gate::head, Gate::feature}) {
        if (short_tests() && s.depth != 40) continue;
        CAPTURE(name(dtype));
        CAPTURE(s.depth);
        CAPTURE(static_cast<int>(gate));
        const Problem x(s, gate, dtype, device);
        check_same_answers(answer(Kind::kernels, x),
                           answer(Kind::composite, x, DType::float64, kCPU), tolerance(dtype));
      }
    }
  }
}

// Random calls against the recurrence in float64.
void check_random(Device device) {
  for (uint64_t round = 0; round < random_count(8, 3000, 4); ++round) {
    const uint64_t seed = random_seed(1) + round;
    RandomNumbers random(seed);
    manual_seed(seed);
    const auto below = [&](uint64_t count) { return static_cast<int64_t>(random.below(count)); };
    const auto one_of = [&](const std::vector<int64_t>& all) {
      return all[random.below(all.size())];
    };
    const int64_t heads = 1 + below(2);
    const Sizes s{1 + below(2),
                  heads,
                  heads * (1 + below(2)),
                  1 + below(200),
                  one_of({8, 24, 64, 96, 128}),
                  one_of({8, 32, 64, 72, 128})};
    const DType dtype = random.below(3) == 0 ? DType::float32 : DType::bfloat16;
    const Gate gate = static_cast<Gate>(random.below(3));
    CAPTURE(seed);
    CAPTURE(s.length);
    CAPTURE(s.depth);
    CAPTURE(s.width);
    CAPTURE(name(dtype));
    CAPTURE(static_cast<int>(gate));
    const Problem x(s, gate, dtype, device, 2 * random.uniform());
    check_same_answers(answer(Kind::kernels, x), answer(Kind::composite, x, DType::float64, kCPU),
                       2 * tolerance(dtype));
  }
}

// Without the delta term, against the CPU in float64.
void check_without_beta(Device device) {
  manual_seed(8);
  for (const Gate gate : {Gate::none, Gate::head, Gate::feature}) {
    const Problem x({1, 1, 2, 150, 64, 72}, gate, DType::bfloat16, device);
    const auto run = [&](const auto& moved) {
      std::vector<Tensor> leaves;
      for (const Tensor& t : x.inputs) leaves.push_back(moved(t.detach()).clone().requires_grad_());
      leaves.erase(leaves.begin() + 3);  // beta
      const RecurrentResult y =
          decayed_linear_attention(leaves[0], leaves[1], leaves[2],
                                   {.g = leaves.size() > 4 ? leaves[4] : Tensor(),
                                    .normalize = true,
                                    .initial_state = leaves[3]});
      return Answer{y, grad({y.out, y.state}, leaves, {moved(x.g_out), moved(x.g_state)})};
    };
    check_same_answers(run([](const Tensor& t) { return t; }),
                       run([](const Tensor& t) { return t.to(kCPU).to(DType::float64); }),
                       tolerance(DType::bfloat16));
  }
}

// Decays from none to all of the state within a token: no NaN, and the values of the recurrence.
void check_extreme_gates(Device device) {
  manual_seed(4);
  for (const Gate gate : {Gate::head, Gate::feature}) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64}) {
      Problem x({1, 1, 2, 200, 16, 8}, gate, dtype, device);
      // Decays of 32 tokens multiply to exp(-27), exp(-57), exp(-63), ...
      for (const double low : {0.0, -1.3, -2.7, -3.0, -50.0, -1e4, -HUGE_VAL}) {
        CAPTURE(low);
        Tensor g = x.inputs[5].clone();
        g.fill_(0);
        g.narrow(2, 20, 160).fill_(low);
        for (int64_t t = 21; t < 180; t += 3) g.narrow(2, t, 1).fill_(-1e-3);
        x.inputs[5] = g;
        check_same_answers(answer(Kind::kernels, x),
                           answer(Kind::composite, x, DType::float64, kCPU), tolerance(dtype));
      }
    }
  }
}

void check_packed(Device device, DType dtype) {
  manual_seed(5);
  const std::vector<int32_t> bounds{0, 70, 70, 71, 199, 200};
  const auto texts = static_cast<int64_t>(bounds.size()) - 1;
  for (const Gate gate : {Gate::none, Gate::head, Gate::feature}) {
    Problem x({1, 1, 2, 200, 16, 8}, gate, dtype, device);
    x.inputs[4] = randn({texts, 2, 16, 8}, x.inputs[4].options());
    x.g_state = randn({texts, 2, 16, 8}, x.g_state.options());
    x.texts = tensor<int32_t>({0, 70, 70, 71, 199, 200});
    const Answer together = answer(Kind::kernels, x);
    std::vector<Answer> parts;
    for (int64_t i = 0; i < texts; ++i) {
      const int64_t first = bounds[size_t(i)], count = bounds[size_t(i) + 1] - first;
      Problem alone = x;
      alone.texts = {};
      for (size_t n = 0; n < x.inputs.size(); ++n) {
        alone.inputs[n] =
            n == 4 ? x.inputs[n].narrow(0, i, 1) : x.inputs[n].narrow(2, first, count);
      }
      alone.g_out = x.g_out.narrow(2, first, count);
      alone.g_state = x.g_state.narrow(0, i, 1);
      parts.push_back(answer(Kind::kernels, alone));
    }
    const auto same = [&](const Tensor& found, const auto& part_of, int dim) {
      std::vector<Tensor> all;
      for (const Answer& part : parts) all.push_back(part_of(part));
      CHECK(relative_error(found, cat(all, dim)) <= 2 * tolerance(dtype));
    };
    same(
        together.y.out, [](const Answer& part) { return part.y.out; }, 2);
    same(
        together.y.state, [](const Answer& part) { return part.y.state; }, 0);
    for (size_t n = 0; n < x.inputs.size(); ++n) {
      CAPTURE(kGradients[n]);
      same(
          together.gradients[n], [n](const Answer& part) { return part.gradients[n]; },
          n == 4 ? 0 : 2);
    }
  }
}

// A text of NaNs, also in its cotangents, changes no bit of the other texts.
void check_texts_apart(Device device, DType dtype) {
  manual_seed(9);
  const std::vector<int32_t> bounds{0, 70, 71, 199, 260};
  const auto texts = static_cast<int64_t>(bounds.size()) - 1;
  for (const Gate gate : {Gate::none, Gate::head, Gate::feature}) {
    Problem x({1, 1, 2, 260, 64, 72}, gate, dtype, device);
    x.inputs[4] = randn({texts, 2, 64, 72}, x.inputs[4].options());
    x.g_state = randn({texts, 2, 64, 72}, x.g_state.options());
    x.texts = tensor<int32_t>(bounds);
    const Answer clean = answer(Kind::kernels, x);
    for (int64_t i = 0; i < texts; ++i) {
      CAPTURE(i);
      CAPTURE(static_cast<int>(gate));
      const int64_t first = bounds[size_t(i)], past = bounds[size_t(i) + 1];
      Problem spoiled = x;
      const auto spoil = [&](Tensor& t, bool of_tokens) {
        t = t.clone();
        (of_tokens ? t.narrow(2, first, past - first) : t.narrow(0, i, 1)).fill_(NAN);
      };
      for (size_t n = 0; n < x.inputs.size(); ++n) spoil(spoiled.inputs[n], n != 4);
      spoil(spoiled.g_out, true);
      spoil(spoiled.g_state, false);
      const Answer found = answer(Kind::kernels, spoiled);
      const auto same = [&](const Tensor& a, const Tensor& b, bool of_tokens) {
        const int dim = of_tokens ? 2 : 0;
        const int64_t begin = of_tokens ? first : i, end = of_tokens ? past : i + 1;
        CHECK(all_same(a.narrow(dim, 0, begin), b.narrow(dim, 0, begin)));
        const int64_t rest = a.size(dim) - end;
        CHECK(all_same(a.narrow(dim, end, rest), b.narrow(dim, end, rest)));
      };
      same(found.y.out, clean.y.out, true);
      same(found.y.state, clean.y.state, false);
      for (size_t n = 0; n < x.inputs.size(); ++n) {
        CAPTURE(kGradients[n]);
        same(found.gradients[n], clean.gradients[n], n != 4);
      }
    }
  }
}

// Long texts, which CUDA cuts into segments: with decays that leave nothing of a state after a
// chunk, after a few, or most of it to the end. Texts end within a segment.
void check_long(Device device) {
  manual_seed(7);
  const DType dtype = device.is_cpu() ? DType::float32 : DType::bfloat16;
  const int64_t length = short_tests() ? 700 : 1500;
  for (const int64_t width : {64, 128}) {
    for (const Gate gate : {Gate::none, Gate::head, Gate::feature}) {
      for (const double decay : {1e-3, 0.1, 3.0}) {
        if (gate == Gate::none && decay < 3) continue;
        CAPTURE(width);
        CAPTURE(static_cast<int>(gate));
        CAPTURE(decay);
        Problem x({1, 1, 2, length, width, width - 8}, gate, dtype, device, decay);
        const auto check = [&] {
          check_same_answers(answer(Kind::kernels, x),
                             answer(Kind::kernels, x, DType::float64, kCPU),
                             1.5 * tolerance(dtype));
        };
        check();
        const auto end = static_cast<int32_t>(length);
        x.texts = tensor<int32_t>({0, 0, 600, 601, end});
        x.inputs[4] = randn({4, 2, width, width - 8}, x.inputs[4].options());
        x.g_state = randn({4, 2, width, width - 8}, x.g_state.options());
        check();
      }
    }
  }
}

// So many heads that the backward pass on Hopper forms seven of eight states again. Texts begin
// within runs of eight chunks.
void check_many_heads(Device device) {
  manual_seed(10);
  constexpr int64_t kHeads = 33;  // a quarter of the multiprocessors
  for (const int64_t width : {64, 128}) {
    for (const Gate gate : {Gate::none, Gate::head}) {
      for (const bool packed : {false, true}) {
        if (short_tests() && (width < 128 || gate == Gate::none || !packed)) continue;
        CAPTURE(width);
        CAPTURE(static_cast<int>(gate));
        CAPTURE(packed);
        const int64_t length = packed ? 1792 : 2048;
        Problem x({1, packed ? kHeads / 3 : kHeads, kHeads, length, width, width - 8}, gate,
                  DType::bfloat16, device, 0.05);
        if (packed) {
          x.texts = tensor<int32_t>({0, 0, 600, 601, 1792});
          x.inputs[4] = randn({4, kHeads, width, width - 8}, x.inputs[4].options());
          x.g_state = randn({4, kHeads, width, width - 8}, x.g_state.options());
        }
        check_same_answers(answer(Kind::kernels, x), answer(Kind::kernels, x, DType::float32),
                           1.5 * tolerance(DType::bfloat16));
      }
    }
  }
}

void check_bits(Device device) {
  manual_seed(6);
  const int threads = num_threads();
  for (const Gate gate : {Gate::head, Gate::feature}) {
    const int64_t length = device.is_cpu() ? 300 : 1100;
    const Problem x({1, 1, 2, length, 64, 80}, gate, DType::bfloat16, device);
    const Answer first = answer(Kind::kernels, x);
    for (int repeat = 0; repeat < (device.is_cpu() || short_tests() ? 2 : 500); ++repeat) {
      set_num_threads(1 + repeat % 3 * 2);
      const Answer second = answer(Kind::kernels, x);
      set_num_threads(threads);
      CHECK(all_same(first.y.out, second.y.out));
      CHECK(all_same(first.y.state, second.y.state));
      for (size_t i = 0; i < first.gradients.size(); ++i) {
        CHECK(all_same(first.gradients[i], second.gradients[i]));
      }
    }
  }
}

int64_t peak_of(int64_t length, Device device) {
  const Problem x({1, 1, 1, length, 16, 16}, Gate::feature, DType::float32, device);
  const int64_t before = memory_stats(device).current;
  reset_peak_memory(device);
  answer(Kind::kernels, x);
  return memory_stats(device).peak - before;
}

// Linear in the length, and less than a matrix of S x S numbers.
void check_memory(Device device) {
  const int64_t shorter = peak_of(2048, device), longer = peak_of(8192, device);
  CHECK(static_cast<double>(longer) < 4.4 * static_cast<double>(shorter));
  CHECK(longer < 8192 * 8192 * 4 / 4);
}

// A prompt at once, then token by token, equals all at once.
void check_decoding(Device device) {
  const NoGradGuard no_grad;
  manual_seed(7);
  for (const DType dtype : {DType::float32, DType::float16}) {
    const Problem x({2, 2, 4, 150, 16, 24}, Gate::head, dtype, device);
    const auto& in = x.inputs;
    RecurrentOptions options{.g = in[5], .normalize = true, .initial_state = in[4]};
    const RecurrentResult all = gated_delta_rule(in[0], in[1], in[2], in[3], options);
    RecurrentState state{in[4]};
    options.initial_state = {};
    std::vector<Tensor> parts;
    int64_t at = 0;
    for (const int64_t count : {130, 1, 1, 18}) {
      const auto part = [&](const Tensor& t) { return t.narrow(2, at, count); };
      options.g = part(in[5]);
      parts.push_back(gated_delta_rule_step(part(in[0]), part(in[1]), part(in[2]), part(in[3]),
                                            state, options));
      at += count;
      CHECK(state.s.shape() == Shape{2, 4, 16, 24});
      CHECK(state.s.dtype() == DType::float32);
    }
    CHECK(cat(parts, 2).dtype() == dtype);
    check_rows("out", cat(parts, 2), all.out, tolerance(dtype));
    check_rows("state", state.s, all.state, tolerance(DType::float32));
  }
}

void check_text_errors(Device device) {
  const Tensor x = zeros({1, 1, 4, 2}, {.device = device}), beta = x.select(3, 0);
  const auto call = [&](std::vector<int32_t> bounds) {
    const Tensor texts = tensor<int32_t>(bounds).to(device);
    return error_of<ValueError>(device,
                                [&] { gated_delta_rule(x, x, x, beta, {.cu_seqlens = texts}); });
  };
  const std::string expected =
      "gated_delta_rule: expected cu_seqlens that ascend from 0 to the length, 4, got ";
  CHECK(call({0, 5}) == expected + "5 at 1");
  CHECK(call({1, 4}) == expected + "1 at 0");
  CHECK(call({0, 3, 2, 4}) == expected + "2 at 2");
  if (device.is_cpu()) return;
  CHECK_THROWS_AS(gated_delta_rule(x, x, x, beta.to(kCPU)), DeviceError);
  CHECK_THROWS_AS(gated_delta_rule(x, x, x, beta, {.cu_seqlens = tensor<int32_t>({0, 4})}),
                  DeviceError);
}

}  // namespace

TEST_CASE_TEMPLATE("gated delta rule: values and gradients over several chunks", On, Cpu, Cuda) {
  if (!missing(On::device)) check_values(On::device);
}

TEST_CASE_TEMPLATE("gated delta rule: random calls", On, Cpu, Cuda) {
  if (!missing(On::device)) check_random(On::device);
}

TEST_CASE_TEMPLATE("gated delta rule: decays without the delta term", On, Cpu, Cuda) {
  if (!missing(On::device)) check_without_beta(On::device);
}

TEST_CASE_TEMPLATE("gated delta rule: extreme gates", On, Cpu, Cuda) {
  if (!missing(On::device)) check_extreme_gates(On::device);
}

TEST_CASE_TEMPLATE("gated delta rule: packed texts are as separate calls", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const DType dtype : {DType::float64, DType::bfloat16}) check_packed(On::device, dtype);
}

TEST_CASE_TEMPLATE("gated delta rule: a text of NaNs leaves the others alone", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const DType dtype : {DType::float32, DType::bfloat16}) check_texts_apart(On::device, dtype);
}

TEST_CASE_TEMPLATE("gated delta rule: long texts", On, Cpu, Cuda) {
  if (!missing(On::device)) check_long(On::device);
}

TEST_CASE_TEMPLATE("gated delta rule: many heads", On, Cuda) {
  if (!missing(On::device)) check_many_heads(On::device);
}

TEST_CASE_TEMPLATE("gated delta rule: the same bits in every run", On, Cpu, Cuda) {
  if (!missing(On::device)) check_bits(On::device);
}

TEST_CASE_TEMPLATE("gated delta rule: memory is linear in the length", On, Cpu, Cuda) {
  if (!missing(On::device)) check_memory(On::device);
}

TEST_CASE_TEMPLATE("gated delta rule: decoding with a state equals all tokens at once", On, Cpu,
                   Cuda) {
  if (!missing(On::device)) check_decoding(On::device);
}

TEST_CASE_TEMPLATE("gated delta rule: cu_seqlens that do not fit", On, Cpu, Cuda) {
  if (!missing(On::device)) check_text_errors(On::device);
}

TEST_CASE("gated delta rule: autocast, and float32 gates beside halves") {
  const Tensor x = randn({1, 2, 5, 4}), tokens = sigmoid(randn({1, 2, 5}));
  for (const DType half : {DType::float16, DType::bfloat16}) {
    const RecurrentResult plain =
        gated_delta_rule(x.to(half), x.to(half), x.to(half), tokens, {.g = -tokens});
    const AutocastGuard guard(half);
    const RecurrentResult y = gated_delta_rule(x, x, x, tokens, {.g = -tokens});
    CHECK(y.out.dtype() == half);
    CHECK(y.state.dtype() == DType::float32);
    CHECK(all_same(y.out, plain.out));
    CHECK(decayed_linear_attention(x, x, x, {.g = -tokens}).out.dtype() == half);
  }
}

TEST_CASE("gated delta rule: second derivatives of no packed text") {
  const Tensor x = zeros({1, 1, 0, 2}, kDoubles).requires_grad_();
  const Tensor state = zeros({0, 1, 2, 2}, kDoubles).requires_grad_();
  const RecurrentResult y = decayed_linear_attention(
      x, x, x, {.initial_state = state, .cu_seqlens = tensor<int32_t>({0})});
  const std::vector<Tensor> d =
      grad({y.out, y.state}, {x, state}, {y.out.detach(), state.detach()}, {.create_graph = true});
  CHECK(d[1].shape() == state.shape());
}

TEST_CASE("gated delta rule: wrong calls") {
  const Tensor x = zeros({1, 4, 3, 2}), odd = zeros({1, 6, 3, 2}), beta = zeros({1, 4, 3});
  const Tensor doubles = zeros({1, 4, 3, 2}, {.dtype = DType::float64});
  const Tensor half = x.to(DType::float16), two = zeros({2, 4, 3, 2});
  const Tensor texts = tensor<int32_t>({0, 3}), wide = tensor<int64_t>({0, 3});
  const std::string heads =
      "ShapeError: gated_delta_rule: expected q and k [B, H, S, D], v [B, H_v, S, D_v], H_v a "
      "multiple of H, got ";
  RecurrentState state{zeros({1, 2, 2, 2})};
  expect_errors({
      {heads + "[1, 4, 3, 2], [1, 4, 3, 2] and [1, 6, 3, 2]",
       [&] {
         gated_delta_rule(x, x, odd, zeros({1, 6, 3}));
       }},
      {heads + "[1, 4, 3, 2], [1, 6, 3, 2] and [1, 4, 3, 2]",
       [&] { gated_delta_rule(x, odd, x, beta); }},
      {heads + "[1, 4, 3], [1, 4, 3] and [1, 4, 3]",
       [&] { gated_delta_rule(beta, beta, beta, beta); }},
      {"ValueError: gated_delta_rule: expected beta, got an undefined tensor",
       [&] { gated_delta_rule(x, x, x, Tensor()); }},
      {"ValueError: decayed_linear_attention: expected a tensor, got an undefined tensor",
       [&] { decayed_linear_attention(x, x, Tensor()); }},
      {"DTypeError: gated_delta_rule: expected tensors of one dtype, got float32 and float64",
       [&] { gated_delta_rule(x, x, doubles, beta); }},
      {"DTypeError: gated_delta_rule: expected a floating dtype, got int64",
       [&] {
         const Tensor whole = x.to(DType::int64);
         gated_delta_rule(whole, whole, whole, beta);
       }},
      {"DTypeError: gated_delta_rule: expected tensors of one dtype, got float32 and float16",
       [&] { gated_delta_rule(x, x, x, beta.to(DType::float16)); }},
      {"DTypeError: gated_delta_rule: expected tensors of one dtype, got float16 and float64",
       [&] { gated_delta_rule(half, half, half, beta, {.g = beta.to(DType::float64)}); }},
      {"DTypeError: gated_delta_rule: expected a state of float32, got float16",
       [&] { gated_delta_rule(half, half, half, beta, {.initial_state = half}); }},
      {"ShapeError: gated_delta_rule: expected shape [1, 4, 3], got [1, 4, 3, 2]",
       [&] { gated_delta_rule(x, x, x, x); }},
      {"ShapeError: gated_delta_rule: expected shape [1, 4, 3], got [1, 4]",
       [&] {
         gated_delta_rule(x, x, x, beta, {.g = zeros({1, 4})});
       }},
      {"ShapeError: gated_delta_rule: expected shape [1, 4, 3, 2], got [1, 4, 3, 1]",
       [&] {
         gated_delta_rule(x, x, x, beta, {.g = zeros({1, 4, 3, 1})});
       }},
      {"ShapeError: gated_delta_rule: expected shape [1, 4, 2, 2], got [1, 4, 3, 2]",
       [&] { gated_delta_rule(x, x, x, beta, {.initial_state = x}); }},
      {"ValueError: gated_delta_rule: expected a finite scale, got inf",
       [&] { gated_delta_rule(x, x, x, beta, {.scale = HUGE_VAL}); }},
      {"ValueError: gated_delta_rule: expected a finite scale, got 1e+300",
       [&] { gated_delta_rule(x, x, x, beta, {.scale = 1e300}); }},
      {"DTypeError: gated_delta_rule: expected cu_seqlens of int32, got int64",
       [&] { gated_delta_rule(x, x, x, beta, {.cu_seqlens = wide}); }},
      {"ShapeError: gated_delta_rule: expected cu_seqlens [n + 1], got [0]",
       [&] { gated_delta_rule(x, x, x, beta, {.cu_seqlens = texts.narrow(0, 0, 0)}); }},
      {"ShapeError: gated_delta_rule: expected B = 1 with cu_seqlens, got [2, 4, 3, 2]",
       [&] {
         gated_delta_rule(two, two, two, zeros({2, 4, 3}), {.cu_seqlens = texts});
       }},
      {"ShapeError: gated_delta_rule_step: expected shape [1, 4, 2, 2], got [1, 2, 2, 2]",
       [&] { gated_delta_rule_step(x, x, x, beta, state); }},
      {"ValueError: gated_delta_rule_step: expected the initial state in `state`, got options with "
       "one",
       [&] { gated_delta_rule_step(x, x, x, beta, state, {.initial_state = x}); }},
  });
}
