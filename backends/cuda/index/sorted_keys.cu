#include "sorted_keys.h"

#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "../runtime/launch.cuh"

namespace sash::cuda {

static_assert(sizeof(uint64_t) == sizeof(int64_t));

// Radix sort needs two buffers each: the memory is [keys, keys, places, places].
SortedKeys::SortedKeys(const KernelContext& context, int64_t count)
    : context_(context),
      count_(count),
      memory_(context, 4 * count * int64_t{sizeof(int64_t)}),
      keys_(memory_.ptr<uint64_t>()),
      places_(memory_.ptr<int64_t>() + 2 * count) {}

void SortedKeys::sort(uint64_t largest) {
  if (count_ == 0) return;
  const CardGuard guard(context_.device.index);
  const auto stream = stream_of(context_);
  cub::DoubleBuffer<uint64_t> keys(keys_, keys_ + count_);
  cub::DoubleBuffer<int64_t> places(places_, places_ + count_);
  const auto bits = static_cast<int>(std::bit_width(largest | 1));
  size_t bytes = 0;
  SASH_CUDA_CHECK(
      cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, places, count_, 0, bits, stream));
  const Workspace scratch(context_, static_cast<int64_t>(bytes));
  SASH_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(scratch.ptr<void>(), bytes, keys, places, count_,
                                                  0, bits, stream));
  keys_ = keys.Current();
  places_ = places.Current();
}

}  // namespace sash::cuda
