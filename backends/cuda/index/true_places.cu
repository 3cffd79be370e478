#include <thrust/iterator/counting_iterator.h>
#include <cub/device/device_select.cuh>

#include "../../../ops/kernels/index.h"
#include "../runtime/check.h"

namespace sash::cuda {
namespace {

void true_places(KernelContext& context, const TensorView& mask, const TensorView& places) {
  const int64_t count = mask.numel();
  if (places.numel() == 0) return;
  const CardGuard guard(context.device.index);
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const thrust::counting_iterator<int64_t> numbers(0);
  const Workspace found(context, sizeof(int64_t));
  size_t bytes = 0;
  const auto select = [&](void* scratch) {
    return cub::DeviceSelect::Flagged(scratch, bytes, numbers, mask.ptr<bool>(),
                                      places.ptr<int64_t>(), found.ptr<int64_t>(), count, stream);
  };
  SASH_CUDA_CHECK(select(nullptr));
  const Workspace scratch(context, static_cast<int64_t>(bytes));
  SASH_CUDA_CHECK(select(scratch.ptr<void>()));
}

}  // namespace

void register_true_places() { kernels::true_places.set(DeviceType::cuda, true_places); }

}  // namespace sash::cuda
