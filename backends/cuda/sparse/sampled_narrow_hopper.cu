#include "../elementwise/compute.cuh"
#include "../hopper/tensor_map.h"
#include "block_sparse.h"
#include "block_wgmma.cuh"
#include "sampled_shares.cuh"

/// Blocks of 16 and 32 of a' b by wgmma, transposed: a group of neighbours in a block row is a
/// product [256][tokens] [tokens][block], of the group's columns of b and its columns of a. A step
/// is 64 tokens.
namespace sash::cuda::sparse {
namespace {

constexpr int kStep = 64, kColumns = 256;

template <class T, int kBlock>
using Shared = Ring<Tile<T, kColumns, kStep, kBlock>, Tile<T, kBlock, kStep>, 3>;

template <class T, int kBlock>
__device__ void copy_steps(Shared<T, kBlock>& ring, typename Shared<T, kBlock>::State& at,
                           const CUtensorMap& a, const CUtensorMap& b, const SampledShares<T>& p,
                           const Segment& segment) {
  constexpr int most = kColumns / kBlock;
  const kernels::BlockGroup group = p.groups[segment.group];
  int column[most];
#pragma unroll
  for (int i = 0; i < most; ++i) {
    column[i] = i < group.count ? p.columns[group.first + i] * kBlock : 0;
  }
  for (int step = 0; step < segment.steps; ++step) {
    const auto token = static_cast<int>((segment.first + step) * kStep);
    hopper::Barrier& full =
        ring.acquire(at, static_cast<uint32_t>(1 + group.count) * (kStep * kBlock * 2));
    copy_box(ring.right[at.stage()], 0, a, token, group.row * kBlock, full);
#pragma unroll
    for (int i = 0; i < most; ++i) {
      if (i < group.count) copy_box(ring.left[at.stage()], i, b, token, column[i], full);
    }
    at.advance();
  }
}

template <class T, int kBlock>
__global__ void __launch_bounds__(kRingThreads, 2)
    sampled_narrow_kernel(const __grid_constant__ CUtensorMap a,
                          const __grid_constant__ CUtensorMap b,
                          const __grid_constant__ SampledShares<T> p) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& ring = *reinterpret_cast<Shared<T, kBlock>*>(memory);
  ring.init();
  typename Shared<T, kBlock>::State at;
  if (threadIdx.x >= 128) {
    if (!hopper::elect_one()) return;
    for (Segment s = p.first_segment(); s.steps > 0; s = p.next(s)) {
      copy_steps<T, kBlock>(ring, at, a, b, p, s);
    }
    return;
  }
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (Segment s = p.first_segment(); s.steps > 0; s = p.next(s)) {
    constexpr int kParts = kColumns / 64;
    float sum[kParts][kBlock / 2];
    clear(sum);
    multiply_stages<kStep, true, true>(ring, at, s.steps, sum);
    const kernels::BlockGroup group = p.groups[s.group];
    float* const part = p.part(s, kBlock * kColumns);
#pragma unroll
    for (int i = 0; i < 2 * kParts; ++i) {
      const int column = i / 2 * 64 + 16 * warp + i % 2 * 8 + lane / 4, block = column / kBlock;
      if (block >= group.count) break;  // columns grow with i
      T* const data = p.data + int64_t{p.positions[group.first + block]} * kBlock * kBlock;
#pragma unroll
      for (int j = 0; j < kBlock / 4; ++j) {
        const int row = j / 2 * 8 + lane % 4 * 2 + j % 2;
        const float x = sum[i / 2][j / 2 * 4 + i % 2 * 2 + j % 2];
        if (s.steps == p.steps) {
          data[row * kBlock + column % kBlock] = narrow<T>(x);
        } else {
          part[row * kColumns + column] = x;
        }
      }
    }
  }
#endif
}

template <class T, int kBlock>
void launch(const KernelContext& context, View a, View b, SampledShares<T> shares) {
  constexpr int64_t bytes_of_part = int64_t{kBlock} * kColumns * sizeof(float);
  static_assert(kGroupColumns<kBlock> == kColumns);
  const Workspace parts(context, shares.deal(kStep) * bytes_of_part);
  shares.parts = parts.ptr<float>();
  launch_large_kernel(context, shares.count(), kRingThreads, sizeof(Shared<T, kBlock>),
                      sampled_narrow_kernel<T, kBlock>, matrix_map(a, a.shape[1], kStep, kBlock),
                      matrix_map(b, b.shape[1], kStep, kBlock), shares);
  add_parts<T, kBlock>(context, shares);
}

}  // namespace

void sample_narrow_hopper(const KernelContext& context, View a, View b,
                          const kernels::BlockPatternView& pattern, View data) {
  dispatch_device_halves(data.dtype, "sampled_matmul", [&]<class T>(TypeTag<T>) {
    const SampledShares<T> shares(pattern, a.shape[0], data);
    if (pattern.block == 16) return launch<T, 16>(context, a, b, shares);
    launch<T, 32>(context, a, b, shares);
  });
}

}  // namespace sash::cuda::sparse
