// Linear attention on each backend: values and gradients over several chunks, bits, memory, the
// recurrent form, errors.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <sash/core/parallel.h>
#include <sash/sash.h>

#include "../support/attention/row_errors.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/scopes.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct Sizes {
  int64_t batch, heads, kv_heads, queries, keys, depth, v_depth;
};

struct Inputs {
  Tensor q, k, v, g;

  Inputs(const Sizes& s, DType dtype, Device device) {
    const auto make = [&](int64_t heads, int64_t length, int64_t features) {
      return randn({s.batch, heads, length, features}, {.dtype = dtype}).to(device);
    };
    q = make(s.heads, s.queries, s.depth);
    k = make(s.kv_heads, s.keys, s.depth);
    v = make(s.kv_heads, s.keys, s.v_depth);
    g = make(s.heads, s.queries, s.v_depth);
  }
};

struct Answer {
  Tensor out;
  std::vector<Tensor> gradients;
};

using Function = Tensor (*)(const Tensor&, const Tensor&, const Tensor&,
                            const LinearAttentionOptions&);

Answer answer(Function f, const Inputs& x, const LinearAttentionOptions& options,
              const TensorOptions& as) {
  std::vector<Tensor> leaves;
  for (const Tensor* t : {&x.q, &x.k, &x.v}) {
    leaves.push_back(t->detach().to(*as.device).to(*as.dtype).clone().requires_grad_());
  }
  LinearAttentionOptions moved = options;
  if (options.key_lengths.defined()) moved.key_lengths = options.key_lengths.to(*as.device);
  const Tensor out = f(leaves[0], leaves[1], leaves[2], moved);
  return {out, grad({out}, leaves, {x.g.to(*as.device).to(*as.dtype)})};
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::bfloat16:
      return 8e-3;
    case DType::float16:
      return 1e-3;
    case DType::float32:
      return 2e-6;
    default:
      return 1e-12;
  }
}

// Against the composite in float64.
void check_values(Device device) {
  const std::vector<Sizes> sizes{{2, 2, 1, 330, 330, 64, 64},
                                 {1, 1, 1, 300, 300, 128, 128},
                                 {1, 2, 1, 200, 200, 40, 72},
                                 {1, 1, 1, 130, 130, 136, 24},
                                 {1, 2, 2, 100, 100, 33, 20}};
  manual_seed(3);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64}) {
    for (const Sizes& s : sizes) {
      for (const bool causal : {true, false}) {
        CAPTURE(name(dtype));
        CAPTURE(s.depth);
        CAPTURE(causal);
        const Inputs x(s, dtype, device);
        LinearAttentionOptions options{.causal = causal};
        if (s.batch > 1) options.key_lengths = tensor<int32_t>({200, 329}).to(device);
        const Answer found = answer(linear_attention, x, options, x.q.options());
        const Answer expected = answer(composite::linear_attention, x, options,
                                       {.dtype = DType::float64, .device = kCPU});
        check_rows("out", found.out, expected.out, tolerance(dtype));
        for (size_t i = 0; i < 3; ++i) {
          check_rows(std::vector<std::string>({"dq", "dk", "dv"})[i], found.gradients[i],
                     expected.gradients[i], 2 * tolerance(dtype));
        }
      }
    }
  }
}

// Against the composite in float64 on the same device, over several segments of the kernels of
// sm_90. Rows of q, k and v lie apart, as they do in packed projections.
void check_segments(Device device, const Sizes& s, bool lengths, const Tensor& g_rows = {}) {
  CAPTURE(s.queries);
  CAPTURE(s.depth);
  manual_seed(9);
  const DType dtype = DType::bfloat16;
  Inputs x(s, dtype, device);
  for (Tensor* t : {&x.q, &x.k, &x.v, &x.g}) *t = t->transpose(1, 2).contiguous().transpose(1, 2);
  if (g_rows.defined()) x.g = g_rows.to(dtype).to(device).expand(x.g.shape());
  LinearAttentionOptions options{.causal = true};
  if (lengths) {
    options.key_lengths = tensor<int32_t>({static_cast<int32_t>(s.keys - 700)}).to(device);
  }
  const Answer found = answer(linear_attention, x, options, x.q.options());
  const Answer expected =
      answer(composite::linear_attention, x, options, {.dtype = DType::float64, .device = device});
  check_rows("out", found.out, expected.out, tolerance(dtype));
  for (size_t i = 0; i < 3; ++i) {
    check_rows(std::vector<std::string>({"dq", "dk", "dv"})[i], found.gradients[i],
               expected.gradients[i], 2 * tolerance(dtype));
  }
}

// The normaliser and the states exceed 65504.
void check_large_sums(Device device) {
  manual_seed(4);
  Inputs x({1, 1, 1, 1024, 1024, 64, 64}, DType::float32, kCPU);
  for (Tensor* t : {&x.q, &x.k, &x.v}) *t = (*t + 20.0).to(DType::float16).to(device);
  for (const bool causal : {true, false}) {
    const Answer found = answer(linear_attention, x, {.causal = causal}, x.q.options());
    const Answer expected = answer(composite::linear_attention, x, {.causal = causal},
                                   {.dtype = DType::float64, .device = kCPU});
    check_rows("out", found.out, expected.out, 1e-3);
    check_rows("dv", found.gradients[2], expected.gradients[2], 2e-3);
  }
}

// Hidden keys hold NaN.
void check_hidden_keys(Device device) {
  manual_seed(5);
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const Inputs x({2, 2, 2, 100, 100, 16, 8}, dtype, device);
    Tensor k = x.k.clone(), v = x.v.clone();
    k.select(0, 1).narrow(1, 70, 30).fill_(std::numeric_limits<double>::quiet_NaN());
    v.select(0, 1).narrow(1, 70, 30).fill_(std::numeric_limits<double>::quiet_NaN());
    v.select(0, 0).fill_(std::numeric_limits<double>::quiet_NaN());
    const Tensor lengths = tensor<int32_t>({0, 70}).to(device);
    Inputs hidden = x;
    hidden.k = k;
    hidden.v = v;
    for (const bool causal : {true, false}) {
      const LinearAttentionOptions options{.causal = causal, .key_lengths = lengths};
      const Answer found = answer(linear_attention, hidden, options, k.options());
      const Answer expected = answer(linear_attention, x, options, k.options());
      CHECK(all_same(found.out, expected.out));
      for (size_t i = 0; i < 3; ++i) {
        CHECK(all_same(found.gradients[i], expected.gradients[i]));
        CHECK(all_equal(found.gradients[i].select(0, 0), 0));
      }
      CHECK(all_equal(found.out.select(0, 0), 0));
      CHECK(all_equal(found.gradients[1].select(0, 1).narrow(1, 70, 30), 0));
    }
  }
}

void check_bits(Device device) {
  manual_seed(6);
  const Inputs x({1, 2, 1, 500, 500, 64, 64}, DType::bfloat16, device);
  const int threads = num_threads();
  const Answer first = answer(linear_attention, x, {.causal = true}, x.q.options());
  set_num_threads(1);
  const Answer second = answer(linear_attention, x, {.causal = true}, x.q.options());
  set_num_threads(threads);
  CHECK(all_same(first.out, second.out));
  for (size_t i = 0; i < 3; ++i) CHECK(all_same(first.gradients[i], second.gradients[i]));
}

int64_t peak_of(int64_t length, Device device) {
  const Inputs x({1, 1, 1, length, length, 32, 32}, DType::float32, device);
  const int64_t before = memory_stats(device).current;
  reset_peak_memory(device);
  answer(linear_attention, x, {.causal = true}, x.q.options());
  return memory_stats(device).peak - before;
}

void check_memory(Device device) {
  CHECK(static_cast<double>(peak_of(8192, device)) <
        4.4 * static_cast<double>(peak_of(2048, device)));
}

// A prompt at once, then token by token, equals all at once; the state keeps its size.
void check_decoding(Device device) {
  const NoGradGuard no_grad;
  manual_seed(7);
  for (const DType dtype : {DType::float32, DType::float16}) {
    const Inputs x({2, 4, 2, 150, 150, 16, 24}, dtype, device);
    const Tensor all = linear_attention(x.q, x.k, x.v, {.causal = true});
    LinearAttentionState state;
    std::vector<Tensor> parts;
    int64_t at = 0;
    for (const int64_t count : {int64_t{130}, int64_t{1}, int64_t{1}, int64_t{18}}) {
      parts.push_back(linear_attention_step(x.q.narrow(2, at, count), x.k.narrow(2, at, count),
                                            x.v.narrow(2, at, count), state));
      at += count;
      CHECK(state.s.shape() == Shape{2, 2, 16, 24});
      CHECK(state.z.shape() == Shape{2, 2, 16});
      CHECK(state.s.dtype() == DType::float32);
    }
    CHECK(cat(parts, 2).dtype() == dtype);
    check_rows("out", cat(parts, 2), all, tolerance(dtype));
  }
}

void check_lengths_errors(Device device) {
  const Tensor x = zeros({2, 1, 4, 2}, {.device = device});
  const Tensor lengths = tensor<int32_t>({4, 5}).to(device);
  CHECK(error_of<ValueError>(device, [&] {
          linear_attention(x, x, x, {.key_lengths = lengths});
        }) == "linear_attention: expected key lengths in [0, 4], got 5 for batch 1");
}

}  // namespace

TEST_CASE_TEMPLATE("linear attention: values and gradients over several chunks", On, Cpu, Cuda) {
  if (!missing(On::device)) check_values(On::device);
}

TEST_CASE("linear attention: values and gradients without the kernels of sm_90<cuda>") {
  if (missing(kCUDA)) return;
  const Environment kernel("SASH_ATTENTION_KERNEL", "mma");
  check_values(kCUDA);
}

TEST_CASE_TEMPLATE("linear attention: values and gradients over several segments", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  check_segments(On::device, {1, 2, 1, 1500, 1500, 64, 64}, true);
  check_segments(On::device, {1, 1, 1, 1100, 1100, 104, 128}, false);
  // A cotangent whose rows are one row in memory, which copies by TMA do not take.
  check_segments(On::device, {1, 1, 1, 600, 600, 64, 64}, false, randn({64}));
  if (On::device == kCPU) return;
  check_segments(On::device, {1, 4, 2, 4500, 4500, 64, 64}, true);
  check_segments(On::device, {1, 3, 1, 4130, 4130, 128, 128}, true);
  check_segments(On::device, {1, 2, 2, 17000, 17000, 128, 64}, false);
}

TEST_CASE_TEMPLATE("linear attention: sums beyond the range of float16", On, Cpu, Cuda) {
  if (!missing(On::device)) check_large_sums(On::device);
}

TEST_CASE_TEMPLATE("linear attention: hidden keys may hold anything", On, Cpu, Cuda) {
  if (!missing(On::device)) check_hidden_keys(On::device);
}

TEST_CASE_TEMPLATE("linear attention: the same bits in every run", On, Cpu, Cuda) {
  if (!missing(On::device)) check_bits(On::device);
}

TEST_CASE_TEMPLATE("linear attention: memory is linear in the length", On, Cpu, Cuda) {
  if (!missing(On::device)) check_memory(On::device);
}

TEST_CASE_TEMPLATE("linear attention: decoding with a state equals all tokens at once", On, Cpu,
                   Cuda) {
  if (!missing(On::device)) check_decoding(On::device);
}

TEST_CASE_TEMPLATE("linear attention: lengths outside the keys", On, Cpu, Cuda) {
  if (!missing(On::device)) check_lengths_errors(On::device);
}

TEST_CASE("linear attention: gradients flow through the state") {
  manual_seed(8);
  const auto two_steps = [](const std::vector<Tensor>& x) {
    LinearAttentionState state;
    linear_attention_step(x[0], x[1], x[2], state);
    return linear_attention_step(x[0], x[1], x[2], state);
  };
  std::vector<Tensor> x;
  for (int i = 0; i < 3; ++i) {
    x.push_back(randn({1, 1, 3, 2}, {.dtype = DType::float64, .requires_grad = true}));
  }
  CHECK(gradcheck(two_steps, x));
}

TEST_CASE("linear attention: wrong calls") {
  const Tensor x = zeros({1, 4, 3, 2}), pair = zeros({1, 2, 3, 2}), odd = zeros({1, 3, 3, 2});
  const Tensor longer = zeros({1, 4, 5, 2}),
               doubles = zeros({1, 4, 3, 2}, {.dtype = DType::float64});
  const Tensor lengths = tensor<int32_t>({3}), wide = tensor<int64_t>({3});
  const std::string expected =
      ": expected q [B, H, S_q, D], k [B, H_kv, S_k, D], v [B, H_kv, S_k, D_v], H a multiple of "
      "H_kv, got ";
  LinearAttentionState state;
  linear_attention_step(x, pair, pair, state);
  expect_errors({
      {"ShapeError: linear_attention" + expected + "[1, 4, 3, 2], [1, 3, 3, 2] and [1, 3, 3, 2]",
       [&] { linear_attention(x, odd, odd); }},
      {"DTypeError: linear_attention: expected tensors of one dtype, got float32 and float64",
       [&] { linear_attention(x, doubles, x); }},
      {"ValueError: linear_attention: expected a tensor, got an undefined tensor",
       [&] { linear_attention(x, x, Tensor()); }},
      {"ShapeError: linear_attention: expected as many queries as keys if causal, got "
       "[1, 4, 3, 2] and [1, 4, 5, 2]",
       [&] { linear_attention(x, longer, longer, {.causal = true}); }},
      {"ValueError: linear_attention: expected an eps above 0, got 0",
       [&] { linear_attention(x, x, x, {.eps = 0}); }},
      {"DTypeError: linear_attention: expected int32, got int64",
       [&] { linear_attention(x, x, x, {.key_lengths = wide}); }},
      {"ShapeError: linear_attention: expected shape [2], got [1]",
       [&] {
         linear_attention(zeros({2, 1, 3, 2}), zeros({2, 1, 3, 2}), zeros({2, 1, 3, 2}),
                          {.key_lengths = lengths});
       }},
      {"ShapeError: linear_attention_step: expected as many queries as keys, got [1, 4, 3, 2] and "
       "[1, 4, 5, 2]",
       [&] { linear_attention_step(x, longer, longer, state); }},
      {"ShapeError: linear_attention_step: expected shape [1, 4, 2, 2], got [1, 2, 2, 2]",
       [&] { linear_attention_step(x, x, x, state); }},
  });
}
