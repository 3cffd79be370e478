#include "attention_diagonals.cuh"

namespace sash::cuda::fragments {
namespace {

constexpr int kSumThreads = 128;

__global__ void __launch_bounds__(kSumThreads)
    sum_blocks_kernel(const float* diagonals, int blocks, int64_t columns, int64_t count,
                      float* drelative) {
  const int64_t at = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (at >= count) return;
  const float* from = diagonals + at / columns * blocks * columns + at % columns;
  float sum = 0;
  for (int block = 0; block < blocks; ++block) sum += from[block * columns];
  drelative[at] = sum;
}

}  // namespace

void sum_diagonals(const KernelContext& context, const float* diagonals, int64_t blocks,
                   const TensorView& drelative) {
  const int64_t count = drelative.numel();
  if (count == 0) return;
  const CardGuard guard(context.device.index);
  const auto grid = static_cast<unsigned>((count + kSumThreads - 1) / kSumThreads);
  sum_blocks_kernel<<<grid, kSumThreads, 0, static_cast<cudaStream_t>(context.stream.handle)>>>(
      diagonals, static_cast<int>(blocks), drelative.shape[2], count, drelative.ptr<float>());
  SASH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace sash::cuda::fragments
