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

void mse_loss_forward(KernelContext& context, const TensorView& a, const TensorView& b,
                      const TensorView& y, double scale) {
  const CardGuard guard(context.device.index);
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const int64_t count = a.numel();
  const int64_t per_block = kThreads * 16 / size_of(a.dtype);
  const int64_t blocks = std::min(kMostBlocks, (count + per_block - 1) / per_block);
  const Workspace scratch(context, blocks * int64_t{sizeof(double)});
  double* const partial = scratch.ptr<double>();
  dispatch_any_floating(a.dtype, "mse_loss", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    if (blocks > 0) {
      squares_kernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
          a.ptr<T>(), b.ptr<T>(), count, is_aligned(a.data) && is_aligned(b.data), partial);
      SASH_CUDA_CHECK(cudaGetLastError());
    }
    finish_sum_kernel<<<1, kFinishThreads, 0, stream>>>(partial, blocks,
                                                        Scaled<T>{y.ptr<T>(), scale});
    SASH_CUDA_CHECK(cudaGetLastError());
  });
}

template <class T>
struct Slope {
  T factor;
  __device__ T operator()(T a, T b, T g) const { return (a - b) * (g * factor); }
};

void mse_loss_backward(KernelContext& context, const TensorView& a, const TensorView& b,
                       const TensorView& g, const TensorView& da, double scale) {
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
