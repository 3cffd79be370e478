#include "../attention/hopper/tensor_map.h"
#include "../elementwise/compute.cuh"
#include "block_sparse.h"
#include "block_wgmma.cuh"
#include "sampled_shares.cuh"

/// Blocks of 64 of a' b by wgmma: a group of up to four neighbours in a block row is a product
/// [64][tokens] [tokens][256].
namespace sash::cuda::sparse {
namespace {

constexpr int kBlock = 64, kStep = 64, kGroup = 4;
constexpr int kColumns = kBlock * kGroup, kElements = kBlock * kColumns;
static_assert(kernels::blocks_per_group(kBlock) == kGroup);

template <class T>
using Shared = RingShared<hopper::Tile<T, 64, kStep>, hopper::Tile<T, kColumns, kStep>>;

template <class T>
__device__ void copy_steps(Shared<T>& shared, RingState& at, const CUtensorMap& a,
                           const CUtensorMap& b, const SampledShares<T>& p,
                           const Segment& segment) {
  const kernels::BlockGroup group = p.groups[segment.group];
  int column[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) column[i] = i < group.count ? p.columns[group.first + i] : 0;
  for (int step = 0; step < segment.steps; ++step) {
    const auto token = static_cast<int>((segment.first + step) * kStep);
    hopper::Barrier& full = shared.full[at.stage()];
    shared.empty[at.stage()].wait(at.parity() ^ 1);
    full.arrive_and_expect_tx(static_cast<uint32_t>(1 + group.count) * kSquareBytes);
    copy_square(shared.left[at.stage()].address(), a, token, group.row * kBlock, full);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i >= group.count) break;
      copy_square(shared.right[at.stage()].address() + static_cast<uint32_t>(i) * kSquareBytes, b,
                  token, column[i] * kBlock, full);
    }
    at.advance();
  }
}

template <class T>
__global__ void __launch_bounds__(kRingThreads, 2)
    sampled_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                   const __grid_constant__ SampledShares<T> p) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<T>*>(memory);
  shared.init();
  RingState at;
  if (threadIdx.x >= 128) {
    if (!hopper::elect_one()) return;
    for (Segment s = p.first_segment(); s.steps > 0; s = p.next(s)) {
      copy_steps(shared, at, a, b, p, s);
    }
    return;
  }
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = 16 * warp + lane / 4, column = lane % 4 * 2;
  for (Segment s = p.first_segment(); s.steps > 0; s = p.next(s)) {
    float sum[128];
#pragma unroll
    for (float& x : sum) x = 0;
    multiply_stages<true, true>(shared, at, s.steps, sum);
    const kernels::BlockGroup group = p.groups[s.group];
    if (s.steps < p.steps) {
      float* const part = p.part(s, kElements) + row * kColumns + column;
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        *reinterpret_cast<float2*>(part + i % 2 * 8 * kColumns + i / 2 * 8) =
            make_float2(sum[2 * i], sum[2 * i + 1]);
      }
      continue;
    }
#pragma unroll
    for (int block = 0; block < kGroup; ++block) {
      if (block >= group.count) break;
      T* const to = p.data + int64_t{p.positions[group.first + block]} * kBlock * kBlock +
                    row * kBlock + column;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float* const c = sum + 32 * block + 2 * i;
        *reinterpret_cast<uint32_t*>(to + i % 2 * 8 * kBlock + i / 2 * 8) =
            hopper::pack(std::type_identity<T>{}, c[0], c[1]);
      }
    }
  }
#endif
}

template <class T>
void launch(const KernelContext& context, const TensorView& a, const TensorView& b,
            SampledShares<T> shares) {
  const Workspace parts(context,
                        shares.deal(kStep) * kElements * static_cast<int64_t>(sizeof(float)));
  shares.parts = parts.ptr<float>();
  const auto map = [](const TensorView& x) {
    TensorView view = x;
    view.shape = {1, 1, x.shape[0], x.shape[1]};
    view.strides = contiguous_strides(view.shape);
    return tensor_map(view, 64);
  };
  const CardGuard guard(context.device.index);
  SASH_CUDA_CHECK(cudaFuncSetAttribute(sampled_kernel<T>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(sizeof(Shared<T>))));
  sampled_kernel<T><<<shares.count(), kRingThreads, sizeof(Shared<T>),
                      static_cast<cudaStream_t>(context.stream.handle)>>>(map(a), map(b), shares);
  SASH_CUDA_CHECK(cudaGetLastError());
  add_parts<T, kBlock>(context, shares);
}

}  // namespace

bool sample_hopper(const KernelContext& context, const TensorView& a, const TensorView& b,
                   const kernels::BlockPatternView& pattern, const TensorView& data) {
  if (pattern.block != kBlock || a.shape[0] >= int64_t{1} << 30) return false;
  sash::detail::dispatch_over<float16, bfloat16>(
      data.dtype, "sampled_matmul", [&]<class S>(TypeTag<S>) {
        launch<device_t<S>>(context, a, b, SampledShares<device_t<S>>(pattern, a.shape[0], data));
      });
  return true;
}

}  // namespace sash::cuda::sparse
