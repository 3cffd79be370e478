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
                   View drelative) {
  const int64_t count = drelative.numel();
  launch_tiles(context, ceil_div(count, kSumThreads), kSumThreads, 0, sum_blocks_kernel<T>,
               diagonals, blocks, drelative.shape[2], count, drelative.ptr<T>());
}

template void sum_diagonals(const KernelContext&, const float*, int64_t, View);
template void sum_diagonals(const KernelContext&, const double*, int64_t, View);

}  // namespace sash::cuda
