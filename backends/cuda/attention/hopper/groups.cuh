#pragma once

#include <algorithm>

#include "../../hopper/wgmma.cuh"
#include "../common/fragments.cuh"
#include "../common/rows.cuh"

/// The warpgroups of the sm_90 kernels. A block of threads has kGroups consumer groups of four
/// warps, which multiply, and producer warps, which list the work and copy.
namespace sash::cuda::hopper {

using namespace fragments;

inline constexpr int kBlock = static_cast<int>(kernels::kBlockKeys);
inline constexpr int kGroup = 128;  ///< threads of a group

/// The group of this thread. All lanes of a warp call this.
__device__ inline int group() { return static_cast<int>(uniform(threadIdx.x / kGroup)); }

/// `row_of_warp`: the first row of this warp among the 64 rows of its group. `row_of`: the row,
/// among these 64, of the accumulators of this thread with e / 2 == half.
__device__ inline int row_of_warp() { return warp() % 4 * 16; }
__device__ inline int row_of(int half) { return row_of_warp() + lane() / 4 + 8 * half; }

/// Waits at the named barrier of this group, or at the barrier of all consumer groups.
__device__ inline void sync_group() { barrier_sync(1 + group(), kGroup); }
template <int groups>
__device__ void sync_consumers() {
  barrier_sync(1 + groups, groups * kGroup);
}

/// Adds the accumulators of all groups to the accumulators of group 0, in the order of the groups.
/// `buffer` is shared memory for the accumulators of one group, which nothing else uses from now
/// on. All consumer threads call this.
template <int groups, int n>
__device__ void reduce_groups(float (&sum)[n], float* buffer) {
  float* const mine = buffer + threadIdx.x % kGroup;
  sync_consumers<groups>();
#pragma unroll 1
  for (int from = 1; from < groups; ++from) {
    if (group() == from) {
#pragma unroll
      for (int i = 0; i < n; ++i) mine[i * kGroup] = sum[i];
    }
    sync_consumers<groups>();
    if (group() == 0) {
#pragma unroll
      for (int i = 0; i < n; ++i) sum[i] += mine[i * kGroup];
    }
    sync_consumers<groups>();
  }
  fence_proxy_async();
}

/// The consumer groups of a block of threads, if a multiprocessor runs `together` blocks. The
/// producer group gives most of its registers to them.
template <int groups, int together = 1>
struct Groups {
  static constexpr int kGroups = groups, kThreads = (groups + 1) * kGroup;
  static constexpr int kTogether = together;
  static constexpr int kLaunchRegisters = 65536 / (together * kThreads) / 8 * 8,
                       kProducerRegisters = groups * together > 2 ? 32 : 40;
  static constexpr int kConsumerRegisters =
      std::min(240, ((groups + 1) * kLaunchRegisters - kProducerRegisters) / groups / 8 * 8);
  static constexpr bool kGeneral = false, kDropout = false, kCopiesKept = false;
  static constexpr bool kTakesBounds = true;  ///< whether calls may have bounds
  static constexpr bool kBackwards = false;   ///< whether a work tile's last blocks come first
  static constexpr bool kInParts = false;     ///< whether calls may have `TileOrder::splits`
  static constexpr int kListeners = 0;        ///< how many other warps read the steps
  static constexpr int kListed = 2;  ///< for how many turns of ring `a` steps are listed ahead
};

/// The shape of a general kernel. Its scores need further work after the product, so it does not
/// overlap products.
template <class S>
struct General : S {
  static constexpr bool kGeneral = true;
  static_assert(!S::kOverlap);
};

/// The shape of a kernel for calls whose only option is dropout. It reads bit tiles
/// (common/kept.cuh), from shared memory if it `copies` them.
template <class S, bool copies>
struct WithDropout : S {
  static constexpr bool kDropout = true, kCopiesKept = copies;
};

/// The width of the narrowest tiles that hold `features`; general kernels have fewer.
constexpr int tile_width(int64_t features, bool general) {
  if (!general && features <= 32) return 32;
  if (features <= 64) return 64;
  if (!general && features <= 96) return 96;
  return features <= 128 ? 128 : 256;
}

/// Calls f<width>() with one of the widths that `tile_width` returns.
template <bool general, class F>
void with_width(int width, F&& f) {
  if constexpr (!general) {
    if (width == 32) return f.template operator()<32>();
    if (width == 96) return f.template operator()<96>();
  }
  if (width == 64) return f.template operator()<64>();
  if (width == 128) return f.template operator()<128>();
  f.template operator()<256>();
}

/// The epilogue. Writes row `half` of each thread's accumulators, times `factor`, to features [0,
/// min(width, 2 n)) of the row `to`. Four lanes exchange parts, so that each lane writes 16 bytes
/// at a time.
template <class T, int n>
__device__ void store_row(T* to, int width, const float (&sum)[n], int half, float factor,
                          bool inside) {
  const int t = lane() % 4;
#pragma unroll
  for (int j = 0; j < n / 4; j += 4) {
    uint32_t part[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = sum + 4 * (j + i) + 2 * half;
      part[i] = pack(std::type_identity<T>{}, pair[0] * factor, pair[1] * factor);
    }
    // Part i of lane u goes to part u of lane i.
    uint32_t a = __shfl_xor_sync(~0u, t & 1 ? part[0] : part[1], 1);
    uint32_t b = __shfl_xor_sync(~0u, t & 1 ? part[2] : part[3], 1);
    (t & 1 ? part[0] : part[1]) = a;
    (t & 1 ? part[2] : part[3]) = b;
    a = __shfl_xor_sync(~0u, t & 2 ? part[0] : part[2], 2);
    b = __shfl_xor_sync(~0u, t & 2 ? part[1] : part[3], 2);
    (t & 2 ? part[0] : part[2]) = a;
    (t & 2 ? part[1] : part[3]) = b;
    const int d = 8 * (j + t);
    if (inside && d < width) {
      *reinterpret_cast<uint4*>(to + d) = make_uint4(part[0], part[1], part[2], part[3]);
    }
  }
}

/// Writes each thread's accumulators of 64 rows, four at a time, so that a group writes without
/// gaps. `to`: where the first thread of the group writes its first four.
template <int n>
__device__ void store_sums(float4* to, const float (&sum)[n]) {
#pragma unroll
  for (int i = 0; i < n / 4; ++i) {
    __stcg(to + i * kGroup + threadIdx.x % kGroup,
           make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]));
  }
}

/// Writes both rows of each thread's accumulators to the rows of a head from `first` on. `rows`
/// rows exist.
template <class T, int n>
__device__ void store_rows(const Rows<T>& to, int first, int rows, const float (&sum)[n],
                           const float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_of(half);
    store_row(to.data + (first + row) * to.row, to.width, sum, half, factor[half], row < rows);
  }
}

}  // namespace sash::cuda::hopper
