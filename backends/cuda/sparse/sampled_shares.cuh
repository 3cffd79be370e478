#pragma once

#include <algorithm>

#include "../../../ops/kernels/sparse.h"
#include "../elementwise/compute.cuh"

/// How the work of a sampled product is divided among kShares blocks of threads, on any card. A
/// step is a few tokens of one group of blocks. While whole rounds of groups remain, a share gets
/// whole groups. All shares then process the same tokens at about the same time, so that tokens
/// stay in the L2 cache. The groups of the last round are cut into equal numbers of steps. A group
/// that is cut has several partial sums, which a second kernel adds in the order of the tokens. So
/// the bits of the result depend on shapes only.
namespace sash::cuda::sparse {

inline constexpr int64_t kShares = 264;  // two blocks for each multiprocessor of an H200
inline constexpr int64_t kLeastTokens = 256;

template <int kBlock>
inline constexpr int kGroupColumns = kBlock* static_cast<int>(kernels::blocks_per_group(kBlock));

/// Steps [first, first + steps) of a group. If `steps` is 0, the share has no further segment.
struct Segment {
  int64_t group, first;
  int steps;
};

template <class T>
struct SampledShares {
  T* data;
  float* parts = nullptr;  ///< partial sums: two tiles for each share
  const kernels::BlockGroup* groups;
  const int32_t* columns;
  const int32_t* positions;
  int64_t tokens, group_count;
  int64_t steps = 0;  ///< of a group
  int64_t share = 0;  ///< how many steps of the cut groups a share has

  SampledShares(const kernels::BlockPatternView& pattern, int64_t token_count, View result)
      : data(result.ptr<T>()),
        groups(pattern.groups),
        columns(pattern.rows.other),
        positions(pattern.rows.positions),
        tokens(token_count),
        group_count(pattern.group_count) {}

  /// Divides the work into steps of `depth` tokens. Returns the number of tiles of partial sums.
  int64_t deal(int64_t depth) {
    steps = ceil_div(tokens, depth);
    if (cut() == 0) return 0;
    const int64_t equal =
        kShares / cut();  // a group is cut into so many equal pieces if little is wasted
    share = 20 * equal * cut() >= 17 * kShares ? ceil_div(steps, equal)
                                               : ceil_div(cut() * steps, kShares);
    share = std::max(share, std::min(steps, kLeastTokens / depth));
    return 2 * cut_shares();
  }
  unsigned count() const { return static_cast<unsigned>(whole() > 0 ? kShares : cut_shares()); }
  /// How many groups, from the first on, are not cut.
  __host__ __device__ int64_t whole() const { return group_count / kShares * kShares; }
  __host__ __device__ int64_t cut() const { return group_count - whole(); }

  __device__ Segment first_segment() const {
    return whole() > 0 ? Segment{blockIdx.x, 0, static_cast<int>(steps)} : cut_at(first_cut());
  }
  __device__ Segment next(const Segment& s) const {
    if (s.group >= whole()) return cut_at((s.group - whole()) * steps + s.first + s.steps);
    if (s.group + kShares >= whole()) return cut_at(first_cut());
    return {s.group + kShares, 0, s.steps};
  }

  /// The tile for the sums of an incomplete segment. A segment at the beginning of its group is the
  /// last segment of its share. Any other is the first of its share. So the two tiles of a share
  /// suffice.
  __device__ float* part(const Segment& s, int elements) const {
    return parts + (2 * int64_t{blockIdx.x} + (s.first == 0 ? 1 : 0)) * elements;
  }

 private:
  int64_t cut_shares() const { return ceil_div(cut() * steps, share); }
  __device__ int64_t first_cut() const { return blockIdx.x * share; }

  /// The segment that begins with step `at` of the cut groups.
  __device__ Segment cut_at(int64_t at) const {
    const int64_t end = min(first_cut() + share, cut() * steps);
    if (at >= end) return {0, 0, 0};
    const int64_t group = at / steps, first = at % steps;
    return {whole() + group, first, static_cast<int>(min(steps - first, end - at))};
  }
};

/// Adds up the partial sums of each group that was cut.
template <class T, int kBlock>
__global__ void __launch_bounds__(256)
    add_parts_kernel(const __grid_constant__ SampledShares<T> p) {
  constexpr int columns = kGroupColumns<kBlock>, elements = kBlock * columns;
  const int64_t begin = blockIdx.x * p.steps;
  const int64_t first = begin / p.share, last = (begin + p.steps - 1) / p.share;
  if (first == last) return;
  const kernels::BlockGroup group = p.groups[p.whole() + blockIdx.x];
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
  if (shares.cut() == 0) return;
  launch_kernel(context, {shares.cut(), ceil_div(elements / 4, 256)}, 256, 0,
                add_parts_kernel<T, kBlock>, shares);
}

}  // namespace sash::cuda::sparse
