#include <algorithm>

#include <thrust/iterator/counting_iterator.h>
#include <cub/device/device_select.cuh>

#include "../../../ops/kernels/index.h"
#include "../runtime/launch.cuh"

namespace sash::cuda {
namespace {

/// CUB before 2.8 counts elements in 32 bits.
constexpr int64_t kMostAtOnce = int64_t{1} << 30;

/// Writes the places of the true elements among `count` from `first` on; their number to `found`.
void select(const KernelContext& context, const bool* mask, int64_t first, int64_t count,
            int64_t* places, int64_t* found) {
  const auto stream = stream_of(context);
  const thrust::counting_iterator<int64_t> numbers(first);
  size_t bytes = 0;
  const auto run = [&](void* scratch) {
    return cub::DeviceSelect::Flagged(scratch, bytes, numbers, mask + first, places, found,
                                      static_cast<int>(count), stream);
  };
  SASH_CUDA_CHECK(run(nullptr));
  const Workspace scratch(context, static_cast<int64_t>(bytes));
  SASH_CUDA_CHECK(run(scratch.ptr<void>()));
}

void true_places(KernelContext& context, View mask, View places) {
  const int64_t count = mask.numel();
  if (places.numel() == 0) return;
  const CardGuard guard(context.device.index);
  const auto stream = stream_of(context);
  const Workspace found(context, sizeof(int64_t));
  int64_t* to = places.ptr<int64_t>();
  for (int64_t first = 0; first < count; first += kMostAtOnce) {
    select(context, mask.ptr<bool>(), first, std::min(kMostAtOnce, count - first), to,
           found.ptr<int64_t>());
    if (first + kMostAtOnce >= count) return;
    int64_t more = 0;  // the caller has waited for the number of places, so this may wait too
    SASH_CUDA_CHECK(
        cudaMemcpyAsync(&more, found.ptr<int64_t>(), sizeof(more), cudaMemcpyDeviceToHost, stream));
    SASH_CUDA_CHECK(cudaStreamSynchronize(stream));
    to += more;
  }
}

}  // namespace

void register_true_places() { kernels::true_places.set(DeviceType::cuda, true_places); }

}  // namespace sash::cuda
