#pragma once

#include "../../runtime/dependent_launch.cuh"
#include "adder.cuh"

/// All gradients in one pass, for long rows. It differs from `fused_kernel` in this: each group
/// passes its part [64][64] of dQ to a warp that adds the part, so that the group does not wait for
/// its turn. `write_queries` writes dq afterwards. In a step, a group spends more time on waiting
/// than on computing: a read of shared memory that is issued after products takes hundreds of
/// cycles. So groups wait at named barriers, read each list entry once, and start the scores of the
/// next step before they pass on their part.
///
/// Memory traffic: that of `fused_kernel`, and one write and one read of the sums.
namespace sash::cuda::hopper {

/// Two groups, each with 64 keys. A step has one or two blocks of queries.
template <class T, int width>
struct StagedShape : Groups<2> {
  using Element = T;
  static constexpr int kWidth = width, kBlockRows = 2, kBlocks = 128 / width;
  static constexpr int kResident = kBlocks, kOperands = 2;
  static constexpr int kStages = 2, kStagesOfB = 2;
  static constexpr int kListeners = kGroups;  ///< the adders of the groups
  /// Adders may lag kStages steps behind the listed steps, and each step may be a separate work
  /// tile.
  static constexpr int kWorkTiles = kStages + 1;
  static constexpr bool kTakesBounds = false, kBackwards = true;
  static constexpr int kListed = 1;
  static constexpr int kParts = width / 64;  ///< parts of dQ along its features
  static constexpr int kSquares =
      width == 64 ? 1 : 2;           ///< how many steps' dS' are in shared memory
  static constexpr int kStaged = 2;  ///< how many steps' parts of dQ are in shared memory
  static constexpr bool kWeightsInMemory =
      kSquares ==
      2;  ///< whether the product of dK reads dS' from shared memory; registers hold no copy then
  static_assert(kParts * kBlocks == kGroups, "a part of dQ for each group");
  using Rows = Tile<T, width, kBlock>;
  using Resident = Rows;
  using Streamed = Tile<T, width, kBlock * kBlocks>;
  using Square = Tile<T, kBlock, kBlock>;
};

template <class S>
struct StagedShared : SharedStorage<S> {
  BlockStats stats[S::kStages][S::kBlocks];                         ///< of the queries in ring `a`
  typename S::Square dscores[S::kSquares][S::kBlocks][S::kGroups];  ///< dS': [64 keys][64 queries]
  PartOfQueries staged[S::kStaged][S::kGroups];
};

/// A consumer group. It forms dk and dv of a block row, and a part of dq of each step.
template <class S, class T>
class StagedGroup : public Consumer<StagedGroup<S, T>, S, Fused<T>, StagedShared<S>, false> {
  using Base = Consumer<StagedGroup, S, Fused<T>, StagedShared<S>, false>;
  using Square = typename S::Square;
  static constexpr int kScores = 32 * S::kBlocks, kSums = S::kWidth / 2;

 public:
  __device__ StagedGroup(const Fused<T>& x, StagedShared<S>& shared)
      : Base(x, shared, group()),
        keys_(shared.resident[0][0][0]),
        q_(shared.a[0]),
        dscores_(shared.dscores[0][0][0]),
        square_of_(first_of_square(shared.dscores[0][0][row_])) {}

  __device__ void compute(const SharedWorkTile<S::kBlockRows>&) {
#pragma unroll
    for (float& x : dk_) set(x, 0);
#pragma unroll
    for (float& x : dv_) set(x, 0);
    shared_.resident_ring.wait(at_resident_);
    const Operand keys = keys_.ahead(at_resident_.stage(), sizeof(shared_.resident[0]));
    const Operand k = keys.ahead(row_, sizeof(typename S::Rows));
    const Operand v = k + sizeof(shared_.resident[0][0]);
    const Operand part_of_k = keys.ahead(part(), S::Rows::kSlabBytes);
    float score[kScores];
    start_scores(score, k);
    while (true) {
      const bool last = take_step(score, v, part_of_k);
      const auto before = at_;
      at_.advance();
      square_ = (square_ + 1) % S::kSquares;
      if (last) {
        hand_over();
        warpgroup_wait<0>();
        fence_operand(dk_);
        shared_.a_ring.release(before);
        break;
      }
      start_scores(score, k);
      hand_over();
      warpgroup_wait<1>();
      fence_operand(dk_);
      shared_.a_ring.release(before);
    }
  }

  /// Never called, because groups of this kernel share no block row.
  __device__ void reduce(float*) {}

  /// Rows [first, first + rows) of dk and dv of key head (b, h).
  __device__ void store(int b, int h, int first, int rows) {
    const float kept = S::kDropout ? x_.dims.kept : 1.f, scale = x_.dims.scale * kept;
    store_rows(x_.dk.at(b, h), first, rows, dk_, {scale, scale});
    store_rows(x_.dv.at(b, h), first, rows, dv_, {kept, kept});
  }

 private:
  /// Which part of dQ the group forms: the number of the step's block, and of the part of the
  /// features.
  __device__ int block_of_part() const { return S::kParts == 1 ? row_ : 0; }
  __device__ int part() const { return S::kParts == 1 ? 0 : row_; }

  /// Starts S' = K Q' of the current step, and reads the step's list entries.
  __device__ void start_scores(float (&score)[kScores], Operand k) {
    shared_.a_ring.wait(at_);
    fence_operand(score);
    warpgroup_arrive();
    multiply_rows<typename S::Rows, typename S::Streamed>(
        score, k, q_.ahead(this->stage_of(at_), sizeof(shared_.a[0])));
    warpgroup_commit();
    listed_ = this->read(at_);
#pragma unroll
    for (int row = 0; row < S::kGroups; ++row) {
      of_part_[row] = this->step().tile[row][block_of_part()];
    }
  }

  /// Forms P and dS from S', whose product is running, and starts the products of dV, dQ and dK.
  /// The product of dK is still running on return. Returns true for the last step of the work tile.
  __device__ bool take_step(float (&score)[kScores], Operand v, Operand part_of_k) {
    const int s = this->stage_of(at_);
    const Operand q = q_.ahead(s, sizeof(shared_.a[0])), g = q + sizeof(shared_.a);
    const auto& stats = shared_.stats[s];
    const auto& step = this->step();
    // By votes, so that the compiler knows that the values are uniform.
    const bool hides_first = __any_sync(~0u, of_part_[0] == kEmpty);
    const bool hides_second = __any_sync(~0u, of_part_[1] == kEmpty);
    const bool last = __any_sync(~0u, listed_.last);
    bool full = true;
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) full &= listed_.tile[block] == kFull;
    const bool masked = __any_sync(~0u, !full);
    if (masked) mask_.template load<false>(x_.dims, this->work(), step, row_);
    if constexpr (S::kDropout) load_kept(kept_, x_, this->work(), step, row_);
    // First dP' = V g', then dQ: they share an array, because there are not enough registers for
    // both.
    float other[kScores];
    auto& dq = reinterpret_cast<float(&)[32]>(other);
    ColumnValues values;
    values.load(stats[0].neg_lse);
    shared_.b_ring.wait(at_);
    fence_operand(other);
    warpgroup_arrive();
    multiply_rows<typename S::Rows, typename S::Streamed>(other, v, g);
    warpgroup_commit();
    warpgroup_wait<1>();
    // P = 2^(exponent S' - lse)
    fence_operand(score);
    if (masked) mask_.apply(score);
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      auto& part = reinterpret_cast<float(&)[32]>(score[32 * block]);
#pragma unroll
      for (int i = 0; i < 32; ++i) part[i] = fmaf(part[i], x_.dims.exponent, values.of(i));
      if (block + 1 < S::kBlocks) values.load(stats[block + 1].neg_lse);
#pragma unroll
      for (float& x : part) x = exp2_approx(x);
    }
    values.load(stats[0].neg_dot);
    warpgroup_wait<0>();
    // dS' = P (dP' - D)
    fence_operand(other);
    uint32_t dscore_words[kScores / 2], words[kScores / 2];
    // Hidden keys and values may be any numbers, also NaN.
    const auto hide = [&](int block) {
      if (step.tile[row_][block] != kEmpty) return;
#pragma unroll
      for (int i = 32 * block; i < 32 * (block + 1); ++i) other[i] = 0;
    };
    if constexpr (S::kDropout) {
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) {
        auto& weight = reinterpret_cast<float(&)[32]>(score[32 * block]);
        auto& part = reinterpret_cast<float(&)[32]>(other[32 * block]);
        fence_operand(weight);  // else products with D are formed before dP', and registers spill
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          apply_dropout(weight[i], part[i], values.of(i), keeps<false>(kept_[block], i));
        }
        if (block + 1 < S::kBlocks) values.load(stats[block + 1].neg_dot);
        if (masked) hide(block);
        pack<T>(reinterpret_cast<uint32_t(&)[16]>(dscore_words[16 * block]), part);
        pack<T>(reinterpret_cast<uint32_t(&)[16]>(words[16 * block]), weight);
      }
    } else {
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) {
        auto& part = reinterpret_cast<float(&)[32]>(other[32 * block]);
#pragma unroll
        for (int i = 0; i < 32; ++i) part[i] += values.of(i);
        if (block + 1 < S::kBlocks) values.load(stats[block + 1].neg_dot);
#pragma unroll
        for (int i = 0; i < 32; ++i) part[i] *= score[32 * block + i];
      }
      if (masked) {
#pragma unroll
        for (int block = 0; block < S::kBlocks; ++block) hide(block);
      }
      pack<T>(dscore_words, other);
      pack<T>(words, score);
    }
    if constexpr (S::kSquares == 1) meet();  // both have formed dQ of the step before
    const auto square = static_cast<uint32_t>(square_ * sizeof(shared_.dscores[0]));
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      store_square(
          square_of_ + square + static_cast<uint32_t>(block * sizeof(shared_.dscores[0][0])),
          dscore_words + 16 * block);
    }
    // dV += P' g
    fence_operand(dv_);
    warpgroup_arrive();
    multiply_add<typename S::Streamed>(dv_, words, g);
    warpgroup_commit();
    fence_proxy_async();
    meet();
    // dQ = dS K. If a block of keys is hidden, its dS is 0. The product then reads dS in place of
    // K, because K may be any numbers, also NaN.
    const Operand dscores = dscores_.ahead(square_, sizeof(shared_.dscores[0]));
    const Operand first = dscores.ahead(block_of_part(), sizeof(shared_.dscores[0][0]));
    const Operand second = first + sizeof(Square);
    const Operand first_k = hides_first ? first : part_of_k;
    const Operand second_k = hides_second ? second : part_of_k + sizeof(typename S::Rows);
    fence_operand(dq);
    warpgroup_arrive();
    multiply_transposed<Square, typename S::Rows, false>(dq, first, first_k);
    multiply_transposed<Square, typename S::Rows, true>(dq, second, second_k);
    warpgroup_commit();
    warpgroup_wait<1>();
    fence_operand(dv_);
    shared_.b_ring.release(at_);
    // dK += dS' Q
    fence_operand(dk_);
    warpgroup_arrive();
    if constexpr (S::kWeightsInMemory) {
      multiply_add<Square, typename S::Streamed>(dk_, dscores.ahead(row_, sizeof(Square)), q);
    } else {
      multiply_add<typename S::Streamed>(dk_, dscore_words, q);
    }
    warpgroup_commit();
    warpgroup_wait<1>();
    fence_operand(dq);
    stage(dq);
    return last;
  }

  /// Waits for both groups. Lower barrier names belong to groups, higher names to adders.
  static __device__ void meet() { barrier_sync(4, S::kGroups * kGroup); }

  /// Stores this group's part of dQ for the warp that adds it.
  __device__ void stage(const float (&dq)[32]) {
    barrier_sync(empty_barrier(staged_, row_), kHandover);
    float4* const to = shared_.staged[staged_][row_].chunk + threadIdx.x % kGroup;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      to[i * kGroup] = make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    }
  }
  __device__ void hand_over() {
    fence_proxy_async();
    barrier_arrive(full_barrier(staged_, row_), kHandover);
    staged_ = (staged_ + 1) % S::kStaged;
  }

  using Base::at_, Base::at_resident_, Base::row_, Base::shared_, Base::x_;

  const Operand keys_, q_, dscores_;
  const uint32_t square_of_;
  int square_ = 0, staged_ = 0;   ///< the buffers that the current step uses
  typename Base::Listed listed_;  ///< list entries of the step whose scores are being computed
  int of_part_[S::kGroups];       ///< the tiles of both rows for the block `block_of_part()`
  Mask<S::kBlocks, false> mask_;
  uint32_t kept_[S::kBlocks];  ///< with dropout
  float dk_[kSums], dv_[kSums];
};

template <class S, class T = typename S::Element>
__global__ void __launch_bounds__(S::kThreads, 1)
    staged_kernel(const __grid_constant__ Fused<T> x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<StagedShared<S>*>(raw);
  start_next_kernel();
  const auto add_parts = [&](int group) {
    Adder<S, Fused<T>, StagedShared<S>>(x, shared, group).run();
  };
  specialize_warps<S>(
      shared, [&] { StagedGroup<S, T>(x, shared).run(); },
      [&] { list_steps<S, false>(x, shared, no_work, x.k, x.v); },
      [&] { copy_queries<S>(x, shared); }, [&] { add_parts(0); }, [&] { add_parts(1); });
#endif
}

template <class S, class T = typename S::Element>
void launch_staged(const KernelContext& context, const Fused<T>& call) {
  launch_in_order<staged_kernel<S>, S, StagedShared<S>>(context, call);
}

template <class T, Kind kind>
void backward_staged(const KernelContext& context, const Fused<T>& call, int width) {
  const auto launch = [&]<int kWidth>() {
    using S = StagedShape<T, kWidth>;
    using Shape = std::conditional_t<kind == Kind::dropout, WithDropout<S, false>, S>;
    launch_staged<Shape>(context, call);
  };
  width == 64 ? launch.template operator()<64>() : launch.template operator()<128>();
}

}  // namespace sash::cuda::hopper
