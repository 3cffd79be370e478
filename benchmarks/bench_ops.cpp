// Times ops, after checking what they compute; one line of JSON per figure. Products of matrices
// have kind "gemm", attention "attention", everything else "op".

#include <CLI/CLI.hpp>

#include <sash/core/parallel.h>
#include <sash/ops/attention.h>
#include <sash/ops/binary.h>
#include <sash/ops/compare.h>
#include <sash/ops/cross_entropy.h>
#include <sash/ops/dropout.h>
#include <sash/ops/embedding.h>
#include <sash/ops/gelu.h>
#include <sash/ops/layer_norm.h>
#include <sash/ops/matmul.h>
#include <sash/ops/reduce.h>
#include <sash/ops/softmax.h>
#include <sash/optim/adam.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/grad_mode.h>
#include <sash/tensor/random.h>

#include "bench.h"

using nlohmann::ordered_json;
using sash::Shape;
using sash::Tensor;

namespace {

constexpr int kCalls = 7;
constexpr double kTolerance = 1e-4;

sash::Device device;

Tensor variable(const Shape& shape) {
  return randn(shape, {.device = device, .requires_grad = true});
}
Tensor constant(const Shape& shape) { return sash::randn(shape, {.device = device}); }
Tensor indices(int64_t below, const Shape& shape) {
  return sash::randint(0, below, shape, {.device = device});
}

double bytes_of(const Tensor& x) {
  return static_cast<double>(x.numel() * sash::size_of(x.dtype()));
}

template <class Call>
double time(Call&& call) {
  return sash::bench::median_ms(device, kCalls, call);
}

void print(ordered_json figure, double ms, const char* per, double amount) {
  figure["ms"] = sash::bench::rounded(ms, 3);
  if (std::string(per) == "gb_s") figure["bytes"] = static_cast<int64_t>(amount);
  figure[per] = sash::bench::rounded(amount / ms / 1e6, 1);
  sash::bench::print(figure);
}

/// Checks `fused` against `plain`, value and gradients, then times it. `bytes` is what the forward
/// pass reads and writes at least; the backward pass is taken to move twice as many.
template <class Fused, class Plain>
void bench_rows(const char* name, double bytes, std::vector<Tensor> inputs, Fused&& fused,
                Plain&& plain) {
  const Tensor y = fused(), wanted = plain();
  sash::bench::check_close(name, y, wanted, kTolerance);
  const Tensor g = constant(y.shape());
  const auto gradients = sash::grad({y}, inputs, {g});
  const auto wanted_gradients = sash::grad({wanted}, inputs, {g});
  for (size_t i = 0; i < inputs.size(); ++i) {
    sash::bench::check_close(std::string(name) + " backward", gradients[i], wanted_gradients[i],
                             10 * kTolerance);
  }
  const double forward = time([&] {
    const sash::NoGradGuard no_grad;
    fused();
  });
  print({{"kind", "op"}, {"case", name}, {"pass", "fwd"}}, forward, "gb_s", bytes);
  const double both = time([&] { sash::grad({fused()}, inputs, {g}); });
  print({{"kind", "op"}, {"case", name}, {"pass", "fwdbwd"}}, both, "gb_s", 3 * bytes);
}

void bench_gemm(int64_t m, int64_t k, int64_t n) {
  const Tensor a = constant({m, k}), b = constant({k, n});
  const Tensor y = matmul(a, b);
  // Freivalds' check: (a b) x = a (b x) for a random x, in float64.
  const Tensor x = sash::randn({n, 1}, {.dtype = sash::DType::float64, .device = device});
  const auto wide = [](const Tensor& t) { return t.to(sash::DType::float64); };
  const auto scale = 1 / static_cast<double>(k);
  const std::string name = std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n);
  sash::bench::check_close(name, matmul(wide(y), x) * scale,
                           matmul(wide(a), matmul(wide(b), x)) * scale, kTolerance);
  const double ms = time([&] { matmul(a, b); });
  print({{"kind", "gemm"}, {"case", name}}, ms, "gflops", 2.0 * static_cast<double>(m * k * n));
}

void bench_attention(int64_t batch, int64_t heads, int64_t length, int64_t dim) {
  const Shape shape{batch, heads, length, dim};
  const Tensor q = variable(shape), k = variable(shape), v = variable(shape), g = constant(shape);
  const sash::AttentionOptions options{.mask = sash::AttentionMask::causal()};
  const std::string name = "B" + std::to_string(batch) + "H" + std::to_string(heads) + "S" +
                           std::to_string(length) + "D" + std::to_string(dim) + "causal";
  const Tensor y = attention(q, k, v, options);
  const Tensor wanted = sash::composite::attention(q, k, v, options, {});
  sash::bench::check_close(name, y, wanted, kTolerance);
  const auto gradients = sash::grad({y}, {q, k, v}, {g});
  const auto wanted_gradients = sash::grad({wanted}, {q, k, v}, {g});
  for (size_t i = 0; i < 3; ++i) {
    sash::bench::check_close(name, gradients[i], wanted_gradients[i], 10 * kTolerance);
  }
  const double forward = time([&] {
    const sash::NoGradGuard no_grad;
    attention(q, k, v, options);
  });
  const double both = time([&] { sash::grad({attention(q, k, v, options)}, {q, k, v}, {g}); });
  // Of attended pairs: two products forward, five backward.
  const double pairs = static_cast<double>(batch * heads) * static_cast<double>(length) *
                       static_cast<double>(length + 1) / 2;
  sash::bench::print(
      {{"kind", "attention"},
       {"case", name},
       {"impl", "sash"},
       {"fwd_ms", sash::bench::rounded(forward, 3)},
       {"fwdbwd_ms", sash::bench::rounded(both, 3)},
       {"fwd_gflops", std::round(4 * static_cast<double>(dim) * pairs / forward / 1e6)},
       {"fwdbwd_gflops", std::round(14 * static_cast<double>(dim) * pairs / both / 1e6)}});
}

void bench_adamw(int64_t count) {
  Tensor p = variable({count});
  p.set_grad(constant({count}));
  const double lr = 1e-3, decay = 1e-2;
  // The first step moves every element by lr against the sign of its gradient, after the decay.
  const Tensor g = p.grad();
  const Tensor wanted = p.detach() * (1 - lr * decay) - g / (abs(g) + 1e-8) * lr;
  sash::optim::AdamW optimizer(std::vector<Tensor>{p}, {.lr = lr, .weight_decay = decay});
  optimizer.step();
  sash::bench::check_close("adamw", p, wanted, kTolerance);
  const double ms = time([&] { optimizer.step(); });
  print({{"kind", "op"}, {"case", "adamw"}, {"pass", "step"}}, ms, "gb_s", 7 * bytes_of(p));
}

void bench_dropout(const Tensor& x) {
  const double p = 0.1;
  const auto state = sash::next_philox(device, x.numel());
  bench_rows(
      "dropout", 2 * bytes_of(x), {x}, [&] { return dropout_with(x, p, state); },
      [&] { return sash::composite::dropout_with(x, p, state); });
}

// Shapes of a layer of the char case: 8 sequences of 256 tokens, width 384.
void bench_all_rows() {
  constexpr int64_t rows = 2048, dim = 384, vocab = 96;
  const Tensor x = variable({rows, dim}), z = variable({rows, dim});
  const Tensor wide = variable({rows, 4 * dim}), weight = variable({dim}), bias = variable({dim});
  const Tensor scores = variable({rows, 256}), logits = variable({rows, vocab});
  const Tensor table = variable({vocab, dim}), targets = indices(vocab, {rows});
  bench_rows(
      "add", 3 * bytes_of(x), {x, z}, [&] { return x + z; }, [&] { return x - (-z); });
  bench_rows(
      "gelu", 2 * bytes_of(wide), {wide}, [&] { return gelu(wide); },
      [&] { return sash::composite::gelu(wide); });
  bench_rows(
      "layer_norm", 2 * bytes_of(x), {x, weight, bias},
      [&] { return layer_norm(x, {dim}, weight, bias); },
      [&] { return sash::composite::layer_norm(x, {dim}, weight, bias); });
  bench_rows(
      "softmax", 2 * bytes_of(scores), {scores}, [&] { return softmax(scores); },
      [&] { return sash::composite::softmax(scores); });
  bench_rows(
      "cross_entropy", bytes_of(logits), {logits}, [&] { return cross_entropy(logits, targets); },
      [&] { return sash::composite::cross_entropy(logits, targets); });
  bench_rows(
      "embedding", 2 * bytes_of(x), {table}, [&] { return embedding(table, targets); },
      [&] {
        const Tensor hot = eq(targets.unsqueeze(1), sash::arange(0, vocab, 1, {.device = device}));
        return matmul(hot.to(table.dtype()), table);
      });
  bench_dropout(x);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times ops");
  std::string device_name = "cpu";
  std::vector<std::string> kinds{"gemm", "attention", "op"};
  app.add_option("--device", device_name, "cpu, cuda or auto");
  app.add_option("--kind", kinds, "only these kinds: gemm, attention, op");
  CLI11_PARSE(app, argc, argv);
  try {
    device = sash::Device::parse(device_name);
    sash::bench::print({{"kind", "env"},
                        {"device", sash::backend(device.type).description(device)},
                        {"threads", sash::num_threads()}});
    const auto wanted = [&](const char* kind) {
      return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
    };
    if (wanted("gemm")) {
      bench_gemm(512, 512, 512);
      bench_gemm(2048, 2048, 2048);
      bench_gemm(4096, 384, 1536);
    }
    if (wanted("attention")) bench_attention(8, 6, 256, 64);
    if (wanted("op")) {
      bench_all_rows();
      bench_adamw(10'000'000);
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
