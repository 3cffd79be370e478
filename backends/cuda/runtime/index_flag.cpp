#include "index_flag.h"

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "../../../core/error.h"
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
    case IndexOp::scatter:
      return "scatter";
    case IndexOp::cross_entropy:
      return "cross_entropy";
    case IndexOp::sparse_products:
      return "sparse_products";
    default:
      return "index";
  }
}

[[noreturn]] void throw_report(const IndexFlag& found) {
  const std::string extent = std::to_string(found.extent), value = std::to_string(found.value);
  const std::string place = std::to_string(found.position);
  switch (found.op) {
    case IndexOp::attention_lengths:
      throw ValueError(found.name, "key lengths in [0, " + extent + "]",
                       value + " for batch " + place);
    case IndexOp::attention_cu_seqlens:
      throw ValueError(found.name, "cu_seqlens that ascend from 0 to the length, " + extent,
                       value + " at " + place);
    case IndexOp::attention_ranges:
      throw ValueError(found.name, "row ranges in [0, " + extent + "]",
                       value + " for query " + place);
    case IndexOp::attention_selected:
      throw IndexError("attention", "selected blocks in [-1, " + extent + ")",
                       value + " at element " + place);
    case IndexOp::gather:
    case IndexOp::scatter_add:
    case IndexOp::scatter:
      throw IndexError(name_of(found.op), "indices in [-" + extent + ", " + extent + ")",
                       value + " at element " + place);
    default:
      throw IndexError(name_of(found.op), "indices in [0, " + extent + ")",
                       value + " at element " + place);
  }
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
  int reported = IndexFlag::kReported;  // one thread throws it
  if (!state.compare_exchange_strong(reported, IndexFlag::kClaimed)) return;
  const IndexFlag found = *flag;
  state.store(IndexFlag::kNone, std::memory_order_release);
  throw_report(found);
}

}  // namespace sash::cuda
