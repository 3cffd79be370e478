#include "../elementwise/compute.cuh"
#include "../hopper/tensor_map.h"
#include "block_sparse.h"
#include "block_wgmma.cuh"
#include "sampled_shares.cuh"

/// Blocks of 64 and 128 of a' b by wgmma: a group of neighbours in a block row is a product
/// [block][tokens] [tokens][256 or 128]. A step is 64 tokens.
namespace sash::cuda::sparse {
namespace {

constexpr int kStep = 64;

/// Sums [64 kParts][kColumns], and the slabs of 64 columns of a block and of a group.
template <class T, int kBlock>
struct Shape {
  static constexpr int kColumns = kGroupColumns<kBlock>;
  static constexpr int kParts = kBlock / 64, kSlabs = kColumns / 64;
  static constexpr int kElements = 64 * kParts * 64 * kSlabs;
  using Shared = Ring<Tile<T, kBlock, kStep>, Tile<T, kColumns, kStep>, kBlock == 64 ? 2 : 3>;
};

template <class T, int kBlock>
__device__ void copy_steps(typename Shape<T, kBlock>::Shared& ring,
                           typename Shape<T, kBlock>::Shared::State& at, const CUtensorMap& a,
                           const CUtensorMap& b, const SampledShares<T>& p,
                           const Segment& segment) {
  using X = Shape<T, kBlock>;
  const kernels::BlockGroup group = p.groups[segment.group];
  const int slabs = group.count * X::kParts;  // the others are not copied, nor are their sums used
  int column[X::kSlabs];
#pragma unroll
  for (int i = 0; i < X::kSlabs; ++i) {
    column[i] =
        i < slabs ? p.columns[group.first + i / X::kParts] * kBlock + i % X::kParts * 64 : 0;
  }
  for (int step = 0; step < segment.steps; ++step) {
    const auto token = static_cast<int>((segment.first + step) * kStep);
    hopper::Barrier& full =
        ring.acquire(at, static_cast<uint32_t>(X::kParts + slabs) * (kStep * 128));
#pragma unroll
    for (int i = 0; i < X::kParts; ++i) {
      copy_box(ring.left[at.stage()], i, a, token, group.row * kBlock + 64 * i, full);
    }
#pragma unroll
    for (int i = 0; i < X::kSlabs; ++i) {
      if (i < slabs) copy_box(ring.right[at.stage()], i, b, token, column[i], full);
    }
    at.advance();
  }
}

template <class T, int kBlock>
__global__ void __launch_bounds__(kRingThreads, 2)
    sampled_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                   const __grid_constant__ SampledShares<T> p) {
#ifdef SASH_HOPPER
  using X = Shape<T, kBlock>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& ring = *reinterpret_cast<typename X::Shared*>(memory);
  ring.init();
  typename X::Shared::State at;
  if (threadIdx.x >= 128) {
    if (!hopper::elect_one()) return;
    for (Segment s = p.first_segment(); s.steps > 0; s = p.next(s)) {
      copy_steps<T, kBlock>(ring, at, a, b, p, s);
    }
    return;
  }
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = 16 * warp + lane / 4, column = lane % 4 * 2;
  for (Segment s = p.first_segment(); s.steps > 0; s = p.next(s)) {
    float sum[X::kParts][X::kColumns / 2];
    clear(sum);
    multiply_stages<kStep, true, true>(ring, at, s.steps, sum);
    const kernels::BlockGroup group = p.groups[s.group];
    float* const part = p.part(s, X::kElements);
    const bool whole = s.steps == p.steps;
#pragma unroll
    for (int block = 0; block < X::kColumns / kBlock; ++block) {
      if (block >= group.count) break;
      T* const data = p.data + int64_t{p.positions[group.first + block]} * kBlock * kBlock;
#pragma unroll
      for (int i = 0; i < kBlock / 8 * 2 * X::kParts; ++i) {
        // The sums of part i / .., columns 8 j .. of the block, rows of the upper or lower half.
        const int of_part = i / (kBlock / 4), j = i % (kBlock / 4) / 2, half = i % 2;
        const float* const c = &sum[of_part][block * kBlock / 2 + 4 * j + 2 * half];
        const int to_row = 64 * of_part + row + 8 * half, to_column = 8 * j + column;
        if (whole) {
          *reinterpret_cast<uint32_t*>(data + to_row * kBlock + to_column) =
              hopper::pack(std::type_identity<T>{}, c[0], c[1]);
        } else {
          *reinterpret_cast<float2*>(part + to_row * X::kColumns + block * kBlock + to_column) =
              make_float2(c[0], c[1]);
        }
      }
    }
  }
#endif
}

template <class T, int kBlock>
void launch(const KernelContext& context, View a, View b, SampledShares<T> shares) {
  using X = Shape<T, kBlock>;
  constexpr auto element = int64_t{sizeof(float)};
  const Workspace parts(context, shares.deal(kStep) * X::kElements * element);
  shares.parts = parts.ptr<float>();
  launch_large_kernel(context, shares.count(), kRingThreads, sizeof(typename X::Shared),
                      sampled_kernel<T, kBlock>, matrix_map(a, a.shape[1], kStep, 64),
                      matrix_map(b, b.shape[1], kStep, 64), shares);
  add_parts<T, kBlock>(context, shares);
}

}  // namespace

void sample_wide_hopper(const KernelContext& context, View a, View b,
                        const kernels::BlockPatternView& pattern, View data) {
  dispatch_device_halves(data.dtype, "sampled_matmul", [&]<class T>(TypeTag<T>) {
    const SampledShares<T> shares(pattern, a.shape[0], data);
    if (pattern.block == 64) return launch<T, 64>(context, a, b, shares);
    launch<T, 128>(context, a, b, shares);
  });
}

}  // namespace sash::cuda::sparse
