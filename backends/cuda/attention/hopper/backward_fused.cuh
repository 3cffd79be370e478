#pragma once

#include "turns.cuh"

/// All gradients in one pass, for heads of 64. Each group adds its part of dQ when it is its turn,
/// and writes dq if its turn is the last.
///
/// Memory traffic: that of the kernel of dk and dv (backward_keys.cuh), and for each step of a work
/// tile one addition to the sums of the step's query blocks.
namespace sash::cuda::hopper {

/// Two groups, each with 64 keys. A step has two blocks of queries.
template <class T>
struct FusedShape : Groups<2> {
  using Element = T;
  static constexpr int kWidth = 64, kBlockRows = 2, kBlocks = 2;
  static constexpr int kResident = 2, kOperands = 2, kWorkTiles = kResident + 1;
  static constexpr int kStages = 3, kStagesOfB = kStages, kListeners = 1;
  static constexpr bool kTakesBounds = false, kBackwards = true;
  static constexpr int kListed = 1;  // with two, registers would spill
  static_assert(kBlocks == kGroups, "a part of dQ for each group");
  using Rows = Tile<T, kWidth, kBlock>;
  using Resident = Rows;
  using Streamed = Tile<T, kWidth, kBlock * kBlocks>;
  using Square = Tile<T, kBlock, kBlock>;
};

template <class S>
struct FusedShared : SharedStorage<S> {
  BlockStats stats[S::kStages][S::kBlocks];            ///< of the queries in ring `a`
  typename S::Square dscores[S::kBlocks][S::kGroups];  ///< dS' of a step: [64 keys][64 queries]
  Barrier dscores_full, dscores_empty;
  TurnRing<S::kBlocks> turns;

  /// By all threads of the block.
  __device__ void init() {
    if (threadIdx.x == 0) {
      dscores_full.init(4 * S::kGroups);
      dscores_empty.init(4 * S::kGroups);
      turns.init(4 * S::kGroups);
    }
    SharedStorage<S>::init();
  }
};

/// A consumer group, which forms dk and dv of a block row, and a part of dq of each step.
template <class S, class T>
class FusedGroup : public Consumer<FusedGroup<S, T>, S, Fused<T>, FusedShared<S>, false> {
  using Base = Consumer<FusedGroup, S, Fused<T>, FusedShared<S>, false>;

 public:
  __device__ FusedGroup(const Fused<T>& x, FusedShared<S>& shared)
      : Base(x, shared, group()),
        keys_(shared.resident[0][0][0]),
        q_(shared.a[0]),
        dscores_(shared.dscores[row_][0]),
        square_of_(first_of_square(shared.dscores[0][row_])) {}

  __device__ void compute(const SharedWorkTile<S::kBlockRows>&) {
#pragma unroll
    for (float& x : dk_) x = 0;
#pragma unroll
    for (float& x : dv_) x = 0;
    read_step(at_);
    shared_.resident_ring.wait(at_resident_);
    const Operand keys = keys_.at(at_resident_.stage(), sizeof(shared_.resident[0]));
    const Operand k = keys.at(row_, sizeof(typename S::Rows));
    const Operand v = k + sizeof(shared_.resident[0][0]);
    // Computed anew: if it were derived from `keys`, ptxas would lack a register and serialise
    // products.
    const Operand keys_of_both = keys.at(0, 0);
    // First dP', then dQ: they share an array, because there are not enough registers for both.
    float score[kScores], other[kScores];
    auto& dq = reinterpret_cast<float(&)[32]>(other);
    start_scores(score, k);
    read_stats();
    warpgroup_wait<0>();
    while (true) {
      form_dscores(score, other, v);
      if (is(kLast)) break;
      start_queries(dq, keys_of_both);
      const auto before = at_;
      at_.advance();
      read_step(at_);
      warpgroup_wait<1>();
      fence_operand(dk_);
      start_scores(score, k);
      const TurnAt turn = await_turn();
      warpgroup_wait<1>();
      add_queries(before, turn, dq);
      read_stats();
      warpgroup_wait<0>();
    }
    start_queries(dq, keys_of_both);
    const TurnAt turn = await_turn();
    warpgroup_wait<0>();
    fence_operand(dk_);
    add_queries(at_, turn, dq);
    at_.advance();
  }

  /// Never called, because groups of this kernel share no block row.
  __device__ void reduce(float*) {}

  /// Rows [first, first + rows) of dk and dv of key head (b, h).
  __device__ void store(int b, int h, int first, int rows) {
    const float scale[2] = {dscore_factor(), dscore_factor()}, kept[2] = {factor(), factor()};
    store_rows(x_.dk.at(b, h), first, rows, dk_, scale);
    store_rows(x_.dv.at(b, h), first, rows, dv_, kept);
  }

 private:
  /// The factors that the sums of dV, and the sums of dK and dQ, are still to be multiplied by.
  __device__ float factor() const { return S::kDropout ? x_.dims.kept : 1.f; }
  __device__ float dscore_factor() const { return x_.dims.scale * factor(); }

  /// Reads the step's list entries, before its tiles have arrived.
  __device__ void read_step(const typename FusedShared<S>::StepState& at) {
    shared_.step_full[at.stage()].wait(at.parity());
    const auto& step = shared_.step[at.stage()];
    uint32_t bits = step.last ? kLast : 0;
#pragma unroll
    for (int i = 0; i < S::kGroups; ++i) {
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) {
        const int tile = step.tile[i][block];
        if (tile == kEmpty) bits |= hidden_bit(i, block);
        if (i == row_ && tile != kFull) bits |= kMasked;
      }
    }
    next_ = __reduce_or_sync(~0u, bits);
  }

  /// Starts S' = K Q' of the step that was read.
  __device__ void start_scores(float (&score)[32 * S::kBlocks], Operand k) {
    listed_ = next_;
    shared_.a_ring.wait(at_);
    if (is(kMasked)) mask_.template load<false>(x_.dims, this->work(), this->step(), row_);
    fence_operand(score);
    warpgroup_arrive();
    multiply_rows<typename S::Rows, typename S::Streamed>(
        score, k, q_.at(this->stage_of(at_), sizeof(shared_.a[0])));
    warpgroup_commit();
  }

  /// The step's list entries as bits: whether the step is the last, whether the group has a mask,
  /// and which blocks are hidden from group i.
  static constexpr uint32_t kLast = 1, kMasked = 2;
  static __device__ uint32_t hidden_bit(int i, int block) { return 4u << (i * S::kBlocks + block); }
  __device__ bool is(uint32_t bit) const { return listed_ & bit; }
  __device__ bool is_hidden(int i, int block) const { return is(hidden_bit(i, block)); }

  /// Reads the statistics of the step whose S' is in flight. With dropout, there are too few
  /// registers: each statistic is read where it is used.
  __device__ void read_stats() {
    if constexpr (!S::kDropout) {
      const auto& stats = shared_.stats[this->stage_of(at_)];
      lse_.load(stats[0].neg_lse);
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) dot_[block].load(stats[block].neg_dot);
    }
  }

  /// Forms P and dS' from S', stores dS' to shared memory, and starts the products of dV and dK.
  /// The product of dK is still running on return.
  __device__ void form_dscores(float (&score)[32 * S::kBlocks], float (&dscore)[32 * S::kBlocks],
                               Operand v) {
    const int s = this->stage_of(at_);
    const Operand q = q_.at(s, sizeof(shared_.a[0])), g = q + sizeof(shared_.a);
    // dP' = V g' - D; with dropout, D is subtracted later, and sums start from 0 because ptxas
    // serialises products that start without them.
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if constexpr (S::kDropout) {
        set(dscore[i], 0.f);
      } else {
        set(dscore[i], dot_[i / 32].of(i % 32));
      }
    }
    fence_operand(dscore);
    shared_.b_ring.wait(at_);
    warpgroup_arrive();
    multiply_rows<typename S::Rows, typename S::Streamed, true>(dscore, v, g);
    warpgroup_commit();
    if constexpr (S::kDropout) load_kept(kept_, x_, this->work(), this->step(), row_);
    // P = 2^(exponent S' - lse)
    fence_operand(score);
    if (is(kMasked)) mask_.apply(score);
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      const auto weigh = [&](int i, float lse) {
        float& x = score[32 * block + i];
        x = exp2_approx(fmaf(x, x_.dims.exponent, lse));
      };
      if constexpr (S::kDropout) {
        for_columns(shared_.stats[s][block].neg_lse, weigh);
      } else {
#pragma unroll
        for (int i = 0; i < 32; ++i) weigh(i, lse_.of(i));
        if (block + 1 < S::kBlocks) lse_.load(shared_.stats[s][block + 1].neg_lse);
      }
    }
    warpgroup_wait<0>();
    fence_operand(dscore);
    // dS' = P dP'
#pragma unroll
    for (int block = 0; S::kDropout && block < S::kBlocks; ++block) {
      fence_operand(reinterpret_cast<float(&)[32]>(score[32 * block]));
      for_columns(shared_.stats[s][block].neg_dot, [&](int i, float neg_dot) {
        const int at = 32 * block + i;
        apply_dropout(score[at], dscore[at], neg_dot, keeps<false>(kept_[block], i));
      });
    }
#pragma unroll
    for (int i = 0; !S::kDropout && i < kScores; ++i) dscore[i] *= score[i];
    // Hidden keys and values may be any numbers, also NaN.
    if (is(kMasked)) {
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) {
        if (!is_hidden(row_, block)) continue;
#pragma unroll
        for (int i = 32 * block; i < 32 * (block + 1); ++i) dscore[i] = 0;
      }
    }
    uint32_t dscore_words[kScores / 2], words[kScores / 2];
    pack<T>(dscore_words, dscore);
    pack<T>(words, score);
    // dV += P' g
    fence_operand(dv_);
    warpgroup_arrive();
    multiply_add<typename S::Streamed>(dv_, words, g);
    warpgroup_commit();
    shared_.dscores_empty.wait(parity_ ^ 1);
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      store_square(square_of_ + static_cast<uint32_t>(block * sizeof(shared_.dscores[0])),
                   dscore_words + 16 * block);
    }
    fence_proxy_async();
    shared_.dscores_full.arrive_as_one();
    // dK += dS' Q
    fence_operand(dk_);
    warpgroup_arrive();
    multiply_add<typename S::Streamed>(dk_, dscore_words, q);
    warpgroup_commit();
    warpgroup_wait<1>();
    fence_operand(dv_);
    shared_.b_ring.release(at_);
  }

  /// Starts this group's part of dQ = dS K: the rows of its block of queries.
  __device__ void start_queries(float (&dq)[32], Operand k) {
    shared_.dscores_full.wait(parity_);
    fence_operand(dq);
    // If a block of keys is hidden, its dS is 0. The product then reads dS in place of K, because K
    // may be any numbers, also NaN.
    using Square = typename S::Square;
    const Operand other = dscores_ + sizeof(Square);
    const Operand first = is_hidden(0, row_) ? dscores_ : k;
    const Operand second = is_hidden(1, row_) ? other : k + sizeof(typename S::Rows);
    warpgroup_arrive();
    multiply_transposed<Square, typename S::Rows, false>(dq, dscores_, first);
    multiply_transposed<Square, typename S::Rows, true>(dq, other, second);
    warpgroup_commit();
  }

  __device__ TurnAt await_turn() {
    const int slot = at_turn_.stage();
    shared_.turns.announced[slot].wait(at_turn_.parity());
    return shared_.turns.turn[slot][row_].at;
  }

  /// Called after the products of dK and dQ of the step at `at`. Adds the part of dQ when it is its
  /// turn. The group that adds the last part writes dq.
  __device__ void add_queries(const typename FusedShared<S>::StepState& at, const TurnAt& turn,
                              float (&dq)[32]) {
    fence_operand(dq);
    shared_.a_ring.release(at);
    shared_.dscores_empty.arrive_as_one();
    parity_ ^= 1;
    if (turn.m >= 0 && take_turn(x_.turns, turn, dq)) {
      const float scale[2] = {dscore_factor(), dscore_factor()};
      const Turn& whole = shared_.turns.turn[at_turn_.stage()][row_];
      const int first = turn.m * kBlock;
      store_rows(x_.dq.at(whole.b, whole.h), first, x_.dims.queries - first, dq, scale);
    }
    shared_.turns.added[at_turn_.stage()].arrive_as_one();
    at_turn_.advance();
  }

  static constexpr int kScores = 32 * S::kBlocks, kSums = S::kWidth / 2;

  using Base::at_, Base::at_resident_, Base::row_, Base::shared_, Base::x_;

  const Operand keys_, q_, dscores_;
  const uint32_t square_of_;
  ColumnValues lse_, dot_[S::kBlocks];  ///< the statistics, without dropout
  uint32_t listed_,
      next_;             ///< list entries of the current step, and of the step that was read last
  uint32_t parity_ = 0;  ///< of the step, for dS'
  typename TurnRing<S::kBlocks>::State at_turn_;
  Mask<S::kBlocks, false> mask_;
  uint32_t kept_[S::kBlocks];  ///< with dropout
  float dk_[kSums], dv_[kSums];
};

template <class S, class T = typename S::Element>
__global__ void __launch_bounds__(S::kThreads, 1) fused_kernel(const __grid_constant__ Fused<T> x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<FusedShared<S>*>(raw);
  specialize_warps<S>(
      shared, [&] { FusedGroup<S, T>(x, shared).run(); },
      [&] { list_steps<S, false>(x, shared, no_work, x.k, x.v); },
      [&] { copy_queries<S>(x, shared); }, [&] { await_turns<S>(x, shared); },
      [&] { pass_turns<S>(x, shared); });
#endif
}

template <class S, class T = typename S::Element>
void launch_fused(const KernelContext& context, const Fused<T>& call) {
  launch_in_order<fused_kernel<S>, S, FusedShared<S>>(context, call);
}

template <class T, Kind kind>
void backward_fused(const KernelContext& context, const Fused<T>& call) {
  if constexpr (kind == Kind::dropout) {
    launch_fused<WithDropout<FusedShape<T>, false>>(context, call);
  } else {
    launch_fused<FusedShape<T>>(context, call);
  }
}

}  // namespace sash::cuda::hopper
