#include "peak.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/parallel.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <int kLanes>
struct Lanes {
  typedef float Vector __attribute__((vector_size(sizeof(float) * kLanes)));
};

// Enough independent sums to fill the latency of two units.
constexpr size_t kSums = 12;
constexpr int kRounds = 1 << 14;

// Multiplies and adds in `kSums` vectors. The caller reads the result, so that the loop stays.
template <int kLanes, size_t... kSum>
[[gnu::always_inline]] inline float multiply_add(std::index_sequence<kSum...>) {
  typename Lanes<kLanes>::Vector sums[kSums] = {}, factor = {};
  for (int i = 0; i < kLanes; ++i) factor[i] = 0.5F + 1e-3F * static_cast<float>(i);
  ((sums[kSum] += static_cast<float>(kSum)), ...);
  for (int round = 0; round < kRounds; ++round) {
    ((sums[kSum] = sums[kSum] * factor + factor), ...);
  }
  ((factor += sums[kSum]), ...);
  return factor[0];
}
constexpr auto kAll = std::make_index_sequence<kSums>();

struct Loop {
  int lanes;
  float (*run)();
};

float plain() { return multiply_add<4>(kAll); }

#if defined(__x86_64__)
__attribute__((target("avx512f"))) float with_avx512() { return multiply_add<16>(kAll); }
__attribute__((target("avx2,fma"))) float with_avx2() { return multiply_add<8>(kAll); }

Loop best_loop() {
  if (__builtin_cpu_supports("avx512f")) return {16, with_avx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {8, with_avx2};
  return {4, plain};
}
#else
Loop best_loop() { return {4, plain}; }
#endif

double cpu_peak() {
  const Loop loop = best_loop();
  const int threads = sash::num_threads();
  std::vector<float> results(static_cast<size_t>(threads));
  double least = 1e30;
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    sash::parallel_for(threads, 1, [&](int64_t begin, int64_t) {
      results[static_cast<size_t>(begin)] = loop.run();
    });
    least = std::min(least, seconds_since(start));
  }
  return 2.0 * loop.lanes * static_cast<double>(kSums) * kRounds * threads / least;
}

double cuda_peak(sash::Device device) {
  constexpr int64_t kSide = 8192;
  const sash::Tensor x = sash::ones({kSide, kSide}, {.device = device});
  double least = 1e30;
  for (int i = 0; i < 5; ++i) {
    sash::synchronize(device);
    const auto start = std::chrono::steady_clock::now();
    sash::matmul(x, x);
    sash::synchronize(device);
    least = std::min(least, seconds_since(start));
  }
  return 2.0 * kSide * kSide * kSide / least;
}

}  // namespace

double measured_peak(sash::Device device) {
  const sash::NoGradGuard no_grad;
  return device.is_cuda() ? cuda_peak(device) : cpu_peak();
}
