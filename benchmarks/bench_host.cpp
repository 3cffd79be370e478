// Times what the host does for one op: operands so small that the kernel takes no time. For its
// instructions: valgrind --tool=callgrind --toggle-collect='*host_us*' bench_host --case add, by
// 2000.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/linalg/linear.h>
#include <sash/ops/norm/layer_norm.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/factories.h>

#include "bench.h"

using sash::Tensor;

namespace {

/// Microseconds of the host per call, the least of several runs; a run queues fewer kernels than a
/// card keeps waiting for, so that the host never waits.
double host_us(sash::Device device, const std::function<void()>& call) {
  constexpr int kRuns = 20, kCalls = 100;
  double least = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    sash::synchronize(device);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    const std::chrono::duration<double, std::micro> spent =
        std::chrono::steady_clock::now() - start;
    least = std::min(least, spent.count() / kCalls);
  }
  return least;
}

bool run(sash::Device device, const std::vector<std::string>& wanted) {
  const sash::TensorOptions options{.device = device, .requires_grad = true};
  const Tensor x = sash::rand({8, 32}, options), w = sash::rand({32, 32}, options);
  const Tensor scale = sash::rand({32}, options), bias = sash::rand({32}, options);
  const Tensor q = sash::rand({1, 2, 16, 16}, options);
  const Tensor plain = x.detach(), g = sash::ones({8, 32}, {.device = device});
  const Tensor g_heads = sash::ones({1, 2, 16, 16}, {.device = device});
  const auto grads = [](const Tensor& y, const std::vector<Tensor>& inputs, const Tensor& g_out) {
    sash::grad({y}, inputs, {g_out});
  };
  const std::vector<std::pair<std::string, std::function<void()>>> cases{
      {"empty", [&] { empty_like(plain); }},
      {"add", [&] { add(plain, plain); }},
      {"linear", [&] { linear(plain, w.detach(), bias.detach()); }},
      {"layer_norm", [&] { layer_norm(plain, {32}, scale.detach(), bias.detach()); }},
      {"add, forward and backward", [&] { grads(add(x, x), {x}, g); }},
      {"linear, forward and backward",
       [&] {
         grads(linear(x, w, bias), {x, w, bias}, g);
       }},
      {"layer_norm, forward and backward",
       [&] {
         grads(layer_norm(x, {32}, scale, bias), {x, scale, bias}, g);
       }},
      {"attention, forward and backward",
       [&] { grads(attention(q, q, q, {.mask = sash::AttentionMask::causal()}), {q}, g_heads); }}};
  for (const auto& [name, call] : cases) {
    if (!wanted.empty() && !sash::bench::contains(wanted, name)) continue;
    sash::bench::print(
        {{"kind", "host"}, {"case", name}, {"us", sash::bench::rounded(host_us(device, call), 2)}});
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Times the host's part of ops", "cpu");
  std::vector<std::string> wanted;
  flags.add("--case", wanted, "only these cases");
  return sash::bench::run(flags, argc, argv,
                          [&](sash::Device device) { return run(device, wanted); });
}
