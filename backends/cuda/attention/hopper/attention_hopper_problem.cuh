#pragma once

#include <algorithm>
#include <climits>
#include <optional>

#include "../common/attention_fragments.cuh"
#include "hopper_wgmma.cuh"
#include "tensor_map.h"

/// What the sm_90 kernels of attention share: how work is given to threads, and how it is launched.
///
/// A block of threads has kLines groups of four warps, which multiply, and two warps that copy. A
/// group owns one line of the map: a block of 64 queries or keys (two may share one). The copying
/// warps walk the lines of all groups at once and bring each block of the other axis that any of
/// them lists, once: one of them the first tile of a pair (keys, or queries), with a note of what
/// it is to each group, the other the second (values, or cotangents).
namespace sash::cuda::hopper {

using namespace fragments;

inline constexpr int kBlock = static_cast<int>(kernels::kBlockKeys);
inline constexpr int kGroup = 128;  ///< threads of a group

/// The number of this thread's group. By all lanes of a warp.
__device__ inline int group() { return static_cast<int>(uniform(threadIdx.x / kGroup)); }

/// The first row of this warp among the 64 of its group, and the row among these of a thread's sums
/// with e / 2 == half.
__device__ inline int row_of_warp() { return warp() % 4 * 16; }
__device__ inline int row_of(int half) { return row_of_warp() + lane() / 4 + 8 * half; }

/// Until all threads of this group are here.
__device__ inline void meet_group() {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group()), "n"(kGroup) : "memory");
}

/// Until those of all groups that multiply are.
template <int groups>
__device__ void meet_groups() {
  asm volatile("bar.sync %0, %1;" ::"n"(1 + groups), "n"(groups * kGroup) : "memory");
}

/// Adds the sums of all groups to those of the first, in their order. `room`, in shared memory that
/// nobody else uses from here on, holds those of one group. By all threads of all groups.
template <int groups, int n>
__device__ void add_up(float (&sum)[n], float* room) {
  float* const mine = room + threadIdx.x % kGroup;
  meet_groups<groups>();
#pragma unroll 1
  for (int from = 1; from < groups; ++from) {
    if (group() == from) {
#pragma unroll
      for (int i = 0; i < n; ++i) mine[i * kGroup] = sum[i];
    }
    meet_groups<groups>();
    if (group() == 0) {
#pragma unroll
      for (int i = 0; i < n; ++i) sum[i] += mine[i * kGroup];
    }
    meet_groups<groups>();
  }
  let_copies_see();
}

/// The groups of a block of threads, and the registers of their threads: a last group, of which two
/// warps copy, gives most of its own to those that multiply. `per_sm` blocks share a
/// multiprocessor.
template <int groups, int per_sm>
struct Groups {
  static constexpr int kGroups = groups, kPerSm = per_sm, kThreads = (groups + 1) * kGroup;
  static constexpr int kAtEntry = 65536 / (kThreads * per_sm) / 8 * 8,
                       kCopyRegisters = groups > 2 ? 32 : 40;
  static constexpr int kRegisters =
      std::min(240, ((groups + 1) * kAtEntry - kCopyRegisters) / groups / 8 * 8);
  static constexpr bool kGeneral = false;
};

/// The shape of kernels for calls that are not plain, which form scores at one go.
template <class S>
struct General : S {
  static constexpr bool kGeneral = true;
  static_assert(!S::kChains);
};

/// The width of the narrowest tiles that hold `features`; general kernels have fewer.
constexpr int tile_width(int64_t features, bool general) {
  if (!general && features <= 32) return 32;
  if (features <= 64) return 64;
  if (!general && features <= 96) return 96;
  return features <= 128 ? 128 : 256;
}

/// f<width>() for one of those widths.
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

/// How blocks of threads share the tiles of work: a tile is kLines lines of one head, one after the
/// other in the map's order, or a long line, whose blocks its groups share. Long lines come first,
/// of all heads in turn; then head after head, so that neighbours read the same keys at about the
/// same time. Within bounds any line may be long or short, so that all come in turn, and the order
/// decides which end the call.
struct Schedule {
  int heads;              ///< of all batches
  int heads_of_batch;     ///< of queries, or of keys where tiles are of keys
  int lines, long_lines;  ///< of a head
  int tiles, in_turn;     ///< of a head, and how many of them are taken of all heads in turn
  int items;              ///< tiles in all
  int direction;          ///< of the lines, where it is the same in every head
  const int32_t* order;   ///< of the lines, else
  /// How many have been taken besides the first of each block of threads. Null where turns are
  /// fixed, every other one backwards.
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
  int shared;  ///< whether all groups have the same line, and take its blocks in turn
  int line[kLines];

  /// By all lanes of a warp, which agree in a way that the compiler knows of: what else the loop
  /// over items carries, the numbers of buffers above all, then stays in uniform registers.
  __device__ bool ended() const { return __reduce_min_sync(~0u, b) < 0; }
};

/// The same in the registers of a copying warp, whose lane i knows line i.
struct WorkAhead {
  int b, h, line;
  bool shared;

  WorkAhead() = default;

  /// What the other copying warp noted.
  template <int kLines>
  __device__ explicit WorkAhead(const Work<kLines>& work)
      : b(work.b), h(work.h), line(work.line[min(lane(), kLines - 1)]), shared(work.shared) {}

  template <class T>
  __device__ WorkAhead(const Schedule& s, const Problem<T>& p, int lines, int item) {
    const int in_turn = s.in_turn * s.heads, rest = s.tiles - s.in_turn;
    int head, tile;
    if (item < in_turn) {
      tile = item / s.heads;
      head = item - tile * s.heads;
    } else {
      head = (item - in_turn) / rest;
      tile = s.in_turn + (item - in_turn) - head * rest;
    }
    const bool of_long = tile < s.long_lines;
    int at = of_long ? tile : s.long_lines + (tile - s.long_lines) * lines + lane();
    if (of_long && lane() > 0) at = s.lines;
    shared = false;
    b = head / s.heads_of_batch;
    h = head - b * s.heads_of_batch;
    line = s.lines;
    if (s.direction != 0) {
      if (lane() < lines && at < s.lines) line = s.direction > 0 ? at : s.lines - 1 - at;
      return;
    }
    if (lane() < lines && at < s.lines) {
      line = s.order[p.first_line(b, h * (p.heads / s.heads_of_batch), s.lines) + at];
    }
    // Some heads have fewer long lines than others.
    const bool is_long = line < 0;
    if (is_long) line = ~line;
    if (!of_long || !__any_sync(~0u, is_long)) return;
    shared = lines > 1;
    const int first = __shfl_sync(~0u, line, 0);
    if (lane() < lines) line = first;
  }

  /// By all lanes; who reads `work` waits for `full`, which counts kLines arrivals.
  template <int kLines>
  __device__ void note(Work<kLines>& work, Barrier& full) const {
    if (lane() == 0) {
      work.b = b;
      work.h = h;
      work.shared = shared;
    }
    if (lane() < kLines) work.line[lane()] = line;
    full.arrive(lane() < kLines);
  }
};

/// Says that no more work comes.
template <int kLines>
__device__ void end_work(Work<kLines>& work, Barrier& full) {
  if (lane() == 0) work.b = -1;
  full.arrive(lane() < kLines);
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

/// What a block of threads may have of shared memory.
inline constexpr size_t kSharedBytes = 227 * 1024;

/// The schedule of a call, with the memory of its counter.
class Scheduled {
 public:
  /// `lines` of the map's lists make a tile; with `share`, each of the long ones does.
  Scheduled(const KernelContext& context, const kernels::BlockList& list, int64_t blocks,
            int batches, int heads, int lines, bool share, int map_heads, bool bounded,
            int64_t places) {
    const int64_t long_lines = share ? list.long_rows : 0;
    const int64_t tiles = long_lines + (blocks - long_lines + lines - 1) / lines;
    const int64_t all = int64_t{batches} * heads * tiles;
    if (all > INT_MAX) {
      throw ValueError("attention", "at most 2^31 - 1 tiles", std::to_string(all));
    }
    schedule_ = {.heads = batches * heads,
                 .heads_of_batch = heads,
                 .lines = static_cast<int>(blocks),
                 .long_lines = static_cast<int>(long_lines),
                 .tiles = static_cast<int>(tiles),
                 .in_turn = static_cast<int>(bounded ? tiles : long_lines),
                 .items = static_cast<int>(all),
                 .direction = list.direction,
                 .order = list.order,
                 .taken = nullptr};
    // Fixed turns keep blocks of threads that read the same keys together, but leave some idle in
    // the last round, and all that have no long line while others have.
    const int64_t rounds = (all + places - 1) / places;
    const bool uneven = bounded || 2 * list.longest * blocks * map_heads > 3 * list.entries;
    const bool idle = 25 * (rounds * places - all) > all;
    if (all <= places || !(list.long_rows > 0 || (uneven && idle))) return;
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

/// As many blocks of threads as a card holds share the tiles of a call, whose lines are those of
/// `list`: `blocks` for each of `heads` heads a batch. The groups of a block share a long line if
/// `share`. `allowed` is that of the kernel.
template <class S, class Shared, class Call>
void launch_walk(const KernelContext& context, void (*kernel)(Call), std::atomic<uint64_t>& allowed,
                 Call call, const kernels::BlockList& list, int64_t blocks, int heads,
                 bool share = true) {
  static_assert(sizeof(Shared) <= kSharedBytes);
  constexpr auto shared = static_cast<int>(sizeof(Shared));
  const auto& p = call.problem;
  const int64_t most = places(context, S::kPerSm);
  const Scheduled scheduled(context, list, blocks, p.batches, heads, S::kLines, share,
                            static_cast<int>(p.map.batches * p.map.heads),
                            p.bounds.ranges != nullptr, most);
  call.schedule = scheduled.schedule();
  launch(context, kernel, allowed, std::min<int64_t>(most, call.schedule.items), S::kThreads,
         shared, shared, call);
}

}  // namespace sash::cuda::hopper
