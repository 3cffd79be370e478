// Attention again: a thousand times on a card, and for one head that was computed among many; every
// result has the bits of the first.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/ops/kernels/elementwise.h>
#include <sash/sash.h>

#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

/// q, k and v are [batch, heads, length, D].
struct Setup {
  std::string name;
  AttentionOptions options;
  int64_t batch, heads, length;
};

std::vector<Setup> setups() {
  const AttentionMask window = AttentionMask::window(100, 28), causal = AttentionMask::causal();
  const AttentionMask blocks =
      AttentionMask::bigbird({.block = 32, .window = 3, .global = 1, .random = 2, .seed = 5});
  const Tensor starts = tensor<int32_t>({0, 100, 163, 164, 400, 512}, {.device = kCUDA});
  return {{"window", {.mask = window}, 1, 4, 512},
          // With several tiles for each multiprocessor.
          {"causal", {.mask = causal}, 4, short_tests() ? 2 : 32, 1024},
          {"wide", {.mask = AttentionMask::window(1000, 0)}, 2, 4, short_tests() ? 1100 : 3008},
          {"long", {.mask = causal}, 1, 4, 5200},
          {"blocks", {.mask = blocks}, 1, 4, 768},
          {"scattered", {.mask = AttentionMask::random_blocks(3, 1, 64)}, 2, 8, 2048},
          {"packed", {.mask = causal & AttentionMask::packed(starts)}, 1, 4, 512},
          {"short", {.mask = causal}, 8, short_tests() ? 2 : 32, 320},
          {"short dropout", {.mask = causal, .dropout = 0.2}, 8, short_tests() ? 2 : 32, 320},
          {"dropout", {.mask = window, .dropout = 0.2}, 1, 4, 512}};
}

/// The words of 32 bits that a contiguous tensor consists of.
TensorView words_of(const Tensor& x) {
  REQUIRE(x.is_contiguous());
  TensorView words = x.tensor_view();
  words.shape = {x.numel() * size_of(x.dtype()) / 4};
  words.strides = contiguous_strides(words.shape);
  words.dtype = DType::int32;
  return words;
}

/// How many words differ; stays on the device.
Tensor differences(const Tensor& a, const Tensor& b) {
  const TensorView x = words_of(a), y = words_of(b);
  const Tensor differ = empty(x.shape, {.dtype = DType::boolean, .device = a.device()});
  KernelContext context = kernel_context(a.device());
  kernels::slot<op::Ne>()(context, x, y, differ.tensor_view());
  return differ.sum();
}

/// Attention over one problem, as often as wanted.
class Repeated {
 public:
  Repeated(const Setup& setup, DType dtype, int64_t depth) : options_(setup.options) {
    manual_seed(3);
    const Shape shape{setup.batch, setup.heads, setup.length, depth};
    for (Tensor* x : {&q_, &k_, &v_, &g_}) *x = randn(shape, {.dtype = dtype, .device = kCUDA});
    for (Tensor* x : {&q_, &k_, &v_}) x->requires_grad_();
  }

  /// out, lse, dq, dk and dv.
  std::vector<Tensor> run() const {
    manual_seed(7);
    const AttentionWithLse y = attention_with_lse(q_, k_, v_, options_);
    std::vector<Tensor> all = grad({y.out}, {q_, k_, v_}, {g_});
    all.insert(all.begin(), {y.out.detach(), y.lse.detach()});
    return all;
  }

 private:
  AttentionOptions options_;
  Tensor q_, k_, v_, g_;
};

void check_repeats(DType dtype, int64_t depth) {
  const int repeats = short_tests() ? 3 : 1000;
  for (const Setup& setup : setups()) {
    CAPTURE(setup.name);
    const Repeated attention(setup, dtype, depth);
    const std::vector<Tensor> first = attention.run();
    REQUIRE(differences(first[0], first[2]).item<int64_t>() > 0);  // it does compare
    std::vector<Tensor> differ(first.size(), zeros({}, {.dtype = DType::int64, .device = kCUDA}));
    for (Tensor& count : differ) count = count.clone();
    for (int repeat = 1; repeat < repeats; ++repeat) {
      const std::vector<Tensor> again = attention.run();
      for (size_t i = 0; i < first.size(); ++i) differ[i].add_(differences(again[i], first[i]));
    }
    for (size_t i = 0; i < first.size(); ++i) {
      CAPTURE(std::vector<std::string>({"out", "lse", "dq", "dk", "dv"})[i]);
      CHECK(differ[i].item<int64_t>() == 0);
    }
  }
}

/// out, lse, dq, dk and dv of [B, H, S, D] inputs and a cotangent.
std::vector<Tensor> results(const AttentionOptions& options, const std::vector<Tensor>& qkvg) {
  std::vector<Tensor> x;
  for (size_t i = 0; i < 3; ++i) x.push_back(qkvg[i].detach().requires_grad_());
  const AttentionWithLse y = attention_with_lse(x[0], x[1], x[2], options);
  std::vector<Tensor> all = grad({y.out}, x, {qkvg[3]});
  all.insert(all.begin(), {y.out.detach(), y.lse.detach()});
  return all;
}

/// Of [B, H, S, D], under masks whose lines are even, uneven, or have a few long ones among them:
/// so every way to share tiles is taken where there are more than a card's processors hold. How
/// they are shared may not show: a head by itself, whose tiles all start at once, has the same
/// bits.
void check_heads(Device device, DType dtype, const Shape& shape) {
  const int64_t batch = shape[0], heads = shape[1];
  const int64_t apart = std::max<int64_t>(1, batch * heads / (short_tests() ? 2 : 5));
  manual_seed(4);
  std::vector<Tensor> qkvg;
  for (int i = 0; i < 4; ++i) {
    qkvg.push_back(randn(shape, {.dtype = dtype, .device = device}));
  }
  const AttentionMask window = AttentionMask::symmetric_window(40);
  for (const AttentionMask& mask : {window, AttentionMask::window(200, 0), AttentionMask::causal(),
                                    window | AttentionMask::global({300}), AttentionMask()}) {
    CAPTURE(mask.to_string());
    const std::vector<Tensor> among = results({.mask = mask}, qkvg);
    for (int64_t at = 0; at < batch * heads; at += apart) {
      const auto head = [&](const Tensor& x) {
        return x.slice(0, at / heads, at / heads + 1).slice(1, at % heads, at % heads + 1);
      };
      std::vector<Tensor> own;
      for (const Tensor& x : qkvg) own.push_back(head(x));
      const std::vector<Tensor> alone = results({.mask = mask}, own);
      for (size_t i = 0; i < alone.size(); ++i) {
        CAPTURE(std::vector<std::string>({"out", "lse", "dq", "dk", "dv"})[i]);
        CHECK(differences(alone[i], head(among[i]).contiguous()).item<int64_t>() == 0);
      }
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("mask repeats: a head has the same bits in any batch", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  if (On::device.is_cpu()) {
    // Longer heads are cut into strips, by how many heads there are.
    check_heads(kCPU, DType::float32, {2, 5, 448, 24});
    check_heads(kCPU, DType::bfloat16, {2, 5, 448, 32});
    return;
  }
  const int64_t heads = short_tests() ? 2 : 30;
  check_heads(kCUDA, DType::bfloat16, {4, heads, 832, 64});
  check_heads(kCUDA, DType::float16, {4, heads, 832, 128});
  check_heads(kCUDA, DType::bfloat16, {4, heads, 2240, 128});
  const int64_t few = short_tests() ? 2 : 44;
  check_heads(kCUDA, DType::bfloat16, {1, few, 1300, 64});
  check_heads(kCUDA, DType::bfloat16, {1, few, 1980, 64});
  check_heads(kCUDA, DType::bfloat16, {1, few, short_tests() ? 1980 : 4160, 64});
  check_heads(kCUDA, DType::float32, {4, heads, 832, 64});
}

TEST_CASE("cuda mask repeats: bfloat16, 64 features") {
  if (!missing(kCUDA)) check_repeats(DType::bfloat16, 64);
}

TEST_CASE("cuda mask repeats: bfloat16, 128 features") {
  if (!missing(kCUDA)) check_repeats(DType::bfloat16, 128);
}

TEST_CASE("cuda mask repeats: float32, 64 features") {
  if (!missing(kCUDA)) check_repeats(DType::float32, 64);
}
