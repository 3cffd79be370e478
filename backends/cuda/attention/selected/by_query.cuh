#pragma once

#include "../../hopper/pipeline.cuh"
#include "call.cuh"
#include "fragments.cuh"

/// The order of work of the forward kernel.
///
/// A block of threads owns `kItems` *items* of 16 rows of q, which share a row of the index. It
/// visits, in ascending order, the blocks of keys that any of its items selects. A producer warp
/// copies 64 keys at a time. A consumer warp multiplies each of its items that selected the block:
/// a block of keys travels once for all items, and warps run apart by the depth of the ring.
namespace sash::cuda::selected {

using hopper::Barrier;
using hopper::Tile;

inline constexpr int kConsumers = 12;                   // warps
inline constexpr int kThreads = 32 * (kConsumers + 4);  // and a group of warps with the producer
inline constexpr int kWindow = 64 * kConsumers;         // blocks in the list at a time
inline constexpr int kLists = 1, kListed = 2;           // named barriers
inline constexpr int kKeys = 64;                        // of a step

/// How many items a warp has, and how many steps the ring holds.
template <int depth>
struct QueryShape {
  static constexpr int kPerWarp = 128 / depth;
  static constexpr int kItems = kConsumers * kPerWarp;
  static constexpr int kRowBytes = kItems * 16 * depth * 2;
  static constexpr int kStages = (205 * 1024 - kRowBytes) / (2 * kKeys * depth * 2);
};

struct Item {
  int row, part;         ///< of the index; which 16 rows of its group; row -1: none
  KeyRange any, common;  ///< keys that one of its rows may see, and that all may
};

template <class T, int depth>
struct QueryMemory {
  using Shape = QueryShape<depth>;
  using Keys = Tile<T, depth, kKeys>;

  Keys k[Shape::kStages], v[Shape::kStages];
  Tile<T, depth, 16 * Shape::kItems> rows;
  KeyRange range[16 * Shape::kItems];
  Item item[Shape::kItems];
  uint32_t selected_by[kWindow];  ///< a bit for each item
  int2 list[kWindow];             ///< a block, and the items that selected it
  int counts[kConsumers], listed;
  hopper::Ring<Keys, Shape::kStages, 2> ring;
};

/// Keys [first, past).
struct Step {
  int first, past;
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

  __device__ const QueryTileAt& at() const { return at_; }
  __device__ int key_head() const { return at_.unit / dims_.units_of_key_head(); }

  /// Query and head of row `row` of item `item`; query -1 if there is none.
  __device__ int2 place(int item, int row) const {
    const Item& x = memory_.item[item];
    return x.row < 0 ? int2{-1, 0} : dims_.place(at_.unit, x.row, 16 * x.part + row);
  }

  /// All threads: sets items, ranges and barriers, and copies the rows of q.
  __device__ void start(const Rows<const T>& q) {
    const int parts = dims_.parts;
    const auto thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
      memory_.ring.init(kConsumers);
      hopper::fence_barrier_init();
    }
    if (thread < Shape::kItems) {
      const int number = at_.first_item + thread;
      const bool inside = number < dims_.items();
      memory_.item[thread] = {inside ? number / parts : -1, number % parts, {}, {}};
    }
    __syncthreads();
    for (int i = thread; i < 16 * Shape::kItems; i += kThreads) {
      const int2 at = place(i / 16, i % 16);
      memory_.range[i] = at.x < 0 ? KeyRange{dims_.keys, 0} : dims_.range(at_.b, at.y, at.x);
    }
    load_rows(q);
    __syncthreads();
    if (thread >= Shape::kItems) return;
    KeyRange any{dims_.keys, 0}, common{0, dims_.keys};
    for (int i = 0; i < 16; ++i) {
      if (place(thread, i).x < 0) continue;
      const KeyRange own = memory_.range[16 * thread + i];
      if (own.first < own.past) any = {min(any.first, own.first), max(any.past, own.past)};
      common = {max(common.first, own.first), min(common.past, own.past)};
    }
    memory_.item[thread].any = any;
    memory_.item[thread].common = common;
  }

  /// Multiplies: the producer's warp copies keys, and each consumer calls f(slot, k, v, step) for
  /// each of its items that selected a block. `slot` is the number of the item in the warp, which
  /// the compiler knows. Returns whether the thread is a consumer.
  template <class F>
  __device__ bool run(const CUtensorMap& k, const CUtensorMap& v, F&& f) {
    __syncthreads();  // items are there
    State state;
    if (warp() >= kConsumers) {
      hopper::warpgroup_reg_dealloc<24>();
      if (warp() > kConsumers) return false;
      for (int base = 0; base < dims_.blocks; base += kWindow) {
        sync_with_producer();  // the consumers write a list
        sync_with_producer();
        produce(k, v, state);
      }
      return false;
    }
    hopper::warpgroup_reg_alloc<160>();
    for (int base = 0; base < dims_.blocks; base += kWindow) {
      make_list(base);
      sync_with_producer();
      consume(state, f);
    }
    return true;
  }

  /// Whether all rows of an item see the keys [first, first + kKeys), of which the block ends at
  /// `past`.
  __device__ bool sees_all(int item, int first, int past) const {
    const KeyRange common = memory_.item[item].common;
    return common.first <= first && first + kKeys <= min(past, common.past);
  }
  /// Sets to `value` the sums[j][e], of row g + 8 (e / 2) and key first + 8 j + 2 t + e % 2, that
  /// the row's range hides or that lie past the block.
  template <int n>
  __device__ void hide(float (&sums)[n][4], int item, int first, int past, float value) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyRange own = memory_.range[16 * item + lane() / 4 + 8 * half];
      const int from = own.first - first, to = min(own.past, past) - first;
#pragma unroll
      for (int j = 0; j < n; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const int column = fragments::column_of(j, e);
          if (column < from || column >= to) sums[j][e] = value;
        }
      }
    }
  }

  __device__ Memory& memory() { return memory_; }

 private:
  /// All threads: copies the rows of x, zeros where there are none.
  __device__ void load_rows(const Rows<const T>& x) {
    constexpr int chunks = depth / 8;
    for (int i = static_cast<int>(threadIdx.x); i < 16 * Shape::kItems * chunks; i += kThreads) {
      const int row = i / chunks, chunk = i % chunks;
      const int2 at = place(row / 16, row % 16);
      const bool inside = at.x >= 0;
      const T* from = x.data + at_.b * x.batch + at.y * x.head + max(at.x, 0) * x.row + 8 * chunk;
      mma::copy_async(chunk_address(memory_.rows, row, chunk), inside ? from : x.data, inside);
    }
    mma::wait_for_copies();
  }

  static __device__ void sync_with_producer() {
    hopper::barrier_sync(kListed, 32 * (kConsumers + 1));
  }

  /// Consumers: lists the blocks [base, base + kWindow) that items select.
  __device__ void make_list(int base) {
    constexpr int threads = 32 * kConsumers, each = kWindow / threads;
    const auto sync = [] { hopper::barrier_sync(kLists, threads); };
    const auto thread = static_cast<int>(threadIdx.x);
    sync_with_producer();  // all have finished with the list before
    for (int i = thread; i < kWindow; i += threads) memory_.selected_by[i] = 0;
    sync();
    for (int i = thread; i < Shape::kItems * dims_.entries; i += threads) {
      select(i, base);
    }
    sync();
    int count = 0;
    for (int i = 0; i < each; ++i) count += memory_.selected_by[each * thread + i] != 0;
    int before = count;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, before, step);
      if (lane() >= step) before += other;
    }
    if (lane() == 31) memory_.counts[warp()] = before;
    before -= count;
    sync();
    for (int i = 0; i < warp(); ++i) before += memory_.counts[i];
    for (int i = 0; i < each; ++i) {
      const uint32_t items = memory_.selected_by[each * thread + i];
      if (items) memory_.list[before++] = {base + each * thread + i, static_cast<int>(items)};
    }
    if (thread == threads - 1) memory_.listed = before;
  }

  /// Notes entry `i` of the rows of all items, if its block is in the window.
  __device__ void select(int i, int base) {
    const int number = i / dims_.entries;
    const Item& item = memory_.item[number];
    if (item.row < 0) return;
    const int64_t place =
        dims_.index_row(at_.b, at_.unit, item.row) * dims_.entries + i % dims_.entries;
    const int block = dims_.index[place];
    if (block == -1) return;
    if (!in_range(flag_, IndexOp::attention_selected, block, dims_.blocks, place)) return;
    if (block < base || block >= base + kWindow) return;
    const int64_t first = static_cast<int64_t>(block) * dims_.block;
    if (first >= item.any.past || first + dims_.block <= item.any.first) return;
    atomicOr(&memory_.selected_by[block - base], 1u << number);
  }

  /// The producer: copies the keys of the listed blocks.
  __device__ void produce(const CUtensorMap& k, const CUtensorMap& v, State& state) {
    if (!hopper::elect_one()) return;
    const int kv = key_head(), listed = memory_.listed;
    for (int i = 0; i < listed; ++i) {
      const int first = memory_.list[i].x * dims_.block;
      for (int key = first; key < min(first + dims_.block, dims_.keys); key += kKeys) {
        memory_.ring.acquire(state);
        Barrier& full = memory_.ring.commit(state);
        hopper::copy_rows(memory_.k[state.stage()], 0, k, key, kv, at_.b, full);
        hopper::copy_rows(memory_.v[state.stage()], 0, v, key, kv, at_.b, full);
        state.advance();
      }
    }
  }

  template <class F>
  __device__ void consume(State& state, F& f) {
    for (int i = 0; i < memory_.listed; ++i) {
      const int2 entry = memory_.list[i];
      const uint32_t mine = static_cast<uint32_t>(entry.y) >> (Shape::kPerWarp * warp());
      const int first = entry.x * dims_.block, past = min(first + dims_.block, dims_.keys);
      for (int key = first; key < past; key += kKeys) {
        memory_.ring.wait(state);
        const int stage = state.stage();
#pragma unroll
        for (int slot = 0; slot < Shape::kPerWarp; ++slot) {
          if (mine >> slot & 1) {
            f(slot, memory_.k[stage], memory_.v[stage], Step{key, min(key + kKeys, past)});
          }
        }
        memory_.ring.release(state);
        state.advance();
      }
    }
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
