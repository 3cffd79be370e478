#include "index_flag.h"

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "../../core/error.h"
#include "backend.h"
#include "check.h"

namespace sash::cuda {
namespace {

std::array<std::atomic<IndexFlag*>, CudaBackend::kMostCards> flags{};
std::mutex mutex;

const char* name_of(IndexOp op) {
  switch (op) {
    case IndexOp::embedding:
      return "embedding";
    case IndexOp::embedding_backward:
      return "embedding_backward";
    case IndexOp::gather:
      return "gather";
    case IndexOp::scatter_add:
      return "scatter_add";
    case IndexOp::cross_entropy:
      return "cross_entropy";
  }
  return "index";
}

}  // namespace

IndexFlag* index_flag(int card) {
  std::atomic<IndexFlag*>& place = flags[static_cast<size_t>(card)];
  if (IndexFlag* found = place.load(std::memory_order_acquire)) return found;
  const std::lock_guard lock(mutex);
  if (IndexFlag* found = place.load(std::memory_order_relaxed)) return found;
  const CardGuard guard(card);
  void* memory = nullptr;
  SASH_CUDA_CHECK(
      cudaHostAlloc(&memory, sizeof(IndexFlag), cudaHostAllocMapped | cudaHostAllocPortable));
  auto* flag = new (memory) IndexFlag{};
  place.store(flag, std::memory_order_release);
  return flag;
}

void throw_index_error(int card) {
  IndexFlag* flag = flags[static_cast<size_t>(card)].load(std::memory_order_acquire);
  if (!flag) return;
  const std::atomic_ref<int> state(flag->state);
  if (state.load(std::memory_order_acquire) != IndexFlag::kReported) return;
  const IndexFlag found = *flag;
  state.store(IndexFlag::kNone, std::memory_order_release);
  throw IndexError(name_of(found.op), "indices in [0, " + std::to_string(found.extent) + ")",
                   std::to_string(found.value) + " at element " + std::to_string(found.position));
}

}  // namespace sash::cuda
