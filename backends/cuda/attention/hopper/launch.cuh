#pragma once

#include <algorithm>
#include <optional>

#include "scheduler.cuh"

/// How the host launches a persistent kernel.
namespace sash::cuda::hopper {

/// What a block of threads may have of shared memory.
inline constexpr size_t kSharedBytes = 227 * 1024;

/// Of the card.
inline int multiprocessors(const KernelContext& context) {
  int count = 0;
  SASH_CUDA_CHECK(
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, context.device.index));
  return count;
}

/// Launches a kernel of shape S with one block of threads a multiprocessor, or fewer if there are
/// fewer work tiles. These are made of the rows of queries (`by_query`) or keys of each head; the
/// groups of a block of threads share long rows if `share`. `allowed`: see `launch`.
template <class S, class Shared, bool by_query, class Call>
void launch_persistent(const KernelContext& context, void (*kernel)(Call),
                       std::atomic<uint64_t>& allowed, Call call, bool share = true) {
  static_assert(sizeof(Shared) <= kSharedBytes);
  constexpr auto shared = static_cast<int>(sizeof(Shared));
  const auto& p = call.dims;
  const int active = multiprocessors(context);
  call.order = tile_order({.list = by_query ? p.map.by_query : p.map.by_key,
                           .list_heads = p.map.batches * p.map.heads,
                           .batches = p.batches,
                           .heads = by_query ? p.heads : p.key_heads,
                           .blocks = by_query ? p.map.query_blocks : p.map.key_blocks,
                           .rows = S::kBlockRows,
                           .share = share,
                           .bounded = p.bounds.ranges != nullptr,
                           .active_blocks = active});
  std::optional<Workspace> counter;
  if (call.order.counted) {
    counter.emplace(context, sizeof(int));
    call.order.counter = counter->ptr<int>();
    SASH_CUDA_CHECK(cudaMemsetAsync(call.order.counter, 0, sizeof(int),
                                    static_cast<cudaStream_t>(context.stream.handle)));
  }
  launch(context, kernel, allowed, std::min(active, call.order.tiles), S::kThreads, shared, shared,
         call);
}

}  // namespace sash::cuda::hopper
