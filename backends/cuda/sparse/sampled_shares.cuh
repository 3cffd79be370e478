#pragma once

#include <algorithm>

#include "../../../ops/kernels/sparse.h"
#include "../elementwise/compute.cuh"

/// How the work of a sampled product is dealt out. A step is a few tokens of one group of blocks;
/// all steps, group after group, are cut into at most kShares equal shares, whatever the card. A
/// share is one block of threads and goes through segments, each in one group. A group that is cut
/// leaves partial sums, which a second kernel adds in the order of the tokens: the bits of the
/// result depend on shapes alone.
namespace sash::cuda::sparse {

inline constexpr int64_t kShares = 264;  // two for each multiprocessor of an H200
inline constexpr int64_t kLeastTokens = 512;

template <int kBlock>
inline constexpr int kGroupColumns = kBlock* static_cast<int>(kernels::blocks_per_group(kBlock));

/// Steps [first, first + steps) of a group; no more segments if `steps` is 0.
struct Segment {
  int64_t group, first;
  int steps;
};

template <class T>
struct SampledShares {
  T* data;
  float* parts = nullptr;  ///< two tiles per share
  const kernels::BlockGroup* groups;
  const int32_t* columns;
  const int32_t* positions;
  int64_t tokens, group_count;
  int64_t steps = 0;  ///< of a group
  int64_t share = 0;  ///< steps of a share

  SampledShares(const kernels::BlockPatternView& pattern, int64_t token_count,
                const TensorView& result)
      : data(result.ptr<T>()),
        groups(pattern.groups),
        columns(pattern.rows.other),
        positions(pattern.rows.positions),
        tokens(token_count),
        group_count(pattern.group_count) {}

  /// Cuts the work for steps of `depth` tokens. Returns how many tiles of partial sums there are.
  int64_t deal(int64_t depth) {
    steps = (tokens + depth - 1) / depth;
    const int64_t all = steps * group_count;
    share = std::max((all + kShares - 1) / kShares, kLeastTokens / depth);
    return 2 * static_cast<int64_t>(count());
  }
  unsigned count() const {
    return static_cast<unsigned>((steps * group_count + share - 1) / share);
  }

  __device__ Segment first_segment() const { return segment_at(blockIdx.x * share); }
  __device__ Segment next(const Segment& s) const {
    return segment_at(s.group * steps + s.first + s.steps);
  }

  /// Where the sums of an incomplete segment go. One at the beginning of its group is the last of
  /// its share, any other the first: they do not meet.
  __device__ float* part(const Segment& s, int elements) const {
    return parts + (2 * int64_t{blockIdx.x} + (s.first == 0 ? 1 : 0)) * elements;
  }

 private:
  __device__ Segment segment_at(int64_t at) const {
    const int64_t end = min((blockIdx.x + int64_t{1}) * share, group_count * steps);
    if (at >= end) return {0, 0, 0};
    const int64_t group = at / steps, first = at % steps;
    return {group, first, static_cast<int>(min(steps - first, end - at))};
  }
};

/// Adds the parts of each group that was cut.
template <class T, int kBlock>
__global__ void __launch_bounds__(256)
    add_parts_kernel(const __grid_constant__ SampledShares<T> p) {
  constexpr int columns = kGroupColumns<kBlock>, elements = kBlock * columns;
  const int64_t begin = blockIdx.x * p.steps;
  const int64_t first = begin / p.share, last = (begin + p.steps - 1) / p.share;
  if (first == last) return;
  const kernels::BlockGroup group = p.groups[blockIdx.x];
  const int element = 4 * static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int i = element / columns, j = element % columns;
  if (element >= elements || j / kBlock >= group.count) return;
  const auto part = [&](int64_t number) {
    return *reinterpret_cast<const float4*>(p.parts + number * elements + element);
  };
  float4 sum = part(2 * first + 1);
  for (int64_t share = first + 1; share <= last; ++share) {
    const float4 more = part(2 * share);
    sum.x += more.x;
    sum.y += more.y;
    sum.z += more.z;
    sum.w += more.w;
  }
  T* const to = p.data + int64_t{p.positions[group.first + j / kBlock]} * kBlock * kBlock +
                i * kBlock + j % kBlock;
  to[0] = narrow<T>(sum.x);
  to[1] = narrow<T>(sum.y);
  to[2] = narrow<T>(sum.z);
  to[3] = narrow<T>(sum.w);
}

template <class T, int kBlock>
void add_parts(const KernelContext& context, const SampledShares<T>& shares) {
  constexpr int elements = kBlock * kGroupColumns<kBlock>;
  const dim3 grid(static_cast<unsigned>(shares.group_count), (elements / 4 + 255) / 256);
  add_parts_kernel<T, kBlock>
      <<<grid, 256, 0, static_cast<cudaStream_t>(context.stream.handle)>>>(shares);
  SASH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace sash::cuda::sparse
