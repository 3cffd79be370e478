#pragma once

#include "../../hopper/pipeline.cuh"
#include "call.cuh"
#include "fragments.cuh"

/// The order of work of the forward kernel.
///
/// A block of threads owns `kItems` *items* of 16 rows of q, which share a row of the index. It
/// visits each block of keys that any of its items selects once. A producer warp copies 64 keys at
/// a time to a ring, and the consumer warps that have an item which selected the block multiply
/// them. Blocks are listed in turn for each warp, so that all warps have work although the ring is
/// short.
namespace sash::cuda::selected {

using hopper::Barrier;
using hopper::PipelineState;
using hopper::Tile;

inline constexpr int kConsumers = 12;                   // warps
inline constexpr int kThreads = 32 * (kConsumers + 4);  // and a group of warps with the producer
inline constexpr int kChunks = 32;  // of 32 blocks, in the list at a time: a lane scans each
inline constexpr int kWindow = 32 * kChunks;
inline constexpr int kConsumersBarrier = 1;  // a named barrier
inline constexpr int kKeys = 64;             // of a step
inline constexpr int kCrowd = 9;             // a block that so many warps need is listed first

/// How many items a warp has, and how many steps the ring holds. Item i is number i / kConsumers of
/// warp i % kConsumers.
template <int depth>
struct QueryShape {
  static constexpr int kPerWarp = 128 / depth;
  static constexpr int kItems = kConsumers * kPerWarp;
  static constexpr int kRows = 16 * kItems;
  static constexpr int kStages = (212 * 1024 - kRows * depth * 2) / (2 * kKeys * depth * 2);
};

struct Item {
  int row;               ///< of the index; -1: none
  KeyRange any, common;  ///< keys that one of its rows may see, and that all may
};

template <class T, int depth>
struct QueryMemory {
  using Shape = QueryShape<depth>;
  using Keys = Tile<T, depth, kKeys>;

  Keys k[Shape::kStages], v[Shape::kStages];
  Tile<T, depth, Shape::kRows> rows;
  KeyRange range[Shape::kRows];
  int2 place[Shape::kRows];  ///< query and head; query -1: none
  Item item[Shape::kItems];
  uint32_t selected_by[kWindow];        ///< a bit for each item
  uint16_t list[kWindow];               ///< numbers of blocks in the window
  int before[kConsumers + 1][kChunks];  ///< blocks of an owner in earlier chunks
  int counts[kConsumers + 1], listed;   ///< of an owner, and of all
  unsigned started;                     ///< steps whose copies have been started
  hopper::Ring<Keys, Shape::kStages, 2> ring;
  hopper::Ring<Keys, 1> lists;  ///< for the list: written by the consumers, read by the producer
};

/// Keys [first, past), and whether all rows of the item see kKeys keys.
struct Step {
  int first, past;
  bool whole;
};

/// The tile of a block of threads.
struct QueryTileAt {
  int b, unit, first_item;
};

template <class T, int depth>
class QueryTile {
 public:
  using Memory = QueryMemory<T, depth>;
  using Shape = typename Memory::Shape;
  using State = typename decltype(Memory::ring)::State;

  __device__ QueryTile(Memory& memory, const Dims& dims, IndexFlag* flag)
      : memory_(memory), dims_(dims), flag_(flag) {
    const int tiles_per_unit = (dims.items() + Shape::kItems - 1) / Shape::kItems;
    const int index = static_cast<int>(blockIdx.x);
    // The last queries see most under causal masks: they go first.
    at_ = {index / tiles_per_unit / dims.units, index / tiles_per_unit % dims.units,
           (tiles_per_unit - 1 - index % tiles_per_unit) * Shape::kItems};
  }

  __device__ Memory& memory() { return memory_; }
  __device__ const QueryTileAt& at() const { return at_; }

  /// Item `slot` of this warp.
  static __device__ int item(int slot) { return slot * kConsumers + warp(); }
  /// Query and head of row `row` of item `item`; query -1 if there is none.
  __device__ int2 place(int item, int row) const { return memory_.place[16 * item + row]; }

  /// All threads: sets items, places, ranges and barriers.
  __device__ void start() {
    const auto i = static_cast<int>(threadIdx.x);
    if (i == 0) {
      memory_.started = 0;
      memory_.ring.init(kConsumers);
      memory_.lists.init(1, 32 * kConsumers);
      hopper::fence_barrier_init();
    }
    if (i < Shape::kRows) {  // whole warps
      const int number = at_.first_item + i / 16;
      const bool inside = number < dims_.items();
      const int row = number / dims_.parts, part = number % dims_.parts;
      const int2 at = inside ? dims_.place(at_.unit, row, 16 * part + i % 16) : int2{-1, 0};
      const KeyRange own = at.x < 0 ? KeyRange{dims_.keys, 0} : dims_.range(at_.b, at.y, at.x);
      memory_.place[i] = at;
      memory_.range[i] = own;
      KeyRange any = own.first < own.past ? own : KeyRange{dims_.keys, 0};
      KeyRange common = at.x < 0 ? KeyRange{0, dims_.keys} : own;
#pragma unroll
      for (int step = 8; step > 0; step /= 2) {
        any = {min(any.first, __shfl_xor_sync(~0u, any.first, step)),
               max(any.past, __shfl_xor_sync(~0u, any.past, step))};
        common = {max(common.first, __shfl_xor_sync(~0u, common.first, step)),
                  min(common.past, __shfl_xor_sync(~0u, common.past, step))};
      }
      if (i % 16 == 0) memory_.item[i / 16] = {inside ? row : -1, any, common};
    }
    __syncthreads();
  }

  /// The producer's group: one thread copies the keys of all listed blocks.
  __device__ void produce(const CUtensorMap& k, const CUtensorMap& v) {
    if (warp() > kConsumers || !hopper::elect_one()) return;
    State state;
    PipelineState<1> list;
    for (int base = 0; base < dims_.blocks; base += kWindow, list.advance()) {
      memory_.lists.wait(list);
      copy_listed(k, v, base, state);
      memory_.lists.empty[0].arrive();
    }
  }

  /// Consumers: copy the rows of q, then call f(slot, k, v, step) for each of the warp's items that
  /// selected a block. The compiler knows `slot`.
  template <class F>
  __device__ void consume(const Rows<const T>& q, F&& f) {
    load_rows(q);
    const int steps = steps_of_block();
    unsigned before = 0, started = 0;  // steps of earlier lists; steps whose copies have started
    PipelineState<1> list;
    for (int base = 0; base < dims_.blocks; base += kWindow, list.advance()) {
      memory_.lists.acquire(list);
      make_list(base);
      mma::wait_for_copies();
      memory_.lists.full[0].arrive();
      memory_.lists.wait(list);
      for (int from = 0; from < memory_.listed; from += 32) {
        const int i = from + lane();
        const int listed = i < memory_.listed ? memory_.list[i] : 0;
        const uint32_t selected_by = i < memory_.listed ? memory_.selected_by[listed] : 0;
        const unsigned first_step = before + static_cast<unsigned>(i * steps);
        // What a visit needs, in one word: the block, the stage and the parity of its first step,
        // and a bit for each item of the warp all of whose rows see the whole block.
        const unsigned visit = static_cast<unsigned>(listed) | first_step % Shape::kStages << 16 |
                               first_step / Shape::kStages % 2 << 24 |
                               seen_whole(base + listed) << 25;
        uint32_t mine = __ballot_sync(~0u, warps_of(selected_by) >> warp() & 1);
        const auto look = [&] {  // the items of the warp's next visit, and its word `visit`
          const int at = __ffs(static_cast<int>(mine)) - 1;
          return uint2{__shfl_sync(~0u, selected_by >> warp(), at), __shfl_sync(~0u, visit, at)};
        };
        for (uint2 next = look(); mine != 0;) {
          const auto [items, visited] = next;
          unsigned number =
              before + static_cast<unsigned>((from + __ffs(static_cast<int>(mine)) - 1) * steps);
          mine &= mine - 1;
          next = look();
          State state(static_cast<int>(visited >> 16 & 255), visited >> 24 & 1);
          int key = (base + static_cast<int>(visited & 0xffff)) * dims_.block;
          const int end = min(key + dims_.block, dims_.keys);
          for (int step = 0; step < steps; ++step, ++number, key += kKeys) {
            if (started <= number) started = wait_for_start(number, state);
            memory_.ring.wait(state);
#pragma unroll
            for (int slot = 0; slot < Shape::kPerWarp; ++slot) {
              if (items >> (slot * kConsumers) & 1 && key < end) {
                const Step part{key, min(end, key + kKeys),
                                (visited >> (25 + slot) & 1) && key + kKeys <= end};
                f(slot, memory_.k[state.stage()], memory_.v[state.stage()], part);
              }
            }
            memory_.ring.release(state);
            state.advance();
          }
        }
      }
      before += static_cast<unsigned>(memory_.listed * steps);
    }
  }

  /// Sets to `value` the sums[j][e], of row g + 8 (e / 2) and key first + 8 j + 2 t + e % 2, that
  /// the row's range hides or that lie past the block.
  template <int n>
  __device__ void hide(float (&sums)[n][4], int item, int first, int past, float value) const {
    first += 2 * (lane() % 4);  // the columns below are constants, which take no registers
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyRange own = memory_.range[16 * item + lane() / 4 + 8 * half];
      const int from = own.first - first, to = min(own.past, past) - first;
#pragma unroll
      for (int j = 0; j < n; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = 8 * j + e;
          if (column < from || column >= to) sums[j][2 * half + e] = value;
        }
      }
    }
  }

 private:
  __device__ int steps_of_block() const { return (dims_.block + kKeys - 1) / kKeys; }

  /// Consumers: start to copy the rows of x, zeros where there are none.
  __device__ void load_rows(const Rows<const T>& x) {
    constexpr int chunks = depth / 8, threads = 32 * kConsumers;
    for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * chunks; i += threads) {
      const int row = i / chunks, chunk = i % chunks;
      const int2 at = memory_.place[row];
      const T* const from =
          x.data + at_.b * x.batch + at.y * x.head + max(at.x, 0) * x.row + 8 * chunk;
      mma::copy_async(chunk_address(memory_.rows, row, chunk), from, at.x >= 0);
    }
  }

  /// A bit for each item of the warp all of whose rows see the whole block.
  __device__ unsigned seen_whole(int block) const {
    const int first = block * dims_.block, past = min(first + dims_.block, dims_.keys);
    unsigned whole = 0;
#pragma unroll
    for (int slot = 0; slot < Shape::kPerWarp; ++slot) {
      const KeyRange common = memory_.item[item(slot)].common;
      if (common.first <= first && past <= common.past) whole |= 1u << slot;
    }
    return whole;
  }

  /// A bit for each warp with one of the items that selected a block.
  static __device__ uint32_t warps_of(uint32_t selected_by) {
    const uint32_t all =
        Shape::kPerWarp == 1 ? selected_by : selected_by | selected_by >> kConsumers;
    return all & ((1u << kConsumers) - 1);
  }

  /// The warp in whose turn a block is listed: one that needs the block, for other blocks another.
  /// kConsumers if most warps need the block, -1 if none does.
  static __device__ int owner(uint32_t selected_by, int block) {
    const uint32_t warps = warps_of(selected_by);
    if (__popc(warps) >= kCrowd) return kConsumers;
    const int turn = block % kConsumers;
    const uint32_t turned = (warps | warps << kConsumers) >> turn;
    return warps == 0 ? -1 : (__ffs(static_cast<int>(turned)) - 1 + turn) % kConsumers;
  }

  /// Consumers: lists the blocks [base, base + kWindow) that items select. First the blocks that
  /// most warps need, then the first block of each owner, the second of each, and so on.
  __device__ void make_list(int base) {
    constexpr int threads = 32 * kConsumers, each = (kChunks + kConsumers - 1) / kConsumers;
    const auto sync = [] { hopper::barrier_sync(kConsumersBarrier, threads); };
    const auto thread = static_cast<int>(threadIdx.x);
    sync();  // all have finished with the list before
    for (int i = thread; i < kWindow; i += threads) memory_.selected_by[i] = 0;
    int* const before = &memory_.before[0][0];
    for (int i = thread; i < (kConsumers + 1) * kChunks; i += threads) before[i] = 0;
    sync();
    const int32_t* const index = dims_.index + dims_.index_row(at_.b, at_.unit, 0) * dims_.entries;
    for (int i = thread; i < Shape::kItems * dims_.entries; i += threads) select(index, i, base);
    sync();
    int owners[each], ranks[each];  // of this thread's blocks; within a chunk
#pragma unroll
    for (int n = 0; n < each; ++n) {
      const int i = thread + n * threads;
      owners[n] = i < kWindow ? owner(memory_.selected_by[i], i) : -1;
      const uint32_t same = __match_any_sync(~0u, owners[n]);
      ranks[n] = __popc(same & ((1u << lane()) - 1));
      if (owners[n] >= 0 && ranks[n] == 0) memory_.before[owners[n]][i / 32] = __popc(same);
    }
    sync();
    for (int i = warp(); i <= kConsumers; i += kConsumers) {
      const int own = memory_.before[i][lane()];
      int sum = own;
#pragma unroll
      for (int step = 1; step < kChunks; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (lane() >= step) sum += other;
      }
      memory_.before[i][lane()] = sum - own;
      if (lane() == kChunks - 1) memory_.counts[i] = sum;
    }
    sync();
    int counts[kConsumers], listed = memory_.counts[kConsumers];
    const int crowd = listed;
#pragma unroll
    for (int i = 0; i < kConsumers; ++i) listed += counts[i] = memory_.counts[i];
    if (thread == 0) memory_.listed = listed;
#pragma unroll
    for (int n = 0; n < each; ++n) {
      const int i = thread + n * threads;
      if (owners[n] < 0) continue;
      const int turn = memory_.before[owners[n]][i / 32] + ranks[n];
      int to = turn;
      if (owners[n] < kConsumers) {
        to = crowd;
#pragma unroll
        for (int w = 0; w < kConsumers; ++w) to += min(counts[w], turn + (w < owners[n]));
      }
      memory_.list[to] = static_cast<uint16_t>(i);
    }
  }

  /// Notes entry `i` of the rows of all items, if its block is in the window. `index` is row 0 of
  /// the unit.
  __device__ void select(const int32_t* index, int i, int base) {
    const int number = i / dims_.entries;
    const Item& item = memory_.item[number];
    if (item.row < 0) return;
    const int32_t* const place =
        index + static_cast<int64_t>(item.row) * dims_.entries + (i - number * dims_.entries);
    const int block = *place;
    if (block == -1) return;
    if (!in_range(flag_, IndexOp::attention_selected, block, dims_.blocks, place - dims_.index)) {
      return;
    }
    if (block < base || block >= base + kWindow) return;
    const int64_t first = static_cast<int64_t>(block) * dims_.block;
    if (first >= item.any.past || first + dims_.block <= item.any.first) return;
    atomicOr(&memory_.selected_by[block - base], 1u << number);
  }

  /// One thread of the producer: copies the keys of the listed blocks. It arrives for the warps
  /// that do not need a block, so that these warps need not pass its steps.
  __device__ void copy_listed(const CUtensorMap& k, const CUtensorMap& v, int base, State& state) {
    const int kv = at_.unit / dims_.units_of_key_head();
    const int listed = memory_.listed, steps = steps_of_block();
    for (int i = 0; i < listed; ++i) {
      const int block = memory_.list[i], first = (base + block) * dims_.block;
      const auto absent =
          static_cast<uint32_t>(kConsumers - __popc(warps_of(memory_.selected_by[block])));
      for (int step = 0; step < steps; ++step) {
        const int key = first + step * kKeys;
        memory_.ring.acquire(state);
        Barrier& full = memory_.ring.commit(state);
        hopper::copy_rows(memory_.k[state.stage()], 0, k, key, kv, at_.b, full);
        hopper::copy_rows(memory_.v[state.stage()], 0, v, key, kv, at_.b, full);
        if (absent > 0) memory_.ring.empty[state.stage()].arrive_many(absent);
        hopper::add_one(memory_.started);
        state.advance();
      }
    }
  }

  /// Waits until the copies of step `number` have been started. Only then is the phase of its
  /// barrier the one that the state's parity names. Returns how many steps have been started.
  __device__ unsigned wait_for_start(unsigned number, const State& state) {
    memory_.ring.acquire(state);  // most of the wait, without a loop of reads
    unsigned started;
    do {
      started = hopper::read_count(memory_.started);
    } while (started <= number);
    return __shfl_sync(~0u, started, 0);
  }

  Memory& memory_;
  const Dims& dims_;
  IndexFlag* flag_;
  QueryTileAt at_;
};

/// Blocks of threads of a launch.
template <class Shape>
int64_t query_tiles(const Dims& dims) {
  return ceil_div(int64_t{dims.items()}, Shape::kItems) * dims.units * dims.batches;
}

}  // namespace sash::cuda::selected
