#pragma once

#include "attention_hopper_backward.cuh"
#include "attention_hopper_turns.cuh"

/// All gradients in one pass of five products. As in the kernel of dk and dv, keys and values are
/// resident, queries stream past, and rows of scores are keys. The groups also exchange dS' in
/// shared memory; then each forms a part [64][64] of dQ = dS K over the keys of both, and adds it
/// to sums in global memory when it is its turn.
///
/// With dropout's factors M, which are 0 or `kept`: dV = (M P)' g, dS = P (M dP - D). The factor is
/// taken out: sums hold gradients divided by it, and the statistics D.
///
/// Memory: as the kernel of dk and dv; for each step and work tile also one addition to the sums of
/// the step's query blocks.
namespace sash::cuda::hopper {

/// Two groups, each with 64 keys; `blocks` blocks of queries a step.
template <class T, int width, int blocks, int stages, int resident>
struct FusedShape : Groups<2> {
  using Element = T;
  static constexpr int kWidth = width, kBlockRows = 2, kBlocks = blocks;
  static constexpr int kResident = resident, kOperands = 2, kWorkTiles = resident + 1;
  static constexpr int kStages = stages, kStagesOfB = stages, kListeners = 1;
  static constexpr bool kTakesBounds = false;
  static constexpr int kListed = 1;          // registers do for no more
  static constexpr int kParts = width / 64;  ///< of dQ's features
  static_assert(kParts * blocks == kGroups, "a part of dQ for each group");
  using Rows = Tile<T, width, kBlock>;
  using Resident = Rows;
  using Streamed = Tile<T, width, kBlock * blocks>;
  using Square = Tile<T, kBlock, kBlock>;
};

/// Shapes by the width of tiles.
template <class T, int width>
struct FusedShapes;
template <class T>
struct FusedShapes<T, 64> : FusedShape<T, 64, 2, 3, 2> {};
template <class T>
struct FusedShapes<T, 128> : FusedShape<T, 128, 1, 3, 1> {};

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

/// Stores the accumulators [64][64] of a group, packed, to a tile.
template <class Square>
__device__ void store_square(Square& tile, const uint32_t* words) {
  const int matrix = lane() / 8, row = row_of_warp() + matrix % 2 * 8 + lane() % 8;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    const int chunk = j + matrix / 2;
    const uint32_t to =
        tile.address() + static_cast<uint32_t>(row * Square::kRowBytes + (chunk ^ row % 8) * 16);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(words[2 * j]), "r"(words[2 * j + 1]), "r"(words[2 * j + 2]),
                 "r"(words[2 * j + 3])
                 : "memory");
  }
}

/// A consumer group, which forms dk and dv of a block row, and a part of dq of each step.
template <class S, class T>
class FusedGroup : public Consumer<FusedGroup<S, T>, S, Fused<T>, FusedShared<S>, false> {
  using Base = Consumer<FusedGroup, S, Fused<T>, FusedShared<S>, false>;

 public:
  __device__ FusedGroup(const Fused<T>& x, FusedShared<S>& shared)
      : Base(x, shared, group()),
        keys_(shared.resident[0][0][0]),
        q_(shared.a[0]),
        dscores_(shared.dscores[block_of_part()][0]) {}

  __device__ void compute(const SharedWorkTile<S::kBlockRows>&) {
#pragma unroll
    for (float& x : dk_) x = 0;
#pragma unroll
    for (float& x : dv_) x = 0;
    shared_.resident_ring.wait(at_resident_);
    const Operand keys = keys_.at(at_resident_.stage(), sizeof(shared_.resident[0]));
    const Operand k = keys.at(row_, sizeof(typename S::Rows));
    const Operand v = k + sizeof(shared_.resident[0][0]);
    // dP', then dQ: one array, as registers for both would not do.
    float score[kScores], other[kScores];
    auto& dq = reinterpret_cast<float(&)[32]>(other);
    start_scores(score, k);
    warpgroup_wait<0>();
    while (true) {
      form_dscores(score, other, v);
      if (last_) break;
      start_queries(dq, keys);
      warpgroup_wait<1>();
      fence_operand(dk_);
      const auto before = at_;
      at_.advance();
      start_scores(score, k);
      warpgroup_wait<1>();
      add_queries(before, dq);
      warpgroup_wait<0>();
    }
    start_queries(dq, keys);
    warpgroup_wait<0>();
    fence_operand(dk_);
    add_queries(at_, dq);
    at_.advance();
  }

  /// No rows are shared: `reduce` is never called.
  __device__ void reduce(float*) {}

  /// Rows [first, first + rows) of dk and dv of key head (b, h).
  __device__ void store(int b, int h, int first, int rows) {
    const float scale[2] = {dscore_factor(), dscore_factor()}, kept[2] = {factor(), factor()};
    store_rows(x_.dk.at(b, h), first, rows, dk_, scale);
    store_rows(x_.dv.at(b, h), first, rows, dv_, kept);
  }

 private:
  /// The group's part of dQ: its block of the step, and its part of the features.
  static __device__ int block_of_part() { return S::kParts == 1 ? group() : 0; }
  static __device__ int part() { return S::kParts == 1 ? 0 : group(); }

  /// What the sums of dV, and those of dK and dQ, lack.
  __device__ float factor() const { return S::kDropout ? x_.dims.kept : 1.f; }
  __device__ float dscore_factor() const { return x_.dims.scale * factor(); }

  /// Starts S' = K Q' - lse / scale of the step at hand.
  __device__ void start_scores(float (&score)[32 * S::kBlocks], Operand k) {
    const int s = this->stage_of(at_);
    shared_.a_ring.wait(at_);
    const auto& step = this->step();
    last_ = step.last;
    masked_ = false;
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      empty_[block] = step.tile[row_][block] == kEmpty;
      masked_ = masked_ || step.tile[row_][block] != kFull;
    }
    if (masked_) mask_.template load<false>(x_.dims, this->work(), step, row_);
    if constexpr (kKeptEarly) load_kept(step);
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      start_from(score + 32 * block, shared_.stats[s][block].neg_lse);
    }
    fence_operand(score);
    warpgroup_arrive();
    multiply_rows<typename S::Rows, typename S::Streamed, true>(score, k,
                                                                q_.at(s, sizeof(shared_.a[0])));
    warpgroup_commit();
  }

  /// From S' to dV and dK, whose products run on, and dS' in shared memory.
  __device__ void form_dscores(float (&score)[32 * S::kBlocks], float (&dscore)[32 * S::kBlocks],
                               Operand v) {
    const int s = this->stage_of(at_);
    const Operand q = q_.at(s, sizeof(shared_.a[0])), g = q + sizeof(shared_.a);
    // dP' = V g' - D; with dropout, D is subtracted later.
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      if constexpr (!S::kDropout) start_from(dscore + 32 * block, shared_.stats[s][block].neg_dot);
    }
    fence_operand(dscore);
    shared_.b_ring.wait(at_);
    warpgroup_arrive();
    multiply_rows<typename S::Rows, typename S::Streamed, !S::kDropout>(dscore, v, g);
    warpgroup_commit();
    if constexpr (S::kDropout && !kKeptEarly) load_kept(this->step());
    // P = 2^(exponent S')
    fence_operand(score);
    if (masked_) mask_.apply(score);
#pragma unroll
    for (float& x : score) x = exp2_approx(x * x_.dims.exponent);
    warpgroup_wait<0>();
    fence_operand(dscore);
    uint32_t kept[S::kBlocks];
    if constexpr (S::kDropout) drop(dscore, kept, shared_.stats[s]);
      // dS' = P dP'; hidden keys and values may hold anything.
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
#pragma unroll
      for (int i = 32 * block; i < 32 * (block + 1); ++i) {
        dscore[i] = empty_[block] ? 0.f : dscore[i] * score[i];
      }
    }
    uint32_t dscore_words[kScores / 2], words[kScores / 2];
    pack<T>(dscore_words, dscore);
    // dV += P' g
#pragma unroll
    for (int block = 0; S::kDropout && block < S::kBlocks; ++block) {
      replace_hidden(score + 32 * block, kept[block], 0.f);
    }
    pack<T>(words, score);
    fence_operand(dv_);
    warpgroup_arrive();
    multiply_add<typename S::Streamed>(dv_, words, g);
    warpgroup_commit();
    shared_.dscores_empty.wait(parity_ ^ 1);
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      store_square(shared_.dscores[block][row_], dscore_words + 16 * block);
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

  /// Starts this group's part of dQ = dS K. Where a block of keys is hidden, dS is 0, and stands
  /// for K too, which may hold anything.
  __device__ void start_queries(float (&dq)[32], Operand keys) {
#pragma unroll
    for (float& x : dq) x = 0;
    fence_operand(dq);
    shared_.dscores_full.wait(parity_);
    Operand k[S::kGroups] = {keys, keys};
#pragma unroll
    for (int i = 0; i < S::kGroups; ++i) {
      const Operand zeros = dscores_ + i * sizeof(typename S::Square);
      const bool hidden = this->step().tile[i][block_of_part()] == kEmpty;
      k[i] = keys + static_cast<uint32_t>(i * sizeof(typename S::Rows) +
                                          static_cast<uint32_t>(part()) * S::Rows::kSlabBytes);
      k[i] = (hidden ? zeros : k[i]).at(0, 0);
    }
    warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < S::kGroups; ++i) {
      multiply_transposed<typename S::Square, typename S::Rows>(
          dq, dscores_ + i * sizeof(typename S::Square), k[i]);
    }
    warpgroup_commit();
  }

  /// After the products of dK and dQ of the step at `at`: adds that part of dQ in turn; the last
  /// part writes dq.
  __device__ void add_queries(const typename FusedShared<S>::StepState& at, float (&dq)[32]) {
    fence_operand(dq);
    shared_.a_ring.release(at);
    shared_.dscores_empty.arrive_as_one();
    parity_ ^= 1;
    const int slot = at_turn_.stage();
    shared_.turns.announced[slot].wait(at_turn_.parity());
    const Turn& turn = shared_.turns.turn[slot][block_of_part()];
    if (turn.m >= 0 && take_turn(x_.turns, turn, S::kParts, part(), dq)) {
      const float scale[2] = {dscore_factor(), dscore_factor()};
      Rows<T> to = x_.dq.at(turn.b, turn.h);
      to.data += 64 * part();
      to.width -= 64 * part();
      const int first = turn.m * kBlock;
      store_rows(to, first, x_.dims.queries - first, dq, scale);
    }
    shared_.turns.added[slot].arrive_as_one();
    at_turn_.advance();
  }

  /// Starts to load what dropout keeps of a step.
  __device__ void load_kept(const Step<S::kBlockRows, S::kBlocks>& step) {
    const AttentionDims<T>& p = x_.dims;
    const int64_t first = p.block_of(this->work().b, step.h);
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      if (step.tile[row_][block] == kEmpty) continue;
      const int64_t row = first + step.block[block];
      kept_.load_tile(block,
                      x_.kept + (row * p.map.key_blocks + this->work().block_row[row_]) * kBlock);
    }
  }

  /// M dP' - D, and what dropout keeps of each block.
  __device__ void drop(float (&dscore)[32 * S::kBlocks], uint32_t (&kept)[S::kBlocks],
                       const BlockStats (&stats)[S::kBlocks]) const {
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      kept[block] = kept_.of_thread(block);
      replace_hidden(dscore + 32 * block, kept[block], 0.f);
    }
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 pair =
          *reinterpret_cast<const float2*>(stats[j / 8].neg_dot + column_of(j % 8, 0));
#pragma unroll
      for (int e = 0; e < 4; ++e) dscore[4 * j + e] += e % 2 == 0 ? pair.x : pair.y;
    }
  }

  /// Initial accumulators [64][64]: a value for each column. In place, because the compiler may not
  /// move accumulators of products that run from one round of a loop to the next.
  static __device__ void start_from(float* sum, const float (&value)[kBlock]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 pair = *reinterpret_cast<const float2*>(value + column_of(j, 0));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        asm volatile("mov.f32 %0, %1;" : "+f"(sum[4 * j + e]) : "f"(e % 2 == 0 ? pair.x : pair.y));
      }
    }
  }

  static constexpr int kScores = 32 * S::kBlocks, kSums = S::kWidth / 2;
  static constexpr bool kKeptEarly = S::kDropout && S::kBlocks == 1;  // where registers do

  using Base::at_, Base::at_resident_, Base::row_, Base::shared_, Base::x_;

  const Operand keys_, q_, dscores_;
  bool last_, masked_, empty_[S::kBlocks];
  uint32_t parity_ = 0;  ///< of the step, for dS'
  typename TurnRing<S::kBlocks>::State at_turn_;
  Mask<S::kBlocks, false> mask_, kept_;
  float dk_[kSums], dv_[kSums];
};

template <class S, class T = typename S::Element>
__global__ void __launch_bounds__(S::kThreads, 1) fused_kernel(const __grid_constant__ Fused<T> x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<FusedShared<S>*>(raw);
  const auto copy_queries = [&](int stage, int part, int found, int b, int h, Barrier& full) {
    const int block = found == kNoBlock ? 0 : found;
    copy_rows(shared.a[stage], part, x.q, block * kBlock, h, b, full);
    copy_row(&shared.stats[stage][part], x.stats_map,
             static_cast<int>(x.dims.block_of(b, h)) + block, full);
  };
  const auto copy_cotangents = [&](int stage, int part, int block, int b, int h, Barrier& full) {
    const int row = min(block, static_cast<int>(x.dims.map.query_blocks)) * kBlock;
    copy_rows(shared.b[stage], part, x.g, row, h, b, full);
  };
  specialize_warps<S>(
      shared, [&] { FusedGroup<S, T>(x, shared).run(); },
      [&] {
        list_steps<S, false>(
            x, shared, [](const WorkTile&) {}, x.k, x.v);
      },
      [&] {
        copy_steps<S, false>(x, shared, S::kBlocks * sizeof(BlockStats), copy_queries,
                             copy_cotangents);
      },
      [&] { await_turns<S>(x, shared); }, [&] { pass_turns<S>(x, shared); });
#endif
}

template <class S, class T = typename S::Element>
void launch_fused(const KernelContext& context, const Fused<T>& call) {
  static_assert(sizeof(FusedShared<S>) <= kSharedBytes);
  static constinit std::atomic<uint64_t> allowed{0};
  constexpr auto shared = static_cast<int>(sizeof(FusedShared<S>));
  launch(context, fused_kernel<S>, allowed, std::min(multiprocessors(context), call.schedule.tiles),
         S::kThreads, shared, shared, call);
}

}  // namespace sash::cuda::hopper
