#include "limits.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "../../../../core/error.h"
#include "../../hopper/barrier.cuh"
#include "../../runtime/backend.h"
#include "../../runtime/check.h"

namespace sash::cuda {
namespace {

constexpr int kProbeBytes = 4096;

/// Has this much static shared memory if SASH_HOPPER is set: a sign that the sm_90a kernels have
/// code. Never launched.
__global__ void hopper_probe() {
#ifdef SASH_HOPPER
  __shared__ volatile unsigned char here[kProbeBytes];
  here[threadIdx.x] = 1;
#endif
}

bool probe_hopper_code(int card) {
  if (card_attribute(card, cudaDevAttrComputeCapabilityMajor) != 9 ||
      card_attribute(card, cudaDevAttrComputeCapabilityMinor) != 0) {
    return false;
  }
  const CardGuard guard(card);
  const RelaxedCapture relaxed;  // the driver may load the code now
  cudaFuncAttributes attributes{};
  SASH_CUDA_CHECK(cudaFuncGetAttributes(&attributes, hopper_probe));
  return attributes.sharedSizeBytes >= static_cast<size_t>(kProbeBytes);
}

/// What `find` says of a card, asked once. Two threads may both ask; the answers are the same.
template <class F>
int remembered(std::atomic<int>& place, F find) {
  constexpr int unknown = 0;
  const int known = place.load(std::memory_order_relaxed);
  if (known != unknown) return known;
  const int found = find();
  place.store(found, std::memory_order_relaxed);
  return found;
}

using PerCard = std::array<std::atomic<int>, CudaBackend::kMostCards>;

int forced_limit(const char* text) {
  const std::string_view view(text);
  int bytes = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), bytes);
  if (error == std::errc() && end == view.data() + view.size() && bytes >= kLeastSharedMemory) {
    return bytes;
  }
  throw ValueError("attention",
                   "SASH_SHARED_MEMORY_LIMIT of at least " + std::to_string(kLeastSharedMemory),
                   text);
}

}  // namespace

int shared_memory_limit(Device device) {
  static constinit PerCard limits{};
  const int limit = remembered(limits[static_cast<size_t>(device.index)], [&] {
    return card_attribute(device.index, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  });
  const char* forced = std::getenv("SASH_SHARED_MEMORY_LIMIT");
  return forced ? std::min(limit, forced_limit(forced)) : limit;
}

bool has_hopper_code(Device device) {
  constexpr int no = 1, yes = 2;
  static constinit PerCard answers{};
  return remembered(answers[static_cast<size_t>(device.index)],
                    [&] { return probe_hopper_code(device.index) ? yes : no; }) == yes;
}

void check_extents(const char* op, View q, View k) {
  constexpr int64_t most = int64_t{1} << 30;
  const int64_t largest = std::max({q.shape[0] * q.shape[1], q.shape[2], k.shape[2]});
  if (largest <= most) return;
  throw ValueError(op, "at most 2^30 queries, keys, and heads of all batches",
                   std::to_string(largest));
}

}  // namespace sash::cuda
