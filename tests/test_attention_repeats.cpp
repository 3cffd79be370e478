// Attention on a card, a thousand times: every result has the bits of the first.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <sash/core/backend.h>
#include <sash/ops/kernels/compare.h>
#include <sash/sash.h>

#include "cuda_device.h"

using namespace sash;

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
          {"causal", {.mask = causal}, 4, 32, 1024},
          {"blocks", {.mask = blocks}, 1, 4, 768},
          {"packed", {.mask = causal & AttentionMask::packed(starts)}, 1, 4, 512},
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
  kernels::ne(context, x, y, differ.tensor_view());
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

}  // namespace

TEST_CASE("cuda mask repeats: bfloat16, 64 features") {
  if (!cuda_missing()) check_repeats(DType::bfloat16, 64);
}

TEST_CASE("cuda mask repeats: bfloat16, 128 features") {
  if (!cuda_missing()) check_repeats(DType::bfloat16, 128);
}

TEST_CASE("cuda mask repeats: float32, 64 features") {
  if (!cuda_missing()) check_repeats(DType::float32, 64);
}
