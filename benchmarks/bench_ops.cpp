// Times ops, after checking their results. Prints one line of JSON per figure. Matrix products have
// kind "gemm", all others "op". On a GPU the tensors are so large that ops are bound by memory;
// `share` is their rate divided by that of a plain copy.

#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/compare.h>
#include <sash/ops/elementwise/dropout.h>
#include <sash/ops/elementwise/gelu.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/index/embedding.h>
#include <sash/ops/index/gather.h>
#include <sash/ops/linalg/linear_gelu.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/ops/norm/dropout_add_layer_norm.h>
#include <sash/ops/norm/layer_norm.h>
#include <sash/ops/norm/rms_norm.h>
#include <sash/ops/norm/softmax.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/optim/adam.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "bench.h"

using nlohmann::ordered_json;
using sash::Shape;
using sash::Tensor;

namespace {

constexpr int kCalls = 7;
constexpr double kTolerance = 1e-4;
constexpr double kTf32Tolerance = 1e-2;  // TF32 has 10 bits of mantissa

sash::Device device;
double copy_gb_s = 0;  // measured in this run; 0 if not
bool failed = false;

/// The least bytes that an op reads and writes, in the forward pass and in both passes.
struct Traffic {
  double forward, both;
};

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
  const double rate = amount / ms / 1e6;
  figure[per] = sash::bench::rounded(rate, 1);
  if (std::string(per) == "gb_s" && copy_gb_s > 0) {
    figure["share"] = sash::bench::rounded(rate / copy_gb_s, 3);
  }
  sash::bench::print(figure);
}

void bench_copy() {
  const Tensor from = constant({64 << 20}), to = sash::empty(from.shape(), from.options());
  sash::Backend& owner = sash::backend(device.type);
  const auto bytes = static_cast<int64_t>(bytes_of(from));
  const auto copy = [&] {
    owner.copy(to.data<float>(), device, from.data<const float>(), device, bytes,
               owner.current_stream(device));
  };
  copy();
  sash::bench::check_close("copy", to, from, 0);
  const double ms = time(copy);
  copy_gb_s = 2 * bytes_of(from) / ms / 1e6;
  print({{"kind", "copy"}, {"case", "256MiB"}, {"pass", "fwd"}}, ms, "gb_s", 2 * bytes_of(from));
}

template <class Call>
void attempt(Call&& call) {
  failed = !sash::bench::attempt(call) || failed;
}

template <class Call>
void print_forward(const char* name, double bytes, Call&& call) {
  const double ms = time([&] {
    const sash::NoGradGuard no_grad;
    call();
  });
  print({{"kind", "op"}, {"case", name}, {"pass", "fwd"}}, ms, "gb_s", bytes);
}

/// Checks value and gradients of `fused` against `plain`, then times it.
template <class Fused, class Plain>
void bench_rows(const char* name, const Traffic& bytes, std::vector<Tensor> inputs, Fused&& fused,
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
  print_forward(name, bytes.forward, fused);
  const double both = time([&] { sash::grad({fused()}, inputs, {g}); });
  print({{"kind", "op"}, {"case", name}, {"pass", "fwdbwd"}}, both, "gb_s", bytes.both);
}

void bench_gemm(int64_t m, int64_t k, int64_t n, bool tf32) {
  sash::set_tf32_allowed(tf32);
  const Tensor a = constant({m, k}), b = constant({k, n});
  const Tensor y = matmul(a, b);
  // Freivalds' check: (a b) x = a (b x) for a random x, in float64.
  const Tensor x = sash::randn({n, 1}, {.dtype = sash::DType::float64, .device = device});
  const auto wide = [](const Tensor& t) { return t.to(sash::DType::float64); };
  const auto scale = 1 / static_cast<double>(k);
  const std::string name =
      std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n) + (tf32 ? "tf32" : "");
  sash::bench::check_close(name, matmul(wide(y), x) * scale,
                           matmul(wide(a), matmul(wide(b), x)) * scale,
                           tf32 ? kTf32Tolerance : kTolerance);
  const double ms = time([&] { matmul(a, b); });
  sash::set_tf32_allowed(false);
  print({{"kind", "gemm"}, {"case", name}}, ms, "gflops", 2.0 * static_cast<double>(m * k * n));
}

/// With `clipped`, all gradients are scaled to a norm of 1 as the step uses them.
void bench_adamw(int64_t count, bool clipped) {
  Tensor p = variable({count});
  p.set_grad(constant({count}));
  const double lr = 1e-3, decay = 1e-2;
  // The first step is p (1 - lr decay) - lr sign(g), up to eps.
  const Tensor g = p.grad();
  const Tensor scaled = clipped ? g / sqrt(sum(square(g))) : g;
  const Tensor wanted = p.detach() * (1 - lr * decay) - scaled / (abs(scaled) + 1e-8) * lr;
  sash::optim::AdamWOptions options{.lr = lr, .weight_decay = decay};
  options.max_grad_norm = clipped ? 1 : 0;
  sash::optim::AdamW optimizer(std::vector<Tensor>{p}, options);
  optimizer.step();
  sash::bench::check_close("adamw", p, wanted, kTolerance);
  const double ms = time([&] { optimizer.step(); });
  print({{"kind", "op"}, {"case", clipped ? "adamw clipped" : "adamw"}, {"pass", "step"}}, ms,
        "gb_s", (clipped ? 8 : 7) * bytes_of(p));
}

void bench_dropout(const Tensor& x) {
  const double p = 0.1;
  const auto state = sash::next_philox(device, x.numel());
  bench_rows(
      "dropout", {2 * bytes_of(x), 4 * bytes_of(x)}, {x}, [&] { return dropout_with(x, p, state); },
      [&] { return sash::composite::dropout_with(x, p, state); });
}

struct Sizes {
  int64_t rows, dim, hidden, keys;  ///< [rows, dim], GELU's [rows, hidden], softmax's [rows, keys]
  int64_t tokens, classes;          ///< logits [tokens, classes]
  int64_t vocab, width;             ///< the embedding table; `tokens` rows are looked up
  int64_t parameters;
};
// CPU: a layer of the char case, 8 sequences of 256 tokens. GPU: much larger than its cache.
constexpr Sizes kCpuSizes{2048, 384, 1536, 256, 2048, 96, 96, 384, 10'000'000};
constexpr Sizes kGpuSizes{32768, 1024, 1024, 1024, 16384, 4096, 50304, 768, 100'000'000};

void bench_elementwise(const Sizes& s) {
  const Tensor x = variable({s.rows, s.dim}), z = variable({s.rows, s.dim});
  const double n = bytes_of(x);
  // The gradients of x + z are g itself: the backward pass moves no data.
  bench_rows(
      "add", {3 * n, 3 * n}, {x, z}, [&] { return x + z; }, [&] { return x - (-z); });
  bench_dropout(x);
  const Tensor hidden = variable({s.rows, s.hidden});
  const double wide = bytes_of(hidden);
  bench_rows(
      "gelu", {2 * wide, 5 * wide}, {hidden}, [&] { return gelu(hidden); },
      [&] { return sash::composite::gelu(hidden); });
}

void bench_along_rows(const Sizes& s) {
  const Tensor x = variable({s.rows, s.dim}), weight = variable({s.dim}), bias = variable({s.dim});
  const double n = bytes_of(x);
  bench_rows(
      "layer_norm", {2 * n, 5 * n}, {x, weight, bias},
      [&] { return layer_norm(x, {s.dim}, weight, bias); },
      [&] { return sash::composite::layer_norm(x, {s.dim}, weight, bias); });
  const Tensor branch = variable({s.rows, s.dim});
  const double p = 0.1;
  const auto state = sash::random_state(device);
  bench_rows(
      "dropout_add_layer_norm", {4 * n, 8 * n}, {branch, x, weight, bias},
      [&] {
        sash::set_random_state(state, device);
        return dropout_add_layer_norm(branch, x, weight, bias, p).norm;
      },
      [&] {
        sash::set_random_state(state, device);
        return sash::layer_norm(x + dropout(branch, p), {s.dim}, weight, bias);
      });
  const Tensor scores = variable({s.rows, s.keys});
  const double keys = bytes_of(scores);
  bench_rows(
      "softmax", {2 * keys, 5 * keys}, {scores}, [&] { return softmax(scores); },
      [&] { return sash::composite::softmax(scores); });
  const Tensor logits = variable({s.tokens, s.classes}), targets = indices(s.classes, {s.tokens});
  bench_rows(
      "cross_entropy", {bytes_of(logits), 3 * bytes_of(logits)}, {logits},
      [&] { return cross_entropy(logits, targets); },
      [&] { return sash::composite::cross_entropy(logits, targets); });
}

void bench_embedding(const Sizes& s) {
  const Tensor table = variable({s.vocab, s.width}), tokens = indices(s.vocab, {s.tokens});
  const double n = static_cast<double>(s.tokens * s.width) * sizeof(float);
  const Tensor spread = tokens.unsqueeze(1).expand({s.tokens, s.width});
  bench_rows(
      "embedding", {2 * n, 3 * n + bytes_of(table)}, {table},
      [&] { return embedding(table, tokens); }, [&] { return gather(table, 0, spread); });
}

// Only the forward passes: the backward passes are views.
void bench_layouts(const Sizes& s) {
  const Tensor x = constant({s.rows, s.dim});
  const Tensor wide = x.to(sash::DType::float64);
  for (const int64_t axis : {1, 0}) {
    const char* name = axis == 1 ? "sum_rows" : "sum_columns";
    // Tolerance 1e-3: the terms cancel, so the error is relative to the sum of their magnitudes.
    sash::bench::check_close(name, x.sum({axis}).to(sash::DType::float64), wide.sum({axis}), 1e-3);
    print_forward(name, bytes_of(x), [&] { x.sum({axis}); });
  }
  const Tensor turned = x.mT().contiguous();
  sash::bench::check_close("transpose_copy", turned.mT(), x, 0);
  print_forward("transpose_copy", 2 * bytes_of(x), [&] { x.mT().contiguous(); });
}

/// Ops of halves on the CPU, whose tensors are larger than a core's own caches.
void bench_halves_cpu() {
  const int64_t rows = 2048, dim = 1536;
  for (const sash::DType dtype : {sash::DType::bfloat16, sash::DType::float16}) {
    const sash::TensorOptions options{.dtype = dtype, .device = device, .requires_grad = true};
    const auto variable = [&](const Shape& shape) { return randn(shape, options); };
    const Tensor x = variable({rows, dim}), z = variable({rows, dim});
    const Tensor weight = variable({dim}), bias = variable({dim}), square = variable({dim, dim});
    const double n = bytes_of(x);
    const auto timed = [&](const char* op, const Traffic& bytes, std::vector<Tensor> inputs,
                           auto&& call) {
      attempt([&] {
        std::vector<Tensor> wide;
        for (const Tensor& input : inputs) wide.push_back(input.detach().to(sash::DType::float32));
        const double rounding = dtype == sash::DType::bfloat16 ? 0x1p-8 : 0x1p-11;
        sash::bench::check_close(op, call(inputs).to(sash::DType::float32), call(wide), rounding);
        const std::string name = std::string(op) + " " + std::string(sash::name(dtype));
        print_forward(name.c_str(), bytes.forward, [&] { call(inputs); });
        if (bytes.both == 0) return;
        const Tensor g = variable(call(inputs).shape()).detach();
        const double both = time([&] { sash::grad({call(inputs)}, inputs, {g}); });
        print({{"kind", "op"}, {"case", name}, {"pass", "fwdbwd"}}, both, "gb_s", bytes.both);
      });
    };
    using Inputs = const std::vector<Tensor>&;
    timed("add", {3 * n, 0}, {x, z}, [](Inputs in) { return in[0] + in[1]; });
    timed("add_bias", {2 * n, 0}, {x, bias}, [](Inputs in) { return in[0] + in[1]; });
    timed("mul", {3 * n, 8 * n}, {x, z}, [](Inputs in) { return in[0] * in[1]; });
    timed("exp", {2 * n, 0}, {x}, [](Inputs in) { return exp(in[0]); });
    timed("silu", {2 * n, 0}, {x}, [](Inputs in) { return silu(in[0]); });
    timed("gelu", {2 * n, 5 * n}, {x}, [](Inputs in) { return gelu(in[0]); });
    timed("layer_norm", {2 * n, 5 * n}, {x, weight, bias},
          [&](Inputs in) { return layer_norm(in[0], {dim}, in[1], in[2]); });
    timed("rms_norm", {2 * n, 5 * n}, {x, weight},
          [&](Inputs in) { return rms_norm(in[0], {dim}, in[1]); });
    timed("softmax", {2 * n, 5 * n}, {x}, [](Inputs in) { return softmax(in[0]); });
    timed("sum_rows", {n, 0}, {x}, [](Inputs in) { return in[0].sum({1}); });
    timed("sum_columns", {n, 0}, {x}, [](Inputs in) { return in[0].sum({0}); });
    const double products = 2 * n + bytes_of(square);
    timed("matmul", {products, 3 * products}, {x, square},
          [](Inputs in) { return matmul(in[0], in[1]); });
  }
}

/// A layer of GPT-2 in bfloat16, on a GPU: rows at the rate of memory, and products with their
/// edges.
void bench_halves() {
  const int64_t rows = 16384, dim = 768, hidden = 3072;
  const sash::TensorOptions options{
      .dtype = sash::DType::bfloat16, .device = device, .requires_grad = true};
  const auto half = [&](const Shape& shape) { return randn(shape, options); };
  const auto timed = [&](const char* name, std::vector<Tensor> inputs, const char* per,
                         double amount, auto&& call) {
    const Tensor y = call(), g = sash::randn(y.shape(), {.dtype = y.dtype(), .device = device});
    const double ms = time([&] { sash::grad({call()}, inputs, {g}); });
    print({{"kind", "op"}, {"case", name}, {"pass", "fwdbwd"}}, ms, per, amount);
  };
  const Tensor x = half({rows, dim}), branch = half({rows, dim});
  const Tensor weight = half({dim}), bias = half({dim});
  const double n = bytes_of(x);
  timed("layer_norm bf16", {x, weight, bias}, "gb_s", 5 * n,
        [&] { return layer_norm(x, {dim}, weight, bias); });
  timed("dropout_add_layer_norm bf16", {branch, x, weight, bias}, "gb_s", 8 * n,
        [&] { return dropout_add_layer_norm(branch, x, weight, bias, 0.1).norm; });
  timed("add_layer_norm bf16", {branch, x, weight, bias}, "gb_s", 7 * n,
        [&] { return dropout_add_layer_norm(branch, x, weight, bias).norm; });
  print_forward("sum_columns bf16", n, [&] { x.sum({0}); });
  const std::vector<Tensor> mlp{x, half({hidden, dim}), half({hidden}), half({dim, hidden}), bias};
  const double flops = 12.0 * static_cast<double>(rows * dim * hidden);
  for (const bool fused : {true, false}) {
    timed(fused ? "gelu_mlp bf16" : "gelu_mlp bf16 composite", mlp, "gflops", flops, [&] {
      const auto f = fused ? sash::gelu_mlp : sash::composite::gelu_mlp;
      return f(mlp[0], mlp[1], mlp[2], mlp[3], mlp[4], sash::GeluApproximation::tanh);
    });
  }
}

void bench_all_ops() {
  if (device.is_cuda()) attempt(bench_copy);
  const Sizes& sizes = device.is_cuda() ? kGpuSizes : kCpuSizes;
  for (const auto part : {bench_elementwise, bench_along_rows, bench_embedding, bench_layouts}) {
    attempt([&] { part(sizes); });
  }
  for (const bool clipped : {false, true}) {
    attempt([&] { bench_adamw(sizes.parameters, clipped); });
  }
  if (device.is_cuda()) attempt(bench_halves);
}

void bench_all_gemms() {
  const auto gemm = [](int64_t m, int64_t k, int64_t n, bool tf32) {
    attempt([&] { bench_gemm(m, k, n, tf32); });
  };
  gemm(512, 512, 512, false);
  gemm(2048, 2048, 2048, false);
  gemm(4096, 384, 1536, false);
  if (!device.is_cuda()) return;
  gemm(4096, 4096, 4096, false);
  gemm(4096, 4096, 4096, true);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Times ops", "cpu");
  std::vector<std::string> kinds{"gemm", "op"};
  flags.add("--kind", kinds, "only these kinds: gemm, op; halves, on the CPU");
  return sash::bench::run(flags, argc, argv, [&](sash::Device chosen) {
    device = chosen;
    sash::bench::print_environment(device);
    if (sash::bench::contains(kinds, "gemm")) bench_all_gemms();
    if (sash::bench::contains(kinds, "op")) bench_all_ops();
    if (sash::bench::contains(kinds, "halves") && device.is_cpu()) bench_halves_cpu();
    return !failed;
  });
}
