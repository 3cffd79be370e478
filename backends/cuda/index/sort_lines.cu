#include <cub/block/block_radix_sort.cuh>

#include "lines.cuh"

namespace sash::cuda {
namespace {

constexpr int64_t kMostBlocks = int64_t{1} << 30;  // of a launch

/// A block sorts one line, stably: what fills it up to the block's size comes after all elements.
template <int kBlock, int kItems, class T>
__global__ void __launch_bounds__(kBlock)
    sort_kernel(const __grid_constant__ Lines lines, int64_t first, const T* x, T* values,
                int64_t* indices) {
  using Key = ordered_t<compute_t<T>>;
  using Sort = cub::BlockRadixSort<Key, kBlock, kItems, int>;
  constexpr int kZeros = kIsHalf<T> ? 13 : 0;  // low bits in which keys do not differ
  __shared__ typename Sort::TempStorage storage;
  const int thread = static_cast<int>(threadIdx.x);
  int64_t at[3];
  lines.starts.find(first + blockIdx.x, 1, at);
  Key key[kItems];
  int place[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    place[k] = thread * kItems + k;
    key[k] = place[k] < lines.length
                 ? key_of(widen(x[at[0] + place[k] * lines.x_step]), lines.largest)
                 : Key{0};
  }
  Sort(storage).SortDescendingBlockedToStriped(key, place, kZeros, 8 * sizeof(Key));
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int i = k * kBlock + thread;
    if (i >= lines.chosen) return;
    values[at[1] + i * lines.value_step] = x[at[0] + place[k] * lines.x_step];
    indices[at[2] + i * lines.index_step] = place[k];
  }
}

}  // namespace

void sort_lines(const KernelContext& context, const Lines& lines, DType dtype, const void* x,
                void* values, int64_t* indices) {
  dispatch_device_numeric(dtype, "sort", [&]<class T>(TypeTag<T>) {
    const auto launch = [&](auto kernel, int block) {
      for (int64_t first = 0; first < lines.starts.count; first += kMostBlocks) {
        const int64_t blocks = std::min(kMostBlocks, lines.starts.count - first);
        launch_kernel(context, blocks, block, 0, kernel, lines, first, static_cast<const T*>(x),
                      static_cast<T*>(values), indices);
      }
    };
    if (lines.length <= 128) {
      launch(sort_kernel<32, 4, T>, 32);
    } else if (lines.length <= 1024) {
      launch(sort_kernel<128, 8, T>, 128);
    } else {
      launch(sort_kernel<512, 8, T>, 512);
    }
  });
}

}  // namespace sash::cuda
