#include "../../../ops/kernels/random.h"
#include "../elementwise/strided.cuh"

namespace sash::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    first_above_kernel(const double* ends, const double* aim, int64_t* y, int64_t classes,
                       int64_t draws, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const double* const line = ends + i / draws * classes;
  int64_t low = 0, high = classes;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (line[middle] > aim[i]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  y[i] = low;
}

void first_above(KernelContext& context, const TensorView& ends, const TensorView& aim,
                 const TensorView& y) {
  const int64_t count = y.numel();
  if (count == 0) return;
  const CardGuard guard(context.device.index);
  first_above_kernel<<<blocks_for(count), kThreads, 0,
                       static_cast<cudaStream_t>(context.stream.handle)>>>(
      ends.ptr<double>(), aim.ptr<double>(), y.ptr<int64_t>(), ends.shape[1], aim.shape[1], count);
  SASH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void register_first_above() { kernels::first_above.set(DeviceType::cuda, first_above); }

}  // namespace sash::cuda
