#include <algorithm>

#include "../../hopper/pipeline.cuh"
#include "../../hopper/wgmma.cuh"
#include "backward.cuh"

/// The gradients of q, k and v on tensor cores, in one pass of five products.
///
/// A block of threads has 64 keys of a block and a chunk of its list. Producer warps copy tiles of
/// 64 rows of q and g, which groups of four consumer warps take in turn. Scores are products of
/// keys and rows, so P and dS are left operands in registers of the sums dv and dk. dS also goes
/// through shared memory, for dS K: what the keys of an entry of the index add to dq. These
/// *shares* are rounded to T and written to memory. Further kernels add the shares of a row of q in
/// the order of entries, and the sums of chunks in the order of chunks.
namespace sash::cuda::selected {
namespace {

using hopper::Barrier;
using hopper::Tile;

constexpr int kRows = 64;  // of a tile
// Of the shares of a segment, of several heads of the index and of a part of one.
constexpr int64_t kUsualBytes = int64_t{512} << 20, kMostBytes = int64_t{2} << 30;

/// An element of a list.
struct Listed {
  int unit, row;  ///< of the index
  int share;      ///< the number of the share of its first row, divided by the size of a group
};

template <class T, int depth>
struct KeyMemory {
  static constexpr int kGroups = depth == 64 ? 3 : 2;  // of consumer warps
  static constexpr int kStages = depth == 64 ? 9 : 4;
  static constexpr int kProducers = depth == 64 ? 3 : 4;  // warps, of a group of 4
  static constexpr int kConsumers = 4 * kGroups;
  static constexpr int kThreads = 32 * (kConsumers + 4);
  // A warp that waits for a turn of a stage has waited for the turn before.
  static_assert(kStages % kGroups == 0 && kStages % kProducers == 0);
  using Keys = Tile<T, depth, kKeys>;
  using Rows = Tile<T, depth, kRows>;
  using Square = Tile<T, kKeys, kRows>;

  Keys k, v;
  union {
    struct {
      Rows q, g;
    } stage[kStages];
    float sums[2][kKeys][depth];
  };
  Square ds[kGroups][2];
  RowStats stats[kStages][kRows];
  KeyRange range[kStages][kRows];
  int share[kStages][kRows];  ///< the number of the row's share, -1 if there is none
  Listed listed[kChunk];
  int partial[kStages];  ///< whether a row does not see all keys of the block of threads
  hopper::Ring<Rows, kStages, 2> ring;
  Barrier keys_there;
};

/// Which keys and which rows a block of threads has: work `number` of a grid of
/// [chunks][calls of a list][parts of a block of 64 keys].
struct KeyWork {
  int b, key_head, part, first, past;  ///< keys [first, past)
  int call, calls;
  int64_t from;  ///< in the list
  int count = 0;
  int64_t sums;            ///< the number of its sums
  bool continues = false;  ///< whether an earlier segment has added to the sums

  __device__ KeyWork(const Dims& dims, const Lists& lists, const Segment& segment, int number) {
    const int parts = key_parts(dims);
    const int batches = dims.batches / dims.index_batches, heads = dims.key_heads / lists.heads;
    calls = batches * heads;
    part = number % parts;
    call = number / parts % calls;
    const int chunk = number / parts / calls + lists.chunk[segment.first_list];
    if (chunk >= lists.chunk[segment.past_list]) return;
    const int list = lists.list_of(chunk);
    const int block = list % dims.blocks, head = list / dims.blocks % lists.heads;
    b = list / dims.blocks / lists.heads * batches + call / heads;
    key_head = head * heads + call % heads;
    first = block * dims.block + part * kKeys;
    past = min(min(first + kKeys, (block + 1) * dims.block), dims.keys);
    if (first >= past) return;
    sums = (static_cast<int64_t>(chunk) * calls + call) * parts + part;
    const int begin = lists.start[list] + (chunk - lists.chunk[list]) * kChunk;
    const int end = min(begin + kChunk, lists.start[list + 1]);
    from = first_of(lists, begin, end, segment.first);
    count = first_of(lists, begin, end, segment.past) - static_cast<int>(from);
    continues = from > begin;
  }

 private:
  /// The first place in [begin, end), which is not empty, whose row is at least `row`.
  __device__ static int first_of(const Lists& lists, int begin, int end, int64_t row) {
    if (lists.rows[end - 1] < row) return end;
    if (lists.rows[begin] >= row) return begin;
    while (end - begin > 1) {  // rows[begin] < row <= rows[end - 1]
      const int middle = (begin + end) / 2;
      (lists.rows[middle] < row ? begin : end) = middle;
    }
    return end;
  }
};

template <class T, int depth>
class KeyTile {
 public:
  using Memory = KeyMemory<T, depth>;
  using Keys = typename Memory::Keys;
  using Rows = typename Memory::Rows;
  using Square = typename Memory::Square;
  using State = typename decltype(Memory::ring)::State;
  static constexpr int kGroups = Memory::kGroups;
  static constexpr int kSums = 1, kSquare = 2;  // named barriers: one, and one for each group

  __device__ KeyTile(Memory& memory, const Backward<T>& x, const KeyWork& work)
      : memory_(memory),
        x_(x),
        work_(work),
        whole_(x.dims.has_whole_queries()),
        one_part_(x.dims.parts == 1),
        shift_(x.dims.packed > 1 ? __ffs(x.dims.group) - 1 : 4),
        tiles_(((work.count * x.dims.parts << shift_) + kRows - 1) / kRows) {}

  /// All threads: sets the barriers, copies keys, and reads the list.
  __device__ void start(const Lists& lists, const Segment& segment) {
    const auto thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
      Barrier& there = memory_.keys_there;
      memory_.ring.init(128, 32);
      there.init(1);
      hopper::fence_barrier_init();
      there.arrive_and_expect_tx(2 * Keys::kBytes);
      hopper::copy_rows(memory_.k, 0, x_.k, work_.first, work_.key_head, work_.b, there);
      hopper::copy_rows(memory_.v, 0, x_.v, work_.first, work_.key_head, work_.b, there);
    }
    // Units of the key head, as the index numbers them.
    const Dims& dims = x_.dims;
    const int units = dims.units_of_key_head(), per_list = dims.index_heads / lists.heads;
    const int block = work_.first / dims.block, parts = key_parts(dims);
    for (int i = thread; i < work_.count; i += Memory::kThreads) {
      const int64_t row = lists.rows[work_.from + i];
      const int head = static_cast<int>(row / dims.rows % dims.index_heads);
      int entry = 0;
      while (dims.index[row * dims.entries + entry] != block) ++entry;
      const auto share =
          (((row - segment.first) * work_.calls + work_.call) * dims.entries + entry) * parts +
          work_.part;
      memory_.listed[i] = {work_.key_head * units + head % per_list,
                           static_cast<int>(row % dims.rows), static_cast<int>(share)};
    }
    __syncthreads();
  }

  __device__ void produce() {
    for (int tile = warp() - Memory::kConsumers; tile < tiles_; tile += Memory::kProducers) {
      const State state = turn_of(tile);
      RowStats stats[2];
      KeyRange range[2];
      int share[2];
      const int past = work_.first + kKeys;
      bool hides = work_.past < past;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int2 part = part_of(tile, lane() + 32 * half), at = place(part);
        const bool inside = at.x >= 0;
        stats[half] =
            inside ? x_.stats[x_.dims.row_of(work_.b, at.y) + at.x] : RowStats{kInfinity, 0};
        range[half] = inside ? x_.dims.range(work_.b, at.y, at.x) : KeyRange{0, 0};
        share[half] = inside ? memory_.listed[part.x].share * x_.dims.group + part.y : -1;
        hides |= inside && (range[half].first > work_.first || range[half].past < past);
      }
      const int stage = state.stage();
      memory_.ring.acquire(state);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        memory_.stats[stage][lane() + 32 * half] = stats[half];
        memory_.range[stage][lane() + 32 * half] = range[half];
        memory_.share[stage][lane() + 32 * half] = share[half];
      }
      const bool partial = __any_sync(~0u, hides);
      if (lane() == 0) memory_.partial[stage] = partial;
      auto& tiles = memory_.stage[stage];
      if (!whole_) {
        copy(tiles.q, x_.q, tile);
        copy(tiles.g, x_.g, tile);
        mma::wait_for_copies();
        hopper::fence_proxy_async();
      }
      // All lanes arrive, here and in `consume`: compute-sanitizer does not see that __syncwarp
      // orders the accesses of other lanes.
      const bool chosen = hopper::elect_one();
      memory_.ring.full[stage].arrive(!whole_ || !chosen);
      if (!chosen || !whole_) continue;
      Barrier& full = memory_.ring.commit(state);
      for (int piece = 0; piece < kRows / 16; ++piece) {
        const int2 at = place(part_of(tile, 16 * piece));  // query -1 is outside of the tensor
        hopper::copy_rows<16>(tiles.q, piece, x_.q_heads, at.x, at.y, work_.b, full);
        hopper::copy_rows<16>(tiles.g, piece, x_.g_heads, at.x, at.y, work_.b, full);
      }
    }
  }

  __device__ void consume(float* sums, T* shares) {
    const int group = warp() / 4;
    float dk[depth / 2] = {}, dv[depth / 2] = {};
    const auto scale = static_cast<float>(x_.dims.scale);
    const float c = scale * kLog2E;
    const hopper::Operand keys(memory_.k), values(memory_.v), squares(memory_.ds[group][0]);
    memory_.keys_there.wait(0);
    int turn = 0;  // of two squares
    for (int tile = group; tile < tiles_; tile += kGroups, turn ^= 1) {
      const State state = turn_of(tile);
      const int stage = state.stage();
      memory_.ring.wait(state);
      const hopper::Operand q(memory_.stage[stage].q), g(memory_.stage[stage].g);
      const bool partial = memory_.partial[stage] != 0;
      const RowStats* const stats = memory_.stats[stage];
      float p[kRows / 2], ds[kRows / 2];
      hopper::warpgroup_arrive();
      hopper::multiply_rows<Keys, Rows>(p, keys, q);
      hopper::warpgroup_commit();
      hopper::multiply_rows<Keys, Rows>(ds, values, g);
      hopper::warpgroup_commit();
      hopper::warpgroup_wait<1>();
      hopper::fence_operand(p);
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float lse = stats[fragments::column_of(j, e)].lse;
          p[4 * j + e] = fragments::exp2_approx(fmaf(p[4 * j + e], c, -lse));
        }
      }
      hopper::warpgroup_wait<0>();
      hopper::fence_operand(ds);
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float dot = stats[fragments::column_of(j, e)].dot;
          ds[4 * j + e] = p[4 * j + e] * (ds[4 * j + e] - dot);
        }
      }
      uint32_t weights[kRows / 4], gradients[kRows / 4];
      hopper::pack<T>(weights, p);
      hopper::pack<T>(gradients, ds);
      if (partial) hide(weights, gradients, memory_.range[stage]);
      store_square(memory_.ds[group][turn], gradients);
      hopper::fence_proxy_async();
      hopper::barrier_sync(kSquare + group, 128);
      hopper::fence_operand(dv);
      hopper::fence_operand(dk);
      hopper::warpgroup_arrive();
      hopper::multiply_add<Rows>(dv, weights, g);
      hopper::multiply_add<Rows>(dk, gradients, q);
      hopper::warpgroup_commit();
#pragma unroll
      for (int slab = 0; slab < Keys::kSlabs; ++slab) {
        float dq[32];
        hopper::warpgroup_arrive();
        hopper::multiply_add<Square, Square, false>(dq, squares.ahead(turn, Square::kBytes),
                                                    keys + slab * Keys::kSlabBytes);
        hopper::warpgroup_commit();
        hopper::warpgroup_wait<0>();
        hopper::fence_operand(dq);
        write_shares(shares + 64 * slab, memory_.share[stage], dq, scale);
      }
      hopper::fence_operand(dv);
      hopper::fence_operand(dk);
      memory_.ring.empty[stage].arrive();
    }
    write_sums(sums, dk, dv);
  }

 private:
  static __device__ State turn_of(int tile) {
    return {tile % Memory::kStages, static_cast<uint32_t>(tile / Memory::kStages % 2)};
  }

  /// Consumers: adds the sums of groups, in their order, and writes them.
  __device__ void write_sums(float* sums, const float (&dk)[depth / 2],
                             const float (&dv)[depth / 2]) {
    const int group = warp() / 4;
    const auto wait = [] { hopper::barrier_sync(kSums, 32 * Memory::kConsumers); };
    for (int turn = kGroups - 1; turn >= group; --turn) wait();
    const int at = (warp() % 4 * 16 + lane() / 4) * depth + fragments::column_of(0, 0);
    float* const sum = &memory_.sums[0][0][0] + at;
    float* const out = sums + work_.sums * (2 * kKeys * depth) + at;
#pragma unroll
    for (int j = 0; j < depth / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
#pragma unroll
        for (int of = 0; of < 2; ++of) {
          const int place = (of * kKeys + 4 * e) * depth + 8 * j;
          const float* const own = (of == 0 ? dk : dv) + 4 * j + e;
          float2 total{own[0], own[1]};
          const auto add = [&](const float* x) {
            total = {total.x + x[place], total.y + x[place + 1]};
          };
          if (group < kGroups - 1) add(sum);
          if (group == 0 && work_.continues) add(out);
          *reinterpret_cast<float2*>((group > 0 ? sum : out) + place) = total;
        }
      }
    }
    for (int turn = group; turn > 0; --turn) wait();
  }

  /// Of row i of a tile: which element of the list, and which row of its group.
  __device__ int2 part_of(int tile, int i) const {
    const int row = kRows * tile + i;
    if (one_part_) return {row >> shift_, i & ((1 << shift_) - 1)};
    return {row / 16 / x_.dims.parts, row / 16 % x_.dims.parts * 16 + i % 16};
  }
  /// Query and head of such a row; query -1 if there is none.
  __device__ int2 place(int2 part) const {
    if (part.x >= work_.count) return {-1, 0};
    const Listed& of = memory_.listed[part.x];
    if (whole_) return {of.row, of.unit * x_.dims.heads_per + part.y};
    return x_.dims.place(of.unit, of.row, part.y);
  }

  /// A producer warp: copies the rows of a tile.
  __device__ void copy(Rows& tile, const sash::cuda::Rows<const T>& from, int number) const {
    constexpr int chunks = depth / 8;
    for (int i = lane(); i < kRows * chunks; i += 32) {
      const int2 at = place(part_of(number, i / chunks));
      const T* const row = from.data + work_.b * from.batch + at.y * from.head + at.x * from.row;
      mma::copy_async(chunk_address(tile, i / chunks, i % chunks),
                      at.x >= 0 ? row + i % chunks * 8 : from.data, at.x >= 0);
    }
  }

  /// Sets packed P and dS to 0 where ranges or the end of the block hide keys.
  __device__ void hide(uint32_t (&weights)[kRows / 4], uint32_t (&gradients)[kRows / 4],
                       const KeyRange (&ranges)[kRows]) const {
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      const int key = work_.first + warp() % 4 * 16 + lane() / 4 + i % 2 * 8;
      const auto sees = [&](int e) {
        const KeyRange range = ranges[fragments::column_of(i / 2, e)];
        return range.first <= key && key < min(range.past, work_.past);
      };
      const uint32_t seen = (sees(0) ? 0xFFFFu : 0) | (sees(1) ? 0xFFFF0000u : 0);
      weights[i] &= seen;
      gradients[i] &= seen;
    }
  }

  /// Stores packed accumulators [keys][rows] to a tile [rows][keys].
  static __device__ void store_square(const Square& square, const uint32_t (&words)[kRows / 4]) {
    const int matrix = lane() / 8, row = matrix / 2 * 8 + lane() % 8;
    const uint32_t to = chunk_address(square, row, warp() % 4 * 2 + matrix % 2);
#pragma unroll
    for (int j = 0; j < kRows / 16; ++j) {
      hopper::store_matrices<true>(to + static_cast<uint32_t>(j * 16 * Square::kRowBytes),
                                   words[4 * j], words[4 * j + 1], words[4 * j + 2],
                                   words[4 * j + 3]);
    }
  }

  /// Writes scale dq, the shares of a tile, in the order of accumulators: 4 j + t is the number of
  /// the 8 elements that lane t of a row has of columns [32 j, 32 j + 32).
  __device__ void write_shares(T* shares, const int (&numbers)[kRows], const float (&dq)[32],
                               float scale) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int number = numbers[warp() % 4 * 16 + lane() / 4 + 8 * half];
      if (number < 0) continue;
      auto* const to = reinterpret_cast<uint4*>(shares) + number * int64_t{depth / 8};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const auto word = [&](int i) {
          const float* const pair = dq + 4 * (4 * j + i) + 2 * half;
          return mma::Operand<T>::pack(scale * pair[0], scale * pair[1]);
        };
        __stcs(to + 4 * j + lane() % 4, make_uint4(word(0), word(1), word(2), word(3)));
      }
    }
  }

  Memory& memory_;
  const Backward<T>& x_;
  const KeyWork& work_;
  const bool whole_, one_part_;
  const int shift_;  ///< rows of q in a group, if packed
  const int tiles_;
};

template <class T, int depth>
__global__ void __launch_bounds__(KeyMemory<T, depth>::kThreads, 1)
    gradients_kernel(const __grid_constant__ Backward<T> x, const __grid_constant__ Lists lists,
                     const __grid_constant__ Segment segment, float* sums, T* shares) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char shared[];
  using Memory = KeyMemory<T, depth>;
  const KeyWork work(x.dims, lists, segment, static_cast<int>(blockIdx.x));
  if (work.count == 0) return;
  KeyTile<T, depth> tile(*reinterpret_cast<Memory*>(shared), x, work);
  tile.start(lists, segment);
  if (warp() >= Memory::kConsumers) {
    hopper::warpgroup_reg_dealloc<depth == 64 ? 32 : 24>();
    if (warp() < Memory::kConsumers + Memory::kProducers) tile.produce();
  } else {
    hopper::warpgroup_reg_alloc<depth == 64 ? 160 : 240>();
    tile.consume(sums, shares);
  }
#endif
}

}  // namespace

template <class T>
void backward_gradients(const KernelContext& context, const Backward<T>& call) {
  const Dims& dims = call.dims;
  const ListMemory memory(context, dims);
  const Lists& lists = memory.lists();
  const int64_t parts = key_parts(dims);
  const int heads = dims.key_heads / lists.heads;
  const int calls = dims.batches / dims.index_batches * heads;
  // A segment is some heads of the index, or a part of them if the shares of a head do not fit.
  const int64_t entries = int64_t{calls} * dims.entries * parts * dims.group, rows = dims.rows;
  const int64_t all_rows = int64_t{dims.index_batches} * dims.index_heads * rows;
  const int64_t row_bytes = 2 * entries * dims.depth;
  const int64_t usual_rows = std::max<int64_t>(1, kUsualBytes / (rows * row_bytes)) * rows;
  const int64_t most_rows = std::max<int64_t>(1, kMostBytes / row_bytes);
  const int64_t step = std::min({all_rows, usual_rows, most_rows});
  const int64_t rows_of_lists = dims.index_heads / lists.heads * rows;
  const int64_t most_chunks = dims.blocks + rows_of_lists * dims.entries / kChunk;
  const auto run = [&]<int depth>() {
    using Memory = KeyMemory<T, depth>;
    const Workspace sums(context, lists.most_chunks * calls * parts * 2 * kKeys * depth *
                                      static_cast<int64_t>(sizeof(float)));
    const Workspace shares(context, step * entries * depth * static_cast<int64_t>(sizeof(T)));
    for (int64_t first = 0; first < all_rows; first += step) {
      const int64_t past = std::min(first + step, all_rows);
      const int64_t from = first / rows_of_lists, to = (past - 1) / rows_of_lists + 1;
      const Segment segment{first, past, static_cast<int>(from * dims.blocks),
                            static_cast<int>(to * dims.blocks)};
      launch<gradients_kernel<T, depth>>(context, (to - from) * most_chunks * calls * parts,
                                         Memory::kThreads, static_cast<int>(sizeof(Memory)), call,
                                         lists, segment, sums.ptr<float>(), shares.ptr<T>());
      add_shares(context, call, lists, segment, shares.ptr<const uint4>());
    }
    add_chunks(context, call, lists, sums.ptr<const float>());
  };
  dims.depth == 64 ? run.template operator()<64>() : run.template operator()<128>();
}

template void backward_gradients(const KernelContext&, const Backward<__nv_bfloat16>&);
template void backward_gradients(const KernelContext&, const Backward<__half>&);

}  // namespace sash::cuda::selected
