// Runs one training script on the CPU and on a GPU, from the same seed, and compares the losses.
// Without a GPU, compares two numbers of CPU threads.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <sash/core/parallel.h>
#include <sash/sash.h>

using namespace sash;

namespace {

constexpr int kSteps = 50;
constexpr int64_t kContext = 32, kBatch = 8;
constexpr double kTolerance = 1e-3;  // relative
const std::string kText =
    "she sells sea shells by the sea shore; the shells she sells are sea shells, she is sure; ";

// The training script. Runs on the default device.
std::vector<double> train() {
  manual_seed(1);
  nn::CausalLM model(
      {.vocab = 128, .context = kContext, .dim = 64, .heads = 4, .layers = 2, .dropout = 0.1});
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<int64_t> letters;
    for (int64_t i = 0; i < kBatch * (kContext + 1); ++i) {
      const int64_t at = step * kBatch + i / (kContext + 1) * 7 + i % (kContext + 1);
      letters.push_back(kText[static_cast<size_t>(at) % kText.size()]);
    }
    const Tensor batch = tensor(letters, {kBatch, kContext + 1});
    const Tensor inputs = batch.narrow(1, 0, kContext), targets = batch.narrow(1, 1, kContext);
    const Tensor loss = cross_entropy(model(inputs), targets);
    optimizer.zero_grad();
    loss.backward();
    optim::clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// Prints both loss curves; returns the largest relative difference.
double compare(const std::string& one, const std::vector<double>& a, const std::string& other,
               const std::vector<double>& b) {
  std::printf("%4s  %14s  %14s  %10s\n", "step", one.c_str(), other.c_str(), "difference");
  double largest = 0;
  for (size_t step = 0; step < a.size(); ++step) {
    const double difference = std::abs(b[step] - a[step]) / std::abs(a[step]);
    largest = difference <= largest ? largest : difference;  // keeps NaN
    if (step % 5 == 0 || step + 1 == a.size()) {
      std::printf("%4zu  %14.8f  %14.8f  %10.1e\n", step, a[step], b[step], difference);
    }
  }
  return largest;
}

int run() {
  set_default_device(kCPU);
  const std::vector<double> cpu = train();
  double largest = 0;
  std::string reason;
  if (try_backend(DeviceType::cuda, &reason)) {
    set_default_device(kCUDA);
    std::printf("cpu:    %s\ncuda:0: %s\n", backend(DeviceType::cpu).description(kCPU).c_str(),
                backend(DeviceType::cuda).description(kCUDA).c_str());
    largest = compare("cpu", cpu, to_string(kCUDA), train());
  } else {
    std::printf("CUDA is not available: %s\ncomparing two numbers of CPU threads instead:\n",
                reason.c_str());
    const int threads = num_threads(), others = threads == 1 ? 2 : 1;
    set_num_threads(others);
    largest = compare("threads: " + std::to_string(threads), cpu,
                      "threads: " + std::to_string(others), train());
  }
  const bool same = largest <= kTolerance;
  std::printf("largest relative difference %.1e: %s %g\n", largest, same ? "within" : "beyond",
              kTolerance);
  return same ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
