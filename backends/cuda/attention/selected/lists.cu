#include <algorithm>
#include <string>

#include "../../../../core/error.h"
#include "lists.h"

namespace sash::cuda::selected {
namespace {

constexpr int kThreads = 256;

/// A key for each element of the index: the number of its list, or `lists` if it is in none.
__global__ void key_kernel(Dims dims, int heads, int lists, uint64_t* keys, Selector* selectors,
                           int* blocks, int64_t count, IndexFlag* flag) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t row = i / dims.entries;
  const int32_t block = dims.index[i];
  bool listed = block != -1 && in_range(flag, IndexOp::attention_selected, block, dims.blocks, i);
  for (int64_t before = row * dims.entries; listed && before < i; ++before) {
    listed = dims.index[before] != block;
  }
  const int64_t b = row / dims.rows / dims.index_heads, h = row / dims.rows % dims.index_heads;
  const int64_t of = (b * heads + h / (dims.index_heads / heads)) * dims.blocks + block;
  keys[i] = static_cast<uint64_t>(listed ? of : lists);
  selectors[i] = {static_cast<int>(row), static_cast<int>(i % dims.entries)};
  blocks[i] = listed ? block : -1;
}

/// start[n]: the first of the sorted keys that is at least n.
__global__ void start_kernel(const uint64_t* keys, int64_t count, int lists, int* start) {
  const int n = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (n > lists) return;
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (keys[middle] < static_cast<uint64_t>(n)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  start[n] = static_cast<int>(low);
}

/// chunk[n]: the chunks of the lists before n. One block of threads.
__global__ void chunk_kernel(const int* start, int lists, int size, int* chunk) {
  __shared__ int sums[kThreads];
  const auto thread = static_cast<int>(threadIdx.x);
  const int each = (lists + kThreads - 1) / kThreads;
  const int first = min(thread * each, lists), past = min(first + each, lists);
  const auto chunks_of = [&](int n) { return (start[n + 1] - start[n] + size - 1) / size; };
  int sum = 0;
  for (int n = first; n < past; ++n) sum += chunks_of(n);
  sums[thread] = sum;
  __syncthreads();
  int before = 0;
  for (int i = 0; i < thread; ++i) before += sums[i];
  for (int n = first; n < past; ++n) {
    chunk[n] = before;
    before += chunks_of(n);
  }
  if (thread == kThreads - 1) chunk[lists] = before;
}

}  // namespace

std::vector<Segment> segments(const Dims& dims, int64_t row_bytes) {
  constexpr int64_t usual = int64_t{512} << 20, most = int64_t{2} << 30;
  const int64_t rows = dims.rows, all_rows = int64_t{dims.index_batches} * dims.index_heads * rows;
  const int64_t usual_rows = std::max<int64_t>(1, usual / (rows * row_bytes)) * rows;
  const int64_t step = std::min({all_rows, usual_rows, std::max<int64_t>(1, most / row_bytes)});
  const int64_t list_rows = dims.index_heads / dims.list_heads() * rows;
  std::vector<Segment> all;
  for (int64_t first = 0; first < all_rows; first += step) {
    const int64_t past = std::min(first + step, all_rows);
    const int64_t from = first / list_rows, to = (past - 1) / list_rows + 1;
    all.push_back({first, past, static_cast<int>(from * dims.blocks),
                   static_cast<int>(to * dims.blocks), (to - from) * list_rows * dims.entries});
  }
  return all;
}

ListMemory::ListMemory(const KernelContext& context, const Dims& dims, int64_t chunk_size)
    : sorted_(context, static_cast<int64_t>(dims.index_batches) * dims.index_heads * dims.rows *
                           dims.entries) {
  const int heads = dims.list_heads();
  const int64_t lists = static_cast<int64_t>(dims.index_batches) * heads * dims.blocks;
  const int64_t count = sorted_.count();
  if (lists >= 1 << 30 || count >= 1 << 30) {
    throw ValueError("attention", "at most 2^30 selected blocks and lists of them",
                     std::to_string(std::max(lists, count)));
  }
  ends_.emplace(context, (2 * (lists + 1) + count) * int64_t{sizeof(int)});
  int *const start = ends_->ptr<int>(), *const chunk = start + lists + 1;
  int* const blocks = chunk + lists + 1;
  auto* const selectors = reinterpret_cast<Selector*>(sorted_.places());
  const auto size = static_cast<int>(std::min(chunk_size, count + 1));
  const auto number = static_cast<int>(lists);
  if (count > 0) {
    launch_kernel(context, ceil_div(count, kThreads), kThreads, 0, key_kernel, dims, heads, number,
                  sorted_.keys(), selectors, blocks, count, index_flag(context.device.index));
  }
  sorted_.sort(static_cast<uint64_t>(lists));
  launch_kernel(context, ceil_div(lists + 1, kThreads), kThreads, 0, start_kernel, sorted_.keys(),
                count, number, start);
  launch_kernel(context, 1, kThreads, 0, chunk_kernel, start, number, size, chunk);
  lists_ = {reinterpret_cast<const Selector*>(sorted_.places()),
            start,
            chunk,
            blocks,
            number,
            heads,
            size,
            lists + count / size};
}

}  // namespace sash::cuda::selected
