#include "../../../ops/kernels/loss.h"

#include "../elementwise/flat.cuh"

namespace sash::cuda {
namespace {

constexpr int64_t kMostBlocks = 1024;

/// partial[block] = sum of (a - b)^2 over the block's elements, in float64.
template <class T>
__global__ void __launch_bounds__(kThreads)
    squares_kernel(const T* a, const T* b, int64_t count, bool aligned, double* partial) {
  const int64_t step = int64_t{gridDim.x} * kThreads * kWidth<T>;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth<T>; i < count;
       i += step) {
    const Lane<T> from = load_lane(a + i, count - i, aligned);
    const Lane<T> to = load_lane(b + i, count - i, aligned);
#pragma unroll
    for (int k = 0; k < kWidth<T>; ++k) {
      const auto difference = static_cast<double>(widen(from.element[k]) - widen(to.element[k]));
      sum += difference * difference;
    }
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

template <class T>
struct Scaled {
  T* y;
  double scale;
  __device__ void operator()(double sum) const {
    *y = narrow<T>(static_cast<compute_t<T>>(sum * scale));
  }
};

void mse_loss_forward(KernelContext& context, View a, View b, View y, double scale) {
  const int64_t count = a.numel();
  const int64_t blocks = std::min(kMostBlocks, ceil_div(count, kThreads * 16 / size_of(a.dtype)));
  const Workspace scratch(context, blocks * int64_t{sizeof(double)});
  double* const partial = scratch.ptr<double>();
  dispatch_device_floating(a.dtype, "mse_loss", [&]<class T>(TypeTag<T>) {
    if (blocks > 0) {
      launch_kernel(context, blocks, kThreads, 0, squares_kernel<T>, a.ptr<T>(), b.ptr<T>(), count,
                    is_aligned(a.data) && is_aligned(b.data), partial);
    }
    launch_kernel(context, 1, kFinishThreads, 0, finish_sum_kernel<Scaled<T>>, partial, blocks,
                  Scaled<T>{y.ptr<T>(), scale});
  });
}

template <class T>
struct Slope {
  T factor;
  __device__ T operator()(T a, T b, T g) const { return (a - b) * (g * factor); }
};

void mse_loss_backward(KernelContext& context, View a, View b, View g, View da, double scale) {
  dispatch_any_floating(a.dtype, "mse_loss", [&]<class T>(TypeTag<T>) {
    compute<T, T, T, T>(context, Slope<operand_t<T>>{operand<T>(2 * scale)}, da, a, b, g);
  });
}

}  // namespace

void register_mse_loss() {
  kernels::mse_loss_forward.set(DeviceType::cuda, mse_loss_forward);
  kernels::mse_loss_backward.set(DeviceType::cuda, mse_loss_backward);
}

}  // namespace sash::cuda
