#pragma once

#include <algorithm>
#include <atomic>
#include <climits>
#include <optional>
#include <string>

#include "../../core/error.h"
#include "attention_bounds.cuh"
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
  RowBounds bounds;

  Problem(const kernels::AttentionInputs& x, const kernels::AttentionParams& params,
          const RowBounds& row_bounds)
      : map(params.maps->with_rows(kBlock)),
        batches(static_cast<int>(x.q.shape[0])),
        heads(static_cast<int>(x.q.shape[1])),
        groups(static_cast<int>(x.k.shape[1])),
        queries(static_cast<int>(x.q.shape[2])),
        keys(static_cast<int>(x.k.shape[2])),
        exponent(static_cast<float>(params.scale * 1.4426950408889634)),
        scale(static_cast<float>(params.scale)),
        bounds(row_bounds) {}

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
  static constexpr int kAtEntry = 65536 / (kThreads * per_sm) / 8 * 8,
                       kCopyRegisters = groups > 2 ? 32 : 40;
  static constexpr int kRegisters =
      std::min(240, ((groups + 1) * kAtEntry - kCopyRegisters) / groups / 8 * 8);
};

/// How blocks of threads share the tiles of work: a tile is kLines lines of one head, one after the
/// other in the map's order. Those with long lines come first, of all heads in turn; then head
/// after head, so that neighbours read the same keys at about the same time.
struct Schedule {
  int heads;  ///< of all batches
  int heads_of_batch;  ///< of queries, or of keys where tiles are of keys
  int lines;  ///< of a head
  int tiles, long_tiles;  ///< of a head
  int items;              ///< tiles in all
  /// How many have been taken besides the first of each block of threads. Null where lines are
  /// about as long as each other: then turns are fixed, every other one backwards.
  int* taken;
};

/// The items of a block of threads. By all lanes of its copying warp.
class Items {
 public:
  __device__ explicit Items(const Schedule& schedule)
      : schedule_(schedule), next_(static_cast<int>(blockIdx.x)) {}

  /// The next, or -1.
  __device__ int next() {
    const int item = __shfl_sync(~0u, next_, 0), blocks = static_cast<int>(gridDim.x);
    if (item >= schedule_.items) return -1;
    if (!schedule_.taken) {
      const int block = static_cast<int>(blockIdx.x);
      next_ = ++round_ * blocks + (round_ % 2 == 0 ? block : blocks - 1 - block);
    } else if (lane() == 0) {
      next_ = blocks + atomicAdd(schedule_.taken, 1);
    }
    return item;
  }

 private:
  const Schedule& schedule_;
  int next_, round_ = 0;
};

/// Where an item lies: the head, and its lines' numbers; b < 0 says that no more come. Lines past
/// the end have the number of lines.
template <int kLines>
struct Work {
  int b, h;
  int line[kLines];

  /// By all lanes of a warp, which agree in a way that the compiler knows of: what else the loop
  /// over items carries, the numbers of buffers above all, then stays in uniform registers.
  __device__ bool ended() const { return __reduce_min_sync(~0u, b) < 0; }
};

/// The same in the registers of the copying warp, whose lane i knows line i.
struct WorkAhead {
  int b, h, line;

  __device__ WorkAhead(const Schedule& s, const Problem& p, const int32_t* order, int lines,
                       int item) {
    const int in_long = s.long_tiles * s.heads, rest = s.tiles - s.long_tiles;
    int head, tile;
    if (item < in_long) {
      tile = item / s.heads;
      head = item - tile * s.heads;
    } else {
      head = (item - in_long) / rest;
      tile = s.long_tiles + (item - in_long) - head * rest;
    }
    b = head / s.heads_of_batch;
    h = head - b * s.heads_of_batch;
    const int at = tile * lines + lane(), shared_by = p.heads / s.heads_of_batch;
    line = s.lines;
    if (lane() < lines && at < s.lines) {
      line = order[p.first_line(b, h * shared_by, s.lines) + at];
    }
  }

  template <int kLines>
  __device__ void note(Work<kLines>& work) const {
    if (lane() == 0) {
      work.b = b;
      work.h = h;
    }
    if (lane() < kLines) work.line[lane()] = line;
    __syncwarp();
  }
};

/// Says that no more work comes.
template <int kLines>
__device__ void end_work(Work<kLines>& work, Barrier& full) {
  if (lane() == 0) work.b = -1;
  full.arrive(lane() == 0);
}

/// What a block of the map is to a line: the number of its bit tile, or one of these. From kCut on,
/// bounds cut the block: kCut + 1 + what it is.
inline constexpr int kWhole = -1, kAbsent = -2, kCut = 1 << 30;
/// The number of no block.
inline constexpr int kNone = INT_MAX;

/// The blocks that any of kLines neighbouring lines lists within bounds, ascending. By all lanes of
/// a warp. Lines are blocks of queries (`by_query`) or keys.
template <int kLines, bool by_query>
class Walk {
 public:
  /// The lines of `work` in head (b, h).
  __device__ Walk(const Problem& p, const WorkAhead& work, int h)
      : p_(p),
        list_(by_query ? p.map.by_query : p.map.by_key),
        line_(__shfl_sync(~0u, work.line, lane() / 2)) {
    const int b = work.b;
    static_assert(2 * kLines <= 32);
    const auto blocks = static_cast<int>(by_query ? p.map.query_blocks : p.map.key_blocks);
    int entry = 0, end = 0;
    if (lane() / 2 < kLines && line_ < blocks) {
      const int64_t at = p.first_line(b, h, blocks) + line_;
      const int full = list_.full_start[at];
      entry = lane() % 2 == 0 ? list_.start[at] : full;
      end = lane() % 2 == 0 ? full : list_.start[at + 1];
      if (p.bounds.ranges) narrow(p.bounds.head(b, h), entry, end);
    }
    end_ = end;
    head_ = within_bounds(read(entry));
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
      head_ = within_bounds(ahead_);
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

  /// Leaves of the entries [entry, end) those of blocks that meet the bounds.
  __device__ void narrow(int64_t head, int& entry, int& end) {
    int first, past;
    if constexpr (by_query) {
      const int4 summary = p_.bounds.summary[head * p_.map.query_blocks + line_];
      first = summary.x / kBlock;
      past = (summary.w + kBlock - 1) / kBlock;
      most_lo_ = summary.y;
      least_hi_ = summary.z;
    } else {
      summaries_ = static_cast<int>(head * p_.map.query_blocks);
      const int2 range = p_.bounds.seen_by[head * p_.map.key_blocks + line_];
      first = range.x;
      past = -range.y;
    }
    entry = find(first, entry, end);
    end = max(entry, find(past, entry, end));
  }
  /// The first of the entries [low, high) whose block is not below `block`. Blocks ascend, so it is
  /// no further on than the numbers are; where they are neighbours, it is just there.
  __device__ int find(int block, int low, int high) const {
    if (low >= high) return low;
    high = low + min(high - low, max(0, block - list_.block[low]));
    for (int probe = high - 1; low < high; probe = (low + high) / 2) {
      if (list_.block[probe] < block) {
        low = probe + 1;
      } else {
        high = probe;
      }
    }
    return low;
  }

  /// What bounds leave of an entry.
  __device__ Entry within_bounds(const Entry& entry) const {
    if (entry.block == kNone) return entry;
    const int key = (by_query ? entry.block : line_) * kBlock, past = min(key + kBlock, p_.keys);
    int most_lo = most_lo_, least_hi = least_hi_;
    if (!by_query) {
      if (!p_.bounds.summary) return entry;
      const int4* summary = p_.bounds.summary + summaries_ + entry.block;
      if (summary->x >= past || summary->w <= key) return {entry.block, kAbsent};
      most_lo = summary->y;
      least_hi = summary->z;
    }
    if (most_lo <= key && least_hi >= past) return entry;
    return {entry.block, kCut + 1 + entry.tile};
  }

  const Problem& p_;
  const kernels::BlockList& list_;
  int summaries_ = 0;  ///< where those of this head start, where lines are those of keys
  int most_lo_ = INT_MIN, least_hi_ = INT_MAX;  ///< of the line, where it is one of queries
  int line_;
  int entry_, end_, tile_;
  Entry head_, ahead_;
};

/// What the copying warp says of the blocks in one stage of a ring.
template <int kLines, int kBlocks>
struct Step {
  int block[kBlocks];
  int tile[kLines][kBlocks];
  int h;     ///< the head of the queries
  int last;  ///< whether no step follows

  /// By all lanes of the copying warp.
  __device__ void note(int part, int number, int tile_of_lane) {
    if (lane() == 0) block[part] = number;
    if (lane() % 2 == 0 && lane() / 2 < kLines) tile[lane() / 2][part] = tile_of_lane;
  }
  __device__ void note(int head, bool is_last) {
    if (lane() != 0) return;
    h = head;
    last = is_last;
  }
};

/// Which of the scores [64][64 kBlocks] of a group count. Rows are queries (`by_query`) or keys.
template <int kBlocks, bool by_query>
class Mask {
 public:
  /// Starts to read what `step` shows the line `number` of `work`.
  template <int kLines>
  __device__ void load(const Problem& p, const Work<kLines>& work,
                       const Step<kLines, kBlocks>& step, int number) {
    const uint64_t* bits = by_query ? p.map.bits : p.map.key_bits;
#pragma unroll
    for (int part = 0; part < kBlocks; ++part) {
      int tile = step.tile[number][part];
      const bool cut = tile >= kCut;
      if (cut) tile -= kCut + 1;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        word_[part][half] = tile == kAbsent ? 0 : ~uint64_t{0};
        if (tile < 0) continue;
        word_[part][half] = __ldg(bits + static_cast<int64_t>(tile) * kBlock + row_of(half));
      }
      if (cut) {
        cut_by_bounds(word_[part], p, p.bounds.ranges + p.bounds.head(work.b, step.h) * p.queries,
                      work.line[number] * kBlock, step.block[part] * kBlock);
      }
    }
  }

  /// -infinity instead of scores that do not count.
  __device__ void hide(float (&score)[32 * kBlocks]) const {
#pragma unroll
    for (int part = 0; part < kBlocks; ++part) {
      // The thread's own bits of both rows, side by side: 2 in each byte of a word.
      uint32_t bits = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint64_t word = word_[part][half] >> (lane() % 4 * 2);
        bits |= (gather(static_cast<uint32_t>(word)) | gather(static_cast<uint32_t>(word >> 32)) << 8)
                << 16 * half;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          float* pair = score + 4 * (8 * part + j) + 2 * half;
          if (!(bits >> (16 * half + 2 * j) & 1)) pair[0] = -kInfinity;
          if (!(bits >> (16 * half + 2 * j + 1) & 1)) pair[1] = -kInfinity;
        }
      }
    }
  }

 private:
  /// The two low bits of each byte, as eight. No two of the product's parts meet in a bit.
  static __device__ uint32_t gather(uint32_t x) { return (x & 0x03030303u) * 0x01041040u >> 24; }

  /// Clears bits that `ranges`, those of a head's queries, hide from a block that starts at `row`
  /// and `column`. Of a word, only the bits of the thread's own columns count.
  static __device__ void cut_by_bounds(uint64_t (&word)[2], const Problem& p, const int2* ranges,
                                       int row, int column) {
    if constexpr (by_query) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int2 seen = ranges[min(row + row_of(half), p.queries - 1)];
        word[half] &= bit_range(seen.x - column, seen.y - column);
      }
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int bit = column_of(j, e);
          const int2 seen = ranges[min(column + bit, p.queries - 1)];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int key = row + row_of(half);
            if (key < seen.x || key >= seen.y) word[half] &= ~(uint64_t{1} << bit);
          }
        }
      }
    }
  }

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

/// The schedule of a call, with the memory of its counter.
class Scheduled {
 public:
  /// `lines` of the map's lists make a tile.
  Scheduled(const KernelContext& context, const kernels::BlockList& list, int64_t blocks,
            int batches, int heads, int lines, int map_heads, int64_t places) {
    const int64_t tiles = (blocks + lines - 1) / lines, all = int64_t{batches} * heads * tiles;
    if (all > INT_MAX) {
      throw ValueError("attention", "at most 2^31 - 1 tiles", std::to_string(all));
    }
    schedule_ = {.heads = batches * heads,
                 .heads_of_batch = heads,
                 .lines = static_cast<int>(blocks),
                 .tiles = static_cast<int>(tiles),
                 .long_tiles = static_cast<int>((list.long_lines + lines - 1) / lines),
                 .items = static_cast<int>(all),
                 .taken = nullptr};
    const bool uneven = 2 * list.longest * blocks * map_heads > 3 * list.entries;
    if (!uneven || all <= places) return;
    counter_.emplace(context, sizeof(int));
    schedule_.taken = counter_->ptr<int>();
    SASH_CUDA_CHECK(cudaMemsetAsync(schedule_.taken, 0, sizeof(int),
                                    static_cast<cudaStream_t>(context.stream.handle)));
  }
  const Schedule& schedule() const { return schedule_; }

 private:
  Schedule schedule_;
  std::optional<Workspace> counter_;
};

/// Launches `blocks` blocks with `shared` bytes of shared memory. `allowed` holds a bit for each
/// card on which `kernel` may use them.
template <class Call>
void launch(const KernelContext& context, void (*kernel)(Call), std::atomic<uint64_t>& allowed,
            int64_t blocks, int threads, size_t shared, const Call& call) {
  if (blocks == 0) return;
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
