#include "diagonals.cuh"

namespace sash::cuda {
namespace {

constexpr int kSumThreads = 128;

template <class T>
__global__ void __launch_bounds__(kSumThreads)
    sum_blocks_kernel(const T* diagonals, int blocks, int64_t columns, int64_t count,
                      T* drelative) {
  const int64_t at = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (at >= count) return;
  const T* from = diagonals + at / columns * blocks * columns + at % columns;
  T sum = 0;
  for (int block = 0; block < blocks; ++block) sum += from[block * columns];
  drelative[at] = sum;
}

}  // namespace

template <class T>
void sum_diagonals(const KernelContext& context, const T* diagonals, int64_t blocks,
                   const TensorView& drelative) {
  const int64_t count = drelative.numel();
  if (count == 0) return;
  const CardGuard guard(context.device.index);
  const auto grid = static_cast<unsigned>((count + kSumThreads - 1) / kSumThreads);
  sum_blocks_kernel<<<grid, kSumThreads, 0, static_cast<cudaStream_t>(context.stream.handle)>>>(
      diagonals, static_cast<int>(blocks), drelative.shape[2], count, drelative.ptr<T>());
  SASH_CUDA_CHECK(cudaGetLastError());
}

template void sum_diagonals(const KernelContext&, const float*, int64_t, const TensorView&);
template void sum_diagonals(const KernelContext&, const double*, int64_t, const TensorView&);

}  // namespace sash::cuda
