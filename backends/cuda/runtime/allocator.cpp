#include "allocator.h"

#include <algorithm>
#include <string>

#include "../../../core/error.h"
#include "check.h"

namespace sash::cuda {

struct CachingAllocator::Graph {
  cudaStream_t origin = nullptr;
  unsigned long long id = 0;
  BlockPools pools;
  std::vector<Block*> reads;  // blocks from outside the graph that it uses
};

namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr int64_t kStep = 512;         // block sizes are multiples of this
constexpr int64_t kSmallLimit = kMiB;  // up to this size: small segments
constexpr int64_t kSmallSegment = 2 * kMiB;
constexpr int64_t kMediumLimit = 10 * kMiB;  // below this size: medium segments
constexpr int64_t kMediumSegment = 20 * kMiB;
constexpr int64_t kSegmentStep = 2 * kMiB;
constexpr int64_t kLargest = int64_t{1} << 48;  // more throws without a call to the driver

constexpr int64_t round_up(int64_t bytes, int64_t step) { return (bytes + step - 1) / step * step; }

int64_t segment_size(int64_t bytes) {
  if (bytes <= kSmallLimit) return kSmallSegment;
  return bytes < kMediumLimit ? kMediumSegment : round_up(bytes, kSegmentStep);
}

/// Null if the card has no memory.
void* card_allocate(int64_t bytes) {
  return try_allocate([](void** memory, size_t size) { return cudaMalloc(memory, size); }, bytes);
}

}  // namespace

bool CachingAllocator::BySize::operator()(const Block* a, const Block* b) const {
  return a->bytes != b->bytes ? a->bytes < b->bytes : std::less<>()(a->memory, b->memory);
}

CachingAllocator::CachingAllocator(int card, CaptureGate& gate) : card_(card), gate_(gate) {}
CachingAllocator::~CachingAllocator() = default;

void* CachingAllocator::allocate(int64_t bytes, cudaStream_t stream) {
  if (bytes <= 0) return nullptr;
  const std::lock_guard lock(mutex_);
  if (bytes > kLargest) throw_out_of_memory(bytes);
  const int64_t rounded = round_up(bytes, kStep);
  const bool small = rounded <= kSmallLimit;
  BlockPool& pool = pool_of(stream);
  Block* block = take_waiting(pool, rounded);
  if (!block) {
    block = best_fit(pool, rounded, small);
    if (!block && merge_waiting(pool)) block = best_fit(pool, rounded, small);
    if (!block) block = new_segment(pool, rounded, small);
    if (!block) throw_out_of_memory(bytes);
    split(block, rounded);
    block->used = true;
    block->asked = rounded;
    used_.emplace(block->memory, block);
  }
  stats_.current += block->bytes;
  stats_.peak = std::max(stats_.peak, stats_.current);
  return block->memory;
}

void CachingAllocator::deallocate(void* memory, cudaStream_t stream) noexcept {
  if (!memory) return;
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(memory);
  if (found == used_.end() || found->second->waiting) return;
  Block* block = found->second;
  if (let_wait(block, stream)) return;
  try {
    for (const Use* use = block->uses; use; use = use->next) rehome(block, use->stream);
    rehome(block, stream);
  } catch (const Error&) {
    return;  // never reused: it is unknown when the card is done with it
  }
  drop_uses(block, nullptr);
  used_.erase(found);
  stats_.current -= block->bytes;
  block->used = block->graphs > 0;
  if (block->used) return;
  block = put_back(block);
  if (reserved_ - stats_.current <= limit_ || block->before || block->after) return;
  try {
    trim(limit_);
  } catch (const Error&) {  // stays cached
  }
}

void CachingAllocator::record_stream(void* memory, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(memory);
  if (found == used_.end() || found->second->waiting) return;
  Block* block = found->second;
  Graph* const graph = graph_of(stream);
  if (graph && block->pool->graph != graph) {
    std::vector<Block*>& reads = graph->reads;
    if (std::find(reads.begin(), reads.end(), block) != reads.end()) return;
    reads.push_back(block);
    ++block->graphs;
    return;
  }
  if (block->pool->stream == stream) return;
  for (const Use* use = block->uses; use; use = use->next) {
    if (use->stream == stream) return;
  }
  block->uses = new (allocate_object(sizeof(Use))) Use{stream, block->uses};
}

CachingAllocator::Block* CachingAllocator::take_waiting(BlockPool& pool, int64_t asked) {
  Bin& bin = pool.bin(asked);
  Block* block = bin.asked == asked ? bin.first : nullptr;
  if (!block) return nullptr;
  bin.first = block->next;
  block->waiting = false;
  return block;
}

/// Puts a freed block into its bin, unless streams, graphs or the limit make it less simple.
bool CachingAllocator::let_wait(Block* block, cudaStream_t stream) {
  BlockPool& pool = *block->pool;
  if (!capturing_.empty() || pool.graph || pool.stream != stream || block->uses ||
      block->graphs > 0 || reserved_ - stats_.current + block->bytes > limit_) {
    return false;
  }
  Bin& bin = pool.bin(block->asked);
  if (bin.asked != block->asked) merge_waiting(bin);
  bin.asked = block->asked;
  block->next = bin.first;
  bin.first = block;
  block->waiting = true;
  stats_.current -= block->bytes;
  return true;
}

/// Whether there were any.
bool CachingAllocator::merge_waiting(Bin& bin) {
  const bool any = bin.first != nullptr;
  while (Block* block = bin.first) {
    bin.first = block->next;
    block->waiting = false;
    used_.erase(block->memory);
    put_back(block);
  }
  return any;
}

bool CachingAllocator::merge_waiting(BlockPool& pool) {
  bool any = false;
  for (Bin& bin : pool.bins) any = merge_waiting(bin) || any;
  return any;
}

/// Removes all uses of the block, or only those by the stream `*only`.
void CachingAllocator::drop_uses(Block* block, const cudaStream_t* only) {
  for (Use** at = &block->uses; *at;) {
    Use* const use = *at;
    if (only && use->stream != *only) {
      at = &use->next;
      continue;
    }
    *at = use->next;
    deallocate_object(use, sizeof(Use));
  }
}

CachingAllocator::Graph* CachingAllocator::graph_of(cudaStream_t stream) const {
  if (capturing_.empty()) return nullptr;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  if (cudaStreamGetCaptureInfo(stream, &status, &id) != cudaSuccess) cudaGetLastError();
  if (status != cudaStreamCaptureStatusActive) return nullptr;
  for (const auto& graph : capturing_) {
    if (graph->id == id) return graph.get();
  }
  return nullptr;
}

CachingAllocator::BlockPool& CachingAllocator::pool_of(cudaStream_t stream) {
  Graph* graph = graph_of(stream);
  return pool_in(graph ? graph->pools : pools_, stream, graph);
}

CachingAllocator::BlockPool& CachingAllocator::pool_in(BlockPools& pools, cudaStream_t stream,
                                                       const Graph* graph) {
  BlockPool& pool = pools[stream];
  pool.stream = stream;
  pool.graph = graph;
  return pool;
}

CachingAllocator::FreeBlocks& CachingAllocator::free_blocks(const Block* block) {
  return block->small ? block->pool->small : block->pool->large;
}

CachingAllocator::Block* CachingAllocator::best_fit(BlockPool& pool, int64_t bytes, bool small) {
  FreeBlocks& blocks = small ? pool.small : pool.large;
  Block least;
  least.bytes = bytes;
  const auto found = blocks.lower_bound(&least);
  if (found == blocks.end()) return nullptr;
  Block* block = *found;
  blocks.erase(found);
  return block;
}

CachingAllocator::Block* CachingAllocator::new_segment(BlockPool& pool, int64_t bytes, bool small) {
  const CardGuard guard(card_);
  const int64_t size = segment_size(bytes);
  ++stats_.system_allocations;
  void* memory = card_allocate(size);
  if (!memory) {
    trim(0);
    memory = card_allocate(size);
  }
  if (!memory) return nullptr;
  reserved_ += size;
  auto* block = static_cast<Block*>(allocate_object(sizeof(Block)));
  return new (block)
      Block{.memory = static_cast<char*>(memory), .bytes = size, .pool = &pool, .small = small};
}

void CachingAllocator::split(Block* block, int64_t bytes) {
  const int64_t rest = block->bytes - bytes;
  if (block->small ? rest < kStep : rest <= kSmallLimit) return;
  void* place = allocate_object(sizeof(Block));
  auto* other = new (place) Block{.memory = block->memory + bytes,
                                  .bytes = rest,
                                  .pool = block->pool,
                                  .before = block,
                                  .after = block->after,
                                  .small = block->small};
  if (other->after) other->after->before = other;
  block->after = other;
  block->bytes = bytes;
  free_blocks(other).insert(other);
}

/// Called when `block` is freed on `stream`. Chooses the pool it returns to, and makes that pool's
/// stream wait for the work of `stream`.
void CachingAllocator::rehome(Block* block, cudaStream_t stream) {
  BlockPool& here = pool_of(stream);
  if (block->pool == &here) return;
  if (block->pool->graph == here.graph) {
    wait_stream(block->pool->stream, stream, card_);
  } else if (!block->pool->graph) {
    block->pool = &here;  // each replay may use it
  }
  // Else a result of a graph is freed outside, perhaps in another graph: it stays in the pool of
  // its own until `release`.
}

CachingAllocator::Block* CachingAllocator::put_back(Block* block) {
  block->used = false;
  const auto idle = [&](const Block* b) { return b && !b->used && b->pool == block->pool; };
  if (idle(block->before)) {
    free_blocks(block->before).erase(block->before);
    block = merged(block->before, block);
  }
  if (idle(block->after)) {
    free_blocks(block->after).erase(block->after);
    block = merged(block, block->after);
  }
  free_blocks(block).insert(block);
  return block;
}

CachingAllocator::Block* CachingAllocator::merged(Block* first, Block* second) {
  first->bytes += second->bytes;
  first->after = second->after;
  if (second->after) second->after->before = first;
  deallocate_object(second, sizeof(Block));
  return first;
}

void CachingAllocator::move_blocks(BlockPool& from, BlockPool& to) {
  for (const auto& [memory, block] : used_) {
    if (block->pool == &from) block->pool = &to;
  }
  for (const auto* graphs : {&capturing_, &captured_}) {
    for (const auto& graph : *graphs) {
      for (Block* block : graph->reads) {
        if (block->pool == &from) block->pool = &to;
      }
    }
  }
  for (FreeBlocks* blocks : {&from.small, &from.large}) {
    while (!blocks->empty()) {
      Block* block = *blocks->begin();
      blocks->erase(blocks->begin());
      block->pool = &to;
      put_back(block);
    }
  }
}

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  MemoryStats stats = stats_;
  stats.cached = reserved_ - stats_.current;
  stats.cache_limit = limit_;
  return stats;
}

void CachingAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak = stats_.current;
}

void CachingAllocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  trim(0);
}

void CachingAllocator::set_limit(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  if (reserved_ - stats_.current > limit_) trim(limit_);
}

/// Returns idle segments to the driver until at most `most_cached` bytes are free.
void CachingAllocator::trim(int64_t most_cached) {
  if (!capturing_.empty()) return;
  const CardGuard guard(card_);
  if (!gate_.wait_for_card()) return;
  for (auto& [stream, pool] : pools_) {
    merge_waiting(pool);
    free_segments(pool.small, most_cached);
    free_segments(pool.large, most_cached);
  }
}

void CachingAllocator::free_segments(FreeBlocks& blocks, int64_t most_cached) {
  for (auto at = blocks.begin(); at != blocks.end() && reserved_ - stats_.current > most_cached;) {
    Block* block = *at;
    if (block->before || block->after) {
      ++at;
      continue;
    }
    SASH_CUDA_CHECK(cudaFree(block->memory));
    at = blocks.erase(at);
    reserved_ -= block->bytes;
    deallocate_object(block, sizeof(Block));
  }
}

void CachingAllocator::throw_out_of_memory(int64_t asked) const {
  size_t free = 0, total = 0;
  const CardGuard guard(card_);
  const RelaxedCapture relaxed;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError();
  throw OutOfMemory("allocate", "asked for " + std::to_string(asked) + " bytes on " +
                                    to_string(Device{DeviceType::cuda, card_}) + ", " +
                                    std::to_string(stats_.current) + " bytes in use, " +
                                    std::to_string(reserved_ - stats_.current) +
                                    " bytes free (cached), " + std::to_string(free) +
                                    " of the card's " + std::to_string(total) + " bytes free");
}

void CachingAllocator::begin_capture(cudaStream_t stream) {
  auto graph = std::make_unique<Graph>();
  graph->origin = stream;
  const std::lock_guard lock(mutex_);
  capturing_.reserve(capturing_.size() + 1);
  captured_.reserve(captured_.size() + capturing_.size() + 1);  // for `end_capture`
  gate_.begin_capture();
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaError_t begun = fails_now()
                          ? cudaErrorUnknown
                          : cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  if (begun == cudaSuccess) {
    begun = cudaStreamGetCaptureInfo(stream, &status, &graph->id);
    cudaGraph_t nothing = nullptr;
    if (begun != cudaSuccess) cudaStreamEndCapture(stream, &nothing);
  }
  if (begun != cudaSuccess) gate_.end_capture();
  check(begun, "cudaStreamBeginCapture", __FILE__, __LINE__);
  capturing_.push_back(std::move(graph));
  captures_.fetch_add(1, std::memory_order_release);
}

CachingAllocator::Graph* CachingAllocator::end_capture(cudaStream_t stream, cudaGraph_t* recorded,
                                                       cudaError_t* status) {
  const std::lock_guard lock(mutex_);
  // Under the lock: a query of a stream whose capture ends meanwhile crashes in the driver.
  *status = cudaStreamEndCapture(stream, recorded);
  const auto found = std::find_if(capturing_.begin(), capturing_.end(),
                                  [&](const auto& graph) { return graph->origin == stream; });
  if (found == capturing_.end()) return nullptr;
  captured_.push_back(std::move(*found));
  capturing_.erase(found);
  captures_.fetch_sub(1, std::memory_order_release);
  gate_.end_capture();
  return captured_.back().get();
}

void CachingAllocator::release(Graph* graph, cudaStream_t heir) {
  const std::lock_guard lock(mutex_);
  for (Block* block : graph->reads) {
    // Not in `used_`: it was freed meanwhile, and only graphs still used it.
    if (--block->graphs == 0 && used_.count(block->memory) == 0) put_back(block);
  }
  graph->reads.clear();  // some were merged
  for (auto& [stream, pool] : graph->pools) move_blocks(pool, pool_in(pools_, heir, nullptr));
  std::erase_if(captured_, [&](const auto& held) { return held.get() == graph; });
}

bool CachingAllocator::capturing(cudaStream_t stream) const {
  const std::lock_guard lock(mutex_);
  return graph_of(stream) != nullptr;
}

void CachingAllocator::retire(cudaStream_t stream, cudaStream_t heir) {
  const std::lock_guard lock(mutex_);
  for (const auto& [memory, block] : used_) drop_uses(block, &stream);
  const auto found = pools_.find(stream);
  if (found == pools_.end()) return;
  merge_waiting(found->second);
  move_blocks(found->second, pool_in(pools_, heir, nullptr));
  pools_.erase(found);
}

}  // namespace sash::cuda
