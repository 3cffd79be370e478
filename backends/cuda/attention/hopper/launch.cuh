#pragma once

#include <algorithm>
#include <optional>

#include "scheduler.cuh"

/// How the host launches a persistent kernel.
namespace sash::cuda::hopper {

/// The shared memory in bytes that a block of threads may use. A multiprocessor has 1,024 bytes
/// more for each block that it runs.
inline constexpr size_t kSharedBytes = 227 * 1024;

/// How many multiprocessors the card has.
inline int multiprocessors(const KernelContext& context) {
  return card_attribute(context.device.index, cudaDevAttrMultiProcessorCount);
}

/// How many blocks of threads of shape S the card runs at once.
template <class S>
int active_blocks(const KernelContext& context) {
  return S::kTogether * multiprocessors(context);
}

/// Launches a kernel of shape S with as many blocks of threads as the card runs at once, or with
/// fewer if there are fewer work tiles. Work tiles are made of the query rows (`by_query`) or the
/// key rows of each head. The groups of a block of threads share long rows if `share`.
template <auto kernel, class S, class Shared, bool by_query, class Call>
void launch_persistent(const KernelContext& context, Call call, bool share = true) {
  const auto& p = call.dims;
  int heads = by_query ? p.heads : p.key_heads, splits = 0;
  if constexpr (!by_query) splits = call.splits;
  if (splits > 0) heads = p.heads * splits;
  call.order = tile_order({.list = by_query ? p.map.by_query : p.map.by_key,
                           .list_heads = p.map.batches * p.map.heads,
                           .batches = p.batches,
                           .heads = heads,
                           .blocks = by_query ? p.map.query_blocks : p.map.key_blocks,
                           .rows = S::kBlockRows,
                           .share = share,
                           .bounded = p.bounds.ranges != nullptr,
                           .active_blocks = active_blocks<S>(context)});
  call.order.splits = std::max(splits, 1);
  std::optional<Workspace> counter;
  if (call.order.counted) {
    counter.emplace(context, sizeof(int));
    call.order.counter = counter->ptr<int>();
    SASH_CUDA_CHECK(cudaMemsetAsync(call.order.counter, 0, sizeof(int), stream_of(context)));
  }
  launch_in_order<kernel, S, Shared>(context, call);
}

/// Launches a kernel of shape S for a call whose `order` is set.
template <auto kernel, class S, class Shared, class Call>
void launch_in_order(const KernelContext& context, const Call& call) {
  static_assert(S::kTogether * (sizeof(Shared) + 1024) <= kSharedBytes + 1024);
  launch<kernel>(context, std::min(active_blocks<S>(context), call.order.tiles), S::kThreads,
                 static_cast<int>(sizeof(Shared)), call);
}

}  // namespace sash::cuda::hopper
