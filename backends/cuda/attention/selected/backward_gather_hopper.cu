#include "../../hopper/pipeline.cuh"
#include "../hopper/launch.cuh"
#include "backward.cuh"

/// The gradients by key where rows of q are gathered one by one.
///
/// A block of threads has a part of a block of keys and a chunk of its list. A ring of warps
/// gathers tiles of 64 rows of q and g. Each of two groups of warps has half of the keys, and forms
/// P and dS of all tiles. The groups exchange dS through shared memory, and take the products dS K,
/// which are shares of dq, in turn: while one group waits for it, the other goes on.
namespace sash::cuda::selected {

/// A group of warps has `parts` times 64 keys.
template <class T, int depth, int parts>
struct GatherShape : hopper::Groups<2> {
  using Rows = Tile<T, depth, 64>;
  static constexpr int kDepth = depth, kParts = parts, kSquares = 2 * parts;
  static constexpr int kStages = depth == 64 ? 4 : 3;  // and warps that gather
  /// Tiles whose numbers of shares are kept.
  static constexpr int kShares = 8;
  static_assert(kShares >= kStages + 2, "a group writes its shares two tiles later");
};

namespace {

using hopper::Operand;
using hopper::PipelineState;

template <class S, class T>
struct Shared {
  typename S::Rows k[S::kSquares], v[S::kSquares];
  struct {
    typename S::Rows q, g;
  } stage[S::kStages];
  Square<T> ds[2][S::kSquares];
  float lse[S::kStages][64], dot[S::kStages][64];
  KeyRange range[S::kStages][64];
  int share[S::kShares][64];  ///< the number of the row's share, -1 if there is none
  int partial[S::kStages];    ///< whether a row does not see all keys of the block of threads
  hopper::Barrier keys;
  hopper::Ring<typename S::Rows, S::kStages> ring;
  hopper::Ring<Square<T>, 2> squares;  ///< of dS
};

/// What a lane knows of two rows of a tile before it copies them.
template <class S, class T>
struct Gathered {
  uint32_t in_q[2], in_g[2];
  RowStats stats[2];
  KeyRange range[2];
  int share[2];
  bool partial;  ///< whether a row does not see all keys

  __device__ Gathered(const Backward<T>& x, const Segment& segment, const KeyWork& work,
                      const ListRows& rows, int first) {
    const Dims& dims = x.dims;
    const int i = first + lane();
    const Selector selectors[2] = {rows.selector(dims, i), rows.selector(dims, i + 32)};
    const RowAt row[2] = {rows.row(dims, selectors[0], i), rows.row(dims, selectors[1], i + 32)};
    // A row that does not exist loads the statistics of another: so no load waits for a branch.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool inside = row[half].query >= 0;
      stats[half] = x.stats[inside ? dims.row_of(work.b, row[half].head) + row[half].query : 0];
    }
    partial = work.past < work.first + 64 * S::kSquares;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool inside = row[half].query >= 0;
      in_q[half] = row[half].in(x.q);
      in_g[half] = row[half].in(x.g);
      if (!inside) stats[half] = {fragments::kInfinity, 0};
      range[half] = inside ? dims.range(work.b, row[half].head, row[half].query) : KeyRange{0, 0};
      share[half] =
          inside ? work.result(dims, segment, selectors[half]) * dims.group + row[half].in_group
                 : -1;
      partial |= inside && (range[half].first > work.first ||
                            range[half].past < work.first + 64 * S::kSquares);
    }
  }
};

/// The loop of a warp that gathers: of every `kStages`th tile.
template <class S, class T>
__device__ void gather(const Backward<T>& x, const Segment& segment, const KeyWork& work,
                       const ListRows& rows, Shared<S, T>& shared, int tile) {
  const Rows<const T> q = x.q.at(work.b, 0), g = x.g.at(work.b, 0);
  const int tiles = (rows.count + 63) / 64;
  if (tile >= tiles) return;
  Gathered<S, T> own(x, segment, work, rows, 64 * tile);
  for (; tile < tiles; tile += S::kStages) {
    const int stage = tile % S::kStages;
    shared.ring.acquire({stage, static_cast<uint32_t>(tile / S::kStages % 2)});
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      copy_gathered(shared.stage[stage].q, 32 * half, q, own.in_q[half]);
      copy_gathered(shared.stage[stage].g, 32 * half, g, own.in_g[half]);
      const int i = 32 * half + lane();
      shared.lse[stage][i] = own.stats[half].lse;
      shared.dot[stage][i] = own.stats[half].dot;
      shared.range[stage][i] = own.range[half];
      shared.share[tile % S::kShares][i] = own.share[half];
    }
    const bool partial = __any_sync(~0u, own.partial);
    if (lane() == 0) shared.partial[stage] = partial;
    mma::wait_for_copies();
    hopper::fence_proxy_async();
    // All lanes arrive, here and in `Group`: compute-sanitizer does not see that __syncwarp orders
    // the accesses of other lanes.
    shared.ring.full[stage].arrive();
    // At the start of the loop, ptxas would spill more.
    own = Gathered<S, T>(x, segment, work, rows, 64 * (tile + S::kStages));
  }
}

/// Ends the use of accumulators before a product that overwrites them. Otherwise ptxas keeps their
/// values.
template <int n>
__device__ void forget(float (&sum)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "=f"(sum[i]));
}

/// Sums and scores fill the registers. ptxas spills what it keeps beside them, and spilled values
/// take hundreds of cycles to load, behind the other accesses of shared memory. So the number of a
/// stage comes from a loop that ptxas knows to be uniform, and operands are formed where they are
/// used.
template <class S, class T>
class Group {
 public:
  using Rows = typename S::Rows;

  __device__ Group(const Backward<T>& x, const KeyWork& work, Shared<S, T>& shared, T* shares)
      : scale_(static_cast<float>(x.dims.scale)),
        work_(work),
        shared_(shared),
        shares_(shares),
        group_(hopper::group()) {}

  /// `tiles` is the same for all lanes.
  __device__ void run(int tiles) {
    shared_.keys.wait(0);
    int stage = 0, round = 0;
    for (int tile = 0;; ++tile) {
      shared_.ring.wait(PipelineState<S::kStages>(stage, round % 2));
      // The group's own shares come late, when the other group has stored its dS.
      if (tile > 1 && tile % 2 == group_) write_shares(tile - 2);
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) take(tile, stage, part);
      // After a vote, ptxas knows that the branch is uniform.
      if (__any_sync(~0u, tile + 1 == tiles)) break;
      shared_.ring.empty[stage].arrive();
      if (++stage == S::kStages) {
        stage = 0;
        ++round;
      }
    }
    const int last = tiles - 1 - (tiles - 1 + group_) % 2;
    if (last >= 0) write_shares(last);
  }

  /// Writes dk and dv.
  __device__ void write_sums(float* sums) const {
    constexpr int size = 64 * S::kSquares * S::kDepth;  // of dk
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = 64 * (S::kParts * group_ + part) + hopper::row_of(half);
        float* const row = sums + work_.sums * (2 * size) + key * S::kDepth;
#pragma unroll
        for (int j = 0; j < S::kDepth / 8; ++j) {
#pragma unroll
          for (int of = 0; of < 2; ++of) {
            const float* const own = (of == 0 ? dk_ : dv_)[part] + 4 * j + 2 * half;
            auto& to = *reinterpret_cast<float2*>(row + of * size + fragments::column_of(j, 0));
            const float2 before = work_.continues ? to : float2{};
            to = {before.x + own[0], before.y + own[1]};
          }
        }
      }
    }
  }

 private:
  static constexpr uint32_t kPartBytes = sizeof(Rows);

  /// Adds the products of a tile to the sums of a part.
  __device__ void take(int tile, int stage, int part) {
    const PipelineState<2> square = square_of(tile);
    const Operand q = Operand::fresh(shared_.stage[stage].q);
    const int place = S::kParts * group_ + part, first = work_.first + 64 * place;
    float score[32], dscore[32];
    // S' = K Q', dP' = V g'
    forget(score);
    hopper::warpgroup_arrive();
    hopper::multiply_rows<Rows, Rows>(score, Operand::fresh(shared_.k[place]), q);
    hopper::warpgroup_commit();
    forget(dscore);
    hopper::warpgroup_arrive();
    hopper::multiply_rows<Rows, Rows>(dscore, Operand::fresh(shared_.v[place]), q + kPartBytes);
    hopper::warpgroup_commit();
    const bool partial = __any_sync(~0u, shared_.partial[stage]);
    const float exponent = scale_ * kLog2E;
    uint32_t words[16], gradients[16];
    hopper::warpgroup_wait<1>();
    hopper::fence_operand(score);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float lse = shared_.lse[stage][fragments::column_of(i / 4, i % 4)];
      score[i] = fragments::exp2_approx(fmaf(score[i], exponent, -lse));
    }
    hopper::fence_operand(score);
    hopper::pack<T>(words, score);
    if (partial) hide(words, shared_.range[stage], first, work_.past);
    // dV += P' g
    hopper::fence_operand(dv_[part]);
    hopper::warpgroup_arrive();
    hopper::multiply_add<Rows>(dv_[part], words, q + kPartBytes);
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<1>();
    hopper::fence_operand(dscore);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float dot = shared_.dot[stage][fragments::column_of(i / 4, i % 4)];
      dscore[i] = score[i] * (dscore[i] - dot);
    }
    hopper::pack<T>(gradients, dscore);
    if (partial) hide(gradients, shared_.range[stage], first, work_.past);
    // dK += dS' Q
    hopper::fence_operand(dk_[part]);
    hopper::warpgroup_arrive();
    hopper::multiply_add<Rows>(dk_[part], gradients, q);
    hopper::warpgroup_commit();
    if (part == 0) shared_.squares.acquire(square);
    store_square(shared_.ds[square.stage()][place], gradients);
    if (part + 1 == S::kParts) {
      hopper::fence_proxy_async();
      shared_.squares.full[square.stage()].arrive_as_one();
    }
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(dv_[part]);
    hopper::fence_operand(dk_[part]);
  }

  /// Where the dS of a tile is.
  static __device__ PipelineState<2> square_of(int tile) {
    return {tile % 2, static_cast<uint32_t>(tile / 2 % 2)};
  }

  /// Writes the shares of a tile: scale dS K.
  __device__ void write_shares(int tile) {
    const PipelineState<2> square = square_of(tile);
    int share[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      share[half] = shared_.share[tile % S::kShares][hopper::row_of(half)];
    }
    float dq[S::kDepth / 2];
    shared_.squares.wait(square);
    const Operand ds = Operand::fresh(shared_.ds[square.stage()][0]);
    const Operand k = Operand::fresh(shared_.k[0]);
    forget(dq);
    hopper::warpgroup_arrive();
    hopper::multiply_add<Square<T>, Rows, false>(dq, ds, k);
#pragma unroll
    for (int i = 1; i < S::kSquares; ++i) {
      hopper::multiply_add<Square<T>, Rows>(dq, ds + static_cast<uint32_t>(i * sizeof(Square<T>)),
                                            k + i * kPartBytes);
    }
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(dq);
    shared_.squares.release(square);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (share[half] < 0) continue;
      write_part(shares_ + share[half] * int64_t{S::kDepth}, dq, half, scale_);
    }
  }

  const float scale_;
  const KeyWork& work_;
  Shared<S, T>& shared_;
  T* const shares_;
  const int group_;
  float dk_[S::kParts][S::kDepth / 2] = {}, dv_[S::kParts][S::kDepth / 2] = {};
};

template <class S, class T>
__global__ void __launch_bounds__(S::kThreads, 1)
    gradients_kernel(const __grid_constant__ Backward<T> x, const __grid_constant__ Lists lists,
                     const __grid_constant__ Segment segment, float* sums, T* shares) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<Shared<S, T>*>(raw);
  const KeyWork work(x.dims, lists, segment, 64 * S::kSquares, static_cast<int>(blockIdx.x));
  if (work.count == 0) return;
  const ListRows rows(x.dims, lists, work);
  if (threadIdx.x == 0) {
    shared.keys.init(1);
    shared.ring.init(128 * S::kGroups, 32);
    shared.squares.init(4, 4 * S::kGroups);
    hopper::fence_barrier_init();
  }
  __syncthreads();
  if (hopper::group() < S::kGroups) {
    hopper::warpgroup_reg_alloc<S::kConsumerRegisters>();
    Group<S, T> group(x, work, shared, shares);
    group.run(static_cast<int>(hopper::uniform((rows.count + 63) / 64)));
    group.write_sums(sums);
    return;
  }
  hopper::warpgroup_reg_dealloc<S::kProducerRegisters>();
  const int number = warp() - 4 * S::kGroups;
  if (number == 0 && hopper::elect_one()) {
    shared.keys.arrive_and_expect_tx(sizeof(shared.k) + sizeof(shared.v));
    for (int part = 0; part < S::kSquares; ++part) {
      const int key = work.first + 64 * part;
      hopper::copy_rows(shared.k[part], 0, x.k, key, work.key_head, work.b, shared.keys);
      hopper::copy_rows(shared.v[part], 0, x.v, key, work.key_head, work.b, shared.keys);
    }
  }
  __syncwarp();
  if (number < S::kStages) gather(x, segment, work, rows, shared, number);
#endif
}

}  // namespace

template <class T>
void gather_gradients(const KernelContext& context, const Backward<T>& call, const Lists& lists,
                      const Segment& segment, float* sums, T* shares) {
  const auto run = [&]<int depth, int parts>() {
    using S = GatherShape<T, depth, parts>;
    static_assert(sizeof(Shared<S, T>) <= hopper::kSharedBytes);
    const Dims& dims = call.dims;
    launch<gradients_kernel<S, T>>(
        context, segment.most_chunks(lists) * dims.calls() * key_parts(dims), S::kThreads,
        static_cast<int>(sizeof(Shared<S, T>)), call, lists, segment, sums, shares);
  };
  if (call.dims.depth == 128) return run.template operator()<128, 1>();
  part_keys(call.dims) == 256 ? run.template operator()<64, 2>() : run.template operator()<64, 1>();
}

template void gather_gradients(const KernelContext&, const Backward<__nv_bfloat16>&, const Lists&,
                               const Segment&, float*, __nv_bfloat16*);
template void gather_gradients(const KernelContext&, const Backward<__half>&, const Lists&,
                               const Segment&, float*, __half*);

}  // namespace sash::cuda::selected
