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

constexpr int kKeys = 64;  // of a block of threads
constexpr int kRows = 64;  // of a tile

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

  Keys k, v;
  union {
    struct {
      Rows q, g;
    } stage[kStages];
    float sums[2][kKeys][depth];
  };
  Square<T> ds[kGroups][2];
  RowStats stats[kStages][kRows];
  KeyRange range[kStages][kRows];
  int share[kStages][kRows];  ///< the number of the row's share, -1 if there is none
  Listed listed[kChunk];
  int partial[kStages];  ///< whether a row does not see all keys of the block of threads
  hopper::Ring<Rows, kStages, 2> ring;
  Barrier keys_there;
};

template <class T, int depth>
class KeyTile {
 public:
  using Memory = KeyMemory<T, depth>;
  using Keys = typename Memory::Keys;
  using Rows = typename Memory::Rows;
  using State = typename decltype(Memory::ring)::State;
  static constexpr int kGroups = Memory::kGroups;
  static constexpr int kSums = 1, kSquare = 2;  // named barriers: one, and one for each group

  __device__ KeyTile(Memory& memory, const Backward<T>& x, const KeyWork& work)
      : memory_(memory),
        x_(x),
        work_(work),
        tiles_((work.count * x.dims.group + kRows - 1) / kRows) {}

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
    for (int i = thread; i < work_.count; i += Memory::kThreads) {
      const Selector of = lists.selectors[work_.from + i];
      memory_.listed[i] = {work_.key_head * units + of.row / dims.rows % per_list,
                           of.row % dims.rows, work_.result(dims, segment, of)};
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
      // All lanes arrive, here and in `consume`: compute-sanitizer does not see that __syncwarp
      // orders the accesses of other lanes.
      const bool chosen = hopper::elect_one();
      memory_.ring.full[stage].arrive(!chosen);
      if (!chosen) continue;
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
      if (partial) {
        hide(weights, memory_.range[stage], work_.first, work_.past);
        hide(gradients, memory_.range[stage], work_.first, work_.past);
      }
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
        hopper::multiply_add<Square<T>, Square<T>, false>(
            dq, squares.ahead(turn, Square<T>::kBytes), keys + slab * Keys::kSlabBytes);
        hopper::warpgroup_commit();
        hopper::warpgroup_wait<0>();
        hopper::fence_operand(dq);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int share = memory_.share[stage][hopper::row_of(half)];
          if (share >= 0) write_part(shares + share * int64_t{depth} + 64 * slab, dq, half, scale);
        }
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
#pragma unroll 1
    for (int turn = kGroups - 1; turn >= 0; --turn) {
      hopper::barrier_sync(kSums, 32 * Memory::kConsumers);
      if (group == turn) add_sums(group, sums, dk, dv);
    }
  }

  /// Adds the sums of this group to those of the groups before it.
  __device__ void add_sums(int group, float* sums, const float (&dk)[depth / 2],
                           const float (&dv)[depth / 2]) {
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
  }

  /// Of row i of a tile: which element of the list, and which row of its group.
  __device__ int2 part_of(int tile, int i) const {
    const int piece = (kRows * tile + i) / 16, parts = x_.dims.parts;
    return parts == 1 ? int2{piece, i % 16} : int2{piece / parts, piece % parts * 16 + i % 16};
  }
  /// Query and head of such a row; query -1 if there is none.
  __device__ int2 place(int2 part) const {
    if (part.x >= work_.count) return {-1, 0};
    const Listed& of = memory_.listed[part.x];
    return {of.row, of.unit * x_.dims.heads_per + part.y};
  }

  Memory& memory_;
  const Backward<T>& x_;
  const KeyWork& work_;
  const int tiles_;
};

template <class T, int depth>
__global__ void __launch_bounds__(KeyMemory<T, depth>::kThreads, 1)
    gradients_kernel(const __grid_constant__ Backward<T> x, const __grid_constant__ Lists lists,
                     const __grid_constant__ Segment segment, float* sums, T* shares) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char shared[];
  using Memory = KeyMemory<T, depth>;
  const KeyWork work(x.dims, lists, segment, kKeys, static_cast<int>(blockIdx.x));
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
  const int64_t parts = key_parts(dims), calls = dims.calls();
  const int64_t elements =
      int64_t{dims.index_batches} * dims.index_heads * dims.rows * dims.entries;
  const bool whole = dims.has_whole_queries();
  // Blocks of threads that gather have long chunks, because they write the sums of more keys. In
  // the longest ones, the last blocks of threads of a segment would run alone for too long.
  const int64_t chunk = whole ? kChunk : std::clamp<int64_t>(elements * calls / 512, kChunk, 8192);
  const ListMemory memory(context, dims, chunk);
  const Lists& lists = memory.lists();
  const int64_t row_bytes = calls * dims.entries * parts * dims.group * dims.depth * 2;
  const std::vector<Segment> all = segments(dims, row_bytes);
  const Workspace sums(context, lists.most_chunks * calls * parts * 2 * part_keys(dims) *
                                    dims.depth * int64_t{sizeof(float)});
  const Workspace shares(context, (all[0].past - all[0].first) * row_bytes);
  for (const Segment& segment : all) {
    const auto run = [&]<int depth>() {
      using Memory = KeyMemory<T, depth>;
      launch<gradients_kernel<T, depth>>(context, segment.most_chunks(lists) * calls * parts,
                                         Memory::kThreads, static_cast<int>(sizeof(Memory)), call,
                                         lists, segment, sums.ptr<float>(), shares.ptr<T>());
    };
    if (!whole) {
      gather_gradients(context, call, lists, segment, sums.ptr<float>(), shares.ptr<T>());
    } else {
      dims.depth == 64 ? run.template operator()<64>() : run.template operator()<128>();
    }
    add_shares(context, call, lists, segment, shares.ptr<const T>());
  }
  add_chunks(context, call, lists, sums.ptr<const float>());
}

template void backward_gradients(const KernelContext&, const Backward<__nv_bfloat16>&);
template void backward_gradients(const KernelContext&, const Backward<__half>&);

}  // namespace sash::cuda::selected
