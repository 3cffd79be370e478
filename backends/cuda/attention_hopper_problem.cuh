#pragma once

#include <algorithm>
#include <atomic>
#include <climits>
#include <string>

#include "../../core/error.h"
#include "../../ops/kernels/attention.h"
#include "check.h"
#include "hopper_wgmma.cuh"
#include "tensor_map.h"

/// What the sm_90 kernels of attention share: one call's parameters, and the walk over the blocks
/// of its map.
///
/// A block of threads has kLines groups of four warps, which multiply, and one warp that copies. A
/// group owns one line of the map: a block of 64 queries or keys (two may share one). The copying
/// warp walks the lines of all groups at once, brings each block of the other axis that any of them
/// lists, once, and notes what it is to each group.
namespace sash::cuda::hopper {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kInfinity = __builtin_huge_valf();
inline constexpr int kBlock = static_cast<int>(kernels::kBlockKeys);
inline constexpr int kGroup = 128;  ///< threads of a group

__device__ inline int lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int warp() { return static_cast<int>(threadIdx.x) / 32; }
/// The number of this thread's group. By all lanes of a warp.
__device__ inline int group() { return static_cast<int>(uniform(threadIdx.x / kGroup)); }

/// The row, among the 64 of its group, of a thread's sums with e / 2 == half, and the column of
/// sum[4 j + e].
__device__ inline int row_of(int half) { return warp() % 4 * 16 + lane() / 4 + 8 * half; }
__device__ inline int column_of(int j, int e) { return 8 * j + lane() % 4 * 2 + e % 2; }

/// One call, apart from its operands.
struct Problem {
  kernels::BlockMap map;
  int batches, heads, groups, queries, keys;
  float exponent;  ///< scale log2(e)
  float scale;

  Problem(const kernels::AttentionInputs& x, const kernels::AttentionParams& params)
      : map(params.maps->with_rows(kBlock)),
        batches(static_cast<int>(x.q.shape[0])),
        heads(static_cast<int>(x.q.shape[1])),
        groups(static_cast<int>(x.k.shape[1])),
        queries(static_cast<int>(x.q.shape[2])),
        keys(static_cast<int>(x.k.shape[2])),
        exponent(static_cast<float>(params.scale * 1.4426950408889634)),
        scale(static_cast<float>(params.scale)) {}

  __device__ int group_of(int h) const { return h / (heads / groups); }
  /// The line of block 0 of head (b, h), where a head has `blocks` lines.
  __device__ int64_t first_line(int b, int h, int64_t blocks) const {
    return ((map.batches == 1 ? 0 : b) * map.heads + (map.heads == 1 ? 0 : h)) * blocks;
  }
  /// Of query block 0, in [B, H, query blocks].
  __device__ int64_t terms_line(int b, int h) const {
    return (static_cast<int64_t>(b) * heads + h) * map.query_blocks;
  }
  /// Of query 0, in [B, H, queries].
  __device__ int64_t row_of(int b, int h) const {
    return (static_cast<int64_t>(b) * heads + h) * queries;
  }
};

/// The groups of a block of threads, and the registers of their threads: a last group, of which one
/// warp copies, gives most of its own to those that multiply. `per_sm` blocks share a
/// multiprocessor.
template <int groups, int per_sm>
struct Groups {
  static constexpr int kGroups = groups, kPerSm = per_sm, kThreads = (groups + 1) * kGroup;
  static constexpr int kAtEntry = 65536 / (kThreads * per_sm) / 8 * 8, kCopyRegisters = 24;
  static constexpr int kRegisters =
      std::min(240, ((groups + 1) * kAtEntry - kCopyRegisters) / groups / 8 * 8);
};

/// Where an item of work lies: `tiles` blocks of `lines` lines a head, the last lines first, which
/// are the longest of causal masks.
struct Place {
  int b, h, line;

  __device__ Place(int tiles, int heads, int item, int lines) {
    const int head = item / tiles;
    b = head / heads;
    h = head - b * heads;
    line = (tiles - 1 - (item - head * tiles)) * lines;
  }
};

/// What a block of the map is to a line: the number of its bit tile, or one of these.
inline constexpr int kWhole = -1, kAbsent = -2;
/// The number of no block.
inline constexpr int kNone = INT_MAX;

/// The blocks that any of kLines neighbouring lines lists, ascending. By all lanes of a warp.
template <int kLines>
class Walk {
 public:
  /// `lines` of them exist.
  __device__ Walk(const kernels::BlockList& list, int64_t first, int lines) : list_(list) {
    static_assert(2 * kLines <= 32);
    const int line = lane() / 2;
    int entry = 0, end = 0;
    if (line < min(lines, kLines)) {
      const int full = list.full_start[first + line];
      entry = lane() % 2 == 0 ? list.start[first + line] : full;
      end = lane() % 2 == 0 ? full : list.start[first + line + 1];
    }
    end_ = end;
    head_ = read(entry);
    ahead_ = read(entry + 1);
    entry_ = entry + 2;
  }

  __device__ bool more() const { return __any_sync(~0u, head_.block != kNone); }

  /// The next block, or kNone.
  __device__ int next() {
    const int block = __reduce_min_sync(~0u, head_.block);
    const bool mine = block != kNone && head_.block == block;
    const int tile = mine ? head_.tile : kAbsent;
    tile_ = max(tile, __shfl_xor_sync(~0u, tile, 1));
    if (mine) {
      head_ = ahead_;
      ahead_ = read(entry_++);
    }
    return block;
  }

  /// On lanes 2 w: what that block is to line w.
  __device__ int tile() const { return tile_; }

 private:
  // Lanes 2 w and 2 w + 1 go through those that line w sees in part and those that it sees whole.
  struct Entry {
    int block, tile;
  };
  __device__ Entry read(int entry) const {
    if (entry >= end_) return {kNone, kAbsent};
    return {list_.block[entry], lane() % 2 == 0 ? list_.tile[entry] : kWhole};
  }

  const kernels::BlockList& list_;
  int entry_, end_, tile_;
  Entry head_, ahead_;
};

/// What the copying warp says of the blocks in one stage of a ring.
template <int kLines, int kBlocks>
struct Step {
  int block[kBlocks];
  int tile[kLines][kBlocks];
  int last;  ///< whether no step follows

  /// By all lanes of the copying warp.
  __device__ void note(int part, int number, int tile_of_lane) {
    if (lane() == 0) block[part] = number;
    if (lane() % 2 == 0 && lane() / 2 < kLines) tile[lane() / 2][part] = tile_of_lane;
  }
};

/// Which of the scores [64][64 kBlocks] of a group count.
template <int kBlocks>
class Mask {
 public:
  /// Starts to read `bits`, [tiles][64].
  __device__ void load(const uint64_t* bits, const int (&tile)[kBlocks]) {
#pragma unroll
    for (int part = 0; part < kBlocks; ++part) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        word_[part][half] = tile[part] == kAbsent ? 0 : ~uint64_t{0};
        if (tile[part] < 0) continue;
        word_[part][half] = __ldg(bits + tile[part] * kBlock + row_of(half));
      }
    }
  }

  /// -infinity instead of scores that do not count.
  __device__ void hide(float (&score)[32 * kBlocks]) const {
#pragma unroll
    for (int part = 0; part < kBlocks; ++part) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint64_t word = word_[part][half] >> (lane() % 4 * 2);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const auto bits = static_cast<uint32_t>(j < 4 ? word : word >> 32) >> (j % 4 * 8);
          float* pair = score + 4 * (8 * part + j) + 2 * half;
          if (!(bits & 1)) pair[0] = -kInfinity;
          if (!(bits & 2)) pair[1] = -kInfinity;
        }
      }
    }
  }

 private:
  uint64_t word_[kBlocks][2];
};

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Row `half` of each thread's sums, times `factor`, to features [0, min(width, 2 n)) of
/// `to + 8 half row`; lanes of four swap parts so that each writes 16 bytes at once.
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

/// Both rows of each thread's sums as rows of [rows][width] at `to`, if they are below `rows`.
template <class T, int n>
__device__ void store_rows(T* to, int rows, int width, const float (&sum)[n],
                           const float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_of(half);
    store_row(to + static_cast<int64_t>(row) * width, width, sum, half, factor[half], row < rows);
  }
}

/// Blocks of threads that a card holds at once, where `per_sm` share a multiprocessor.
inline int64_t places(const KernelContext& context, int per_sm) {
  int multiprocessors = 0;
  SASH_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount,
                                         context.device.index));
  return int64_t{multiprocessors} * per_sm;
}

/// f<T, width>() for the type of elements and the narrowest tiles that hold the features.
template <class F>
void with_tiles(DType dtype, int64_t features, F&& f) {
  const auto with = [&]<class T>(std::type_identity<T>) {
    if (features <= 32) return f.template operator()<T, 32>();
    if (features <= 64) return f.template operator()<T, 64>();
    if (features <= 96) return f.template operator()<T, 96>();
    if (features <= 128) return f.template operator()<T, 128>();
    return f.template operator()<T, 256>();
  };
  dtype == DType::bfloat16 ? with(std::type_identity<__nv_bfloat16>{})
                           : with(std::type_identity<__half>{});
}

/// What a block of threads may have of shared memory.
inline constexpr size_t kSharedBytes = 227 * 1024;

/// Launches `blocks` blocks with `shared` bytes of shared memory. `allowed` holds a bit for each
/// card on which `kernel` may use them.
template <class Call>
void launch(const KernelContext& context, void (*kernel)(Call), std::atomic<uint64_t>& allowed,
            int64_t blocks, int threads, size_t shared, const Call& call) {
  if (blocks == 0) return;
  if (blocks > INT_MAX) {
    throw ValueError("attention", "at most 2^31 - 1 tiles", std::to_string(blocks));
  }
  const CardGuard guard(context.device.index);
  const uint64_t bit = uint64_t{1} << context.device.index;
  if (!(allowed.load(std::memory_order_relaxed) & bit)) {
    SASH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shared)));
    SASH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared));
    allowed.fetch_or(bit, std::memory_order_relaxed);
  }
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared,
           static_cast<cudaStream_t>(context.stream.handle)>>>(call);
  SASH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace sash::cuda::hopper
