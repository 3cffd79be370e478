#pragma once

#include <algorithm>
#include <climits>
#include <numeric>
#include <optional>
#include <vector>

#include "scheduler.cuh"

/// How the host shares the work tiles of a call among multiprocessors, and launches a kernel.
namespace sash::cuda::hopper {

/// What a block of threads may have of shared memory.
inline constexpr size_t kSharedBytes = 227 * 1024;

/// Of the card.
inline int multiprocessors(const KernelContext& context) {
  int count = 0;
  SASH_CUDA_CHECK(
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, context.device.index));
  return count;
}

/// Whether the longest of a list's `rows` rows has more than 1.5 times the mean.
inline bool is_uneven(const kernels::BlockList& list, int64_t rows) {
  return 2 * list.longest * rows > 3 * list.entries;
}

/// The most that a block of threads has to do, divided by the mean, if the tiles of each head
/// shorten evenly and all take them in rounds, or in pairs that take equally long.
inline double most_of_tiles(int64_t tiles, int64_t head_tiles, int64_t active_blocks) {
  std::vector<int64_t> load(static_cast<size_t>(active_blocks));
  int64_t of_head = 0, block = 0, direction = 1;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    load[static_cast<size_t>(block)] += head_tiles - of_head;
    if (++of_head == head_tiles) of_head = 0;
    block += direction;
    if (block < 0 || block == active_blocks) {
      direction = -direction;
      block += direction;
    }
  }
  const auto all = static_cast<double>(std::accumulate(load.begin(), load.end(), int64_t{0}));
  return static_cast<double>(*std::ranges::max_element(load) * active_blocks) / all;
}
inline double most_of_pairs(int64_t pairs, int64_t active_blocks) {
  const int64_t rounds = (pairs + active_blocks - 1) / active_blocks;
  return static_cast<double>(rounds * active_blocks) / static_cast<double>(pairs);
}

/// About how much longer a call takes whose neighbours read keys of different heads.
inline constexpr double kFarApart = 1.13;

/// From how many blocks of scores for each multiprocessor on a counter pays.
inline constexpr int64_t kManyBlocks = 512;

/// The heads of a share, where `heads` are cut into the fewest equal shares of `most` or fewer.
inline int even_share(int64_t heads, int64_t most) {
  const int64_t shares = (heads + most - 1) / most;
  return static_cast<int>((heads + shares - 1) / shares);
}

/// The schedule of a call, with the memory of its counter.
class CallSchedule {
 public:
  /// `rows` block rows make a tile; with `share`, each long one does. `active_blocks` blocks of
  /// threads run at once.
  CallSchedule(const KernelContext& context, const kernels::BlockList& list, int64_t blocks,
               int batches, int heads, int rows, bool share, int map_heads, bool bounded,
               int64_t active_blocks) {
    const int64_t long_rows = share ? list.long_rows : 0;
    const int64_t head_tiles = long_rows + (blocks - long_rows + rows - 1) / rows;
    const int64_t tiles = int64_t{batches} * heads * head_tiles;
    if (tiles > INT_MAX) {
      throw ValueError("attention", "at most 2^31 - 1 tiles", std::to_string(tiles));
    }
    schedule_ = {.heads = batches * heads,
                 .heads_per_batch = heads,
                 .rows = static_cast<int>(blocks),
                 .long_rows = static_cast<int>(long_rows),
                 .head_tiles = static_cast<int>(head_tiles),
                 .alternating = static_cast<int>(bounded ? head_tiles : long_rows),
                 .late_first = 0,
                 .late_last = 0,
                 .tiles = static_cast<int>(tiles),
                 .direction = list.direction,
                 .order = list.order,
                 .counter = nullptr,
                 .paired = false,
                 .ordered = false};
    if (tiles <= active_blocks) return;
    // Rounds keep blocks of threads that read the same keys together. But they leave some idle in
    // the last round, and all that have no long row while others have.
    const int64_t rounds = (tiles + active_blocks - 1) / active_blocks;
    const bool idle = 25 * (rounds * active_blocks - tiles) > tiles;
    if (list.long_rows > 0 || (bounded && idle)) {
      start_counter(context);
    } else if (!bounded && head_tiles > 1 && is_uneven(list, blocks * map_heads)) {
      const int64_t entries = list.entries * batches * heads / map_heads;
      if (entries >= kManyBlocks * active_blocks) {
        put_long_first(context);
        return;
      }
      balance(active_blocks);
    }
    if (!bounded && !schedule_.paired) put_short_last(list, rows, active_blocks);
  }
  const Schedule& schedule() const { return schedule_; }

 private:
  /// Tiles are taken from a counter.
  void start_counter(const KernelContext& context) {
    counter_.emplace(context, sizeof(int));
    schedule_.counter = counter_->ptr<int>();
    SASH_CUDA_CHECK(cudaMemsetAsync(schedule_.counter, 0, sizeof(int),
                                    static_cast<cudaStream_t>(context.stream.handle)));
  }

  /// Tiles of a few heads at a time, the longest first, each taken as late as possible.
  void put_long_first(const KernelContext& context) {
    start_counter(context);
    schedule_.ordered = true;
    schedule_.together = even_share(schedule_.heads, 8);
  }

  /// Orders the tiles of heads whose rows differ in length, about evenly from the first to the
  /// last.
  void balance(int64_t active_blocks) {
    Schedule paired = schedule_;
    paired.paired = true;
    paired.head_tiles += paired.head_tiles % 2;
    paired.tiles = paired.heads * paired.head_tiles;
    const double of_pairs = most_of_pairs(paired.tiles / 2, active_blocks);
    // Many pairs fill their rounds well. Where few do not, single tiles may by chance.
    if (of_pairs > 1.05 && most_of_tiles(schedule_.tiles, schedule_.head_tiles, active_blocks) <
                               std::min(of_pairs, kFarApart)) {
      return;
    }
    if (of_pairs < kFarApart) {
      schedule_ = paired;
    } else {
      schedule_.alternating = schedule_.head_tiles;
    }
  }

  /// Where that saves part of a round. Not where they are many: neighbours among them read keys of
  /// different heads.
  void put_short_last(const kernels::BlockList& list, int64_t rows, int64_t active_blocks) {
    if (schedule_.alternating != list.long_rows) return;
    const int64_t tiles = schedule_.head_tiles - list.long_rows;
    const int64_t first = (list.short_first + rows - 1) / rows;
    const int64_t last = tiles - (schedule_.rows - list.long_rows - list.short_last) / rows;
    if (4 * (first + last) > tiles) return;
    // Short tiles take about half as long as others.
    const int64_t late = (first + last) * schedule_.heads, others = schedule_.tiles - late;
    const int64_t full_rounds = others / active_blocks, left = others % active_blocks;
    const int64_t left_blocks = left > 0 ? std::max(active_blocks, left + late / 2) : late / 2;
    const int64_t rounds = (schedule_.tiles + active_blocks - 1) / active_blocks;
    if (full_rounds * active_blocks + left_blocks >= rounds * active_blocks) return;
    schedule_.late_first = static_cast<int>(first);
    schedule_.late_last = static_cast<int>(last);
  }

  Schedule schedule_;
  std::optional<Workspace> counter_;
};

/// Launches a kernel of shape S with one block of threads a multiprocessor, or fewer if there are
/// fewer work tiles. These are made of the rows of queries (`by_query`) or keys of each head; the
/// groups of a block of threads share long rows if `share`. `allowed`: see `launch`.
template <class S, class Shared, bool by_query, class Call>
void launch_persistent(const KernelContext& context, void (*kernel)(Call),
                       std::atomic<uint64_t>& allowed, Call call, bool share = true) {
  static_assert(sizeof(Shared) <= kSharedBytes);
  constexpr auto shared = static_cast<int>(sizeof(Shared));
  const auto& p = call.dims;
  const int active = multiprocessors(context);
  const CallSchedule schedule(context, by_query ? p.map.by_query : p.map.by_key,
                              by_query ? p.map.query_blocks : p.map.key_blocks, p.batches,
                              by_query ? p.heads : p.key_heads, S::kBlockRows, share,
                              static_cast<int>(p.map.batches * p.map.heads),
                              p.bounds.ranges != nullptr, active);
  call.schedule = schedule.schedule();
  launch(context, kernel, allowed, std::min(active, call.schedule.tiles), S::kThreads, shared,
         shared, call);
}

}  // namespace sash::cuda::hopper
