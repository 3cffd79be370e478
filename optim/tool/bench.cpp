#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sash/core/backend/kernel.h>
#include <sash/core/readable.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/operation_count.h>
#include <sash/optim/adam.h>
#include <sash/optim/clip.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

#include "commands.h"
#include "peak.h"

namespace {

using Call = std::function<void()>;

constexpr const char* kWindow = "causal_window:128";

// Adds up the products of kernels that are not part of others.
class Counter final : public sash::KernelObserver {
 public:
  void before(const sash::KernelCall& call) override {
    if (depth_++ == 0) operations_ += sash::operation_count(call);
  }
  void after(const sash::KernelCall&) noexcept override { --depth_; }
  double operations() const { return operations_; }

 private:
  int depth_ = 0;
  double operations_ = 0;
};

double operations_of(const Call& call) {
  const auto counter = std::make_shared<Counter>();
  sash::KernelObserver::install(counter);
  call();
  sash::KernelObserver::remove(*counter);
  return counter->operations();
}

// Times calls, and prints a row for each.
class Table {
 public:
  Table(sash::Device device, double seconds)
      : device_(device), seconds_(seconds), peak_(measured_peak(device)) {
    std::printf("%s: %s\n", to_string(device).c_str(),
                sash::backend(device.type).description(device).c_str());
    std::printf("peak in float32 %sFLOP/s (%s)\n\n", sash::with_prefix(peak_).c_str(),
                device.is_cuda() ? "the best large product" : "multiply-adds of registers");
    std::printf("%-52s %10s %10s %6s %10s\n", "", "ms", "GFLOP/s", "peak%", "tokens/s");
  }

  // The median of the calls that fit into the time; `tokens` if the call is a step that has some.
  void row(const char* what, const Call& call, double tokens = 0) const {
    const double operations = operations_of(call);
    std::vector<double> times;
    double spent = 0;
    while (times.empty() || spent < seconds_) {
      const auto start = std::chrono::steady_clock::now();
      call();
      sash::synchronize(device_);
      times.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      spent += times.back();
    }
    std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2),
                     times.end());
    const double seconds = times[times.size() / 2];
    std::printf("%-52s %10.3f %10.1f %6.1f", what, 1e3 * seconds, 1e-9 * operations / seconds,
                100 * operations / seconds / peak_);
    if (tokens > 0) std::printf(" %10s", sash::with_prefix(tokens / seconds).c_str());
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  sash::Device device_;
  double seconds_, peak_;
};

void time_products(const Table& table, sash::Device device) {
  const sash::NoGradGuard no_grad;
  constexpr int64_t kSide = 1024;
  for (const sash::DType dtype : {sash::DType::float32, sash::DType::bfloat16}) {
    const sash::Tensor a = sash::randn({kSide, kSide}, {.dtype = dtype, .device = device});
    const std::string what = "product 1024 x 1024 x 1024, " + std::string(name(dtype));
    table.row(what.c_str(), [&] { sash::matmul(a, a); });
  }
}

void time_attention(const Table& table, sash::Device device) {
  constexpr int64_t kTokens = 1024;
  const sash::TensorOptions options{.device = device, .requires_grad = true};
  const auto make = [&] { return sash::randn({1, 4, kTokens, 64}, options); };
  const sash::Tensor q = make(), k = make(), v = make(), g = make().detach();
  for (const char* mask : {"causal", kWindow}) {
    const sash::AttentionOptions masked{.mask = sash::AttentionMask::parse(mask)};
    const std::string what = std::string("attention [1, 4, 1024, 64], ") + mask;
    const auto run = [&] { sash::attention(q, k, v, masked).backward(g); };
    table.row(what.c_str(), run, kTokens);
  }
}

void time_training(const Table& table, sash::Device device) {
  constexpr int64_t kBatch = 4, kTokens = 256;
  for (const char* mask : {"causal", kWindow}) {
    sash::manual_seed(1);
    sash::nn::CausalLM model(
        {.vocab = 256, .context = kTokens, .dim = 128, .heads = 4, .layers = 2, .attention = mask});
    model.to(device);
    sash::optim::AdamW optimizer(model.parameters());
    const sash::Tensor tokens =
        sash::randint(0, 256, {kBatch, kTokens}, {.dtype = sash::DType::int64, .device = device});
    const std::string what = std::string("training step, 2 layers of 128, ") + mask;
    const auto step = [&] {
      optimizer.zero_grad();
      model.loss(tokens, tokens).backward();
      sash::optim::clip_grad_norm_(model.parameters(), 1.0);
      optimizer.step();
    };
    table.row(what.c_str(), step, kBatch * kTokens);
  }
}

}  // namespace

void print_bench(const BenchChoice& choice) {
  const sash::Device device = sash::Device::parse(choice.device);
  const Table table(device, choice.seconds);
  time_products(table, device);
  time_attention(table, device);
  time_training(table, device);
}
