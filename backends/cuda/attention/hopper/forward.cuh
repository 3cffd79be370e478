#pragma once

#include "../common/scores.cuh"
#include "call.cuh"
#include "mainloop.cuh"

/// Attention with an online softmax (M. Milakov and N. Gimelshein, "Online normalizer calculation
/// for softmax", 2018) whose products overlap the exponentials (J. Shah et al., "FlashAttention-3",
/// NeurIPS 2024).
///
/// Memory traffic: for a work tile, a block of threads reads the queries once, and each listed
/// block of keys and values once. It writes the rows of out and lse once.
namespace sash::cuda::hopper {

/// Tiles have `width` features. A work tile has `rows` blocks of 64 queries, a step has `blocks`
/// blocks of 64 keys. `overlap`: products run while weights are formed, which takes registers.
/// `resident` is the number of stages for queries: with two, one is filled while the other is in
/// use. A multiprocessor runs `together` blocks of threads.
template <class T, int width, int rows, int blocks, int stages, bool overlap, int resident = 2,
          int together = 1>
struct ForwardShape : Groups<rows, together> {
  using Element = T;
  static constexpr int kWidth = width, kBlockRows = rows, kBlocks = blocks, kKeys = blocks * kBlock;
  static constexpr int kResident = resident, kOperands = 1, kWorkTiles = resident + 1;
  static constexpr int kStages = stages, kStagesOfB = stages;
  static constexpr bool kOverlap = overlap;
  using Resident = Tile<T, width, kBlock>;
  using Streamed = Tile<T, width, kKeys>;
};

/// Shapes by the width of tiles; the key of a general kernel is minus the width.
template <class T, int width, bool general>
using ForwardShapes = ShapeOf<
    general ? -width : width, For<32, ForwardShape<T, 32, 4, 1, 4, true>>,
    For<64, ForwardShape<T, 64, 4, 1, 8, true>>, For<96, ForwardShape<T, 96, 3, 1, 4, true>>,
    For<128, ForwardShape<T, 128, 3, 1, 4, true>>, For<256, ForwardShape<T, 256, 2, 1, 2, true, 1>>,
    For<-64, General<ForwardShape<T, 64, 3, 1, 2, false>>>,
    For<-128, General<ForwardShape<T, 128, 2, 1, 2, false>>>,
    For<-256, General<ForwardShape<T, 256, 1, 1, 2, false, 1>>>>;

/// For long but uneven block rows, such as causal masks have, and for pairs of rows with the same
/// blocks, such as layouts of blocks of 128 have. With two key blocks in a step, products have 128
/// columns. Two block rows of a work tile differ less in length than three, and a pair reads no
/// block that only one row sees.
template <class T>
using LongShape = ForwardShape<T, 128, 2, 2, 2, true>;

/// For calls of fewer tiles than multiprocessors. Each row has the same bits as in the larger work
/// tiles.
template <class T, int width>
using FewShape = ForwardShape<T, width, 2, 1, 512 / width, true>;

/// For block rows that have few blocks in common with their neighbours. A block of threads has one
/// group, so that no group waits for blocks that only others see. A multiprocessor runs two blocks.
template <class T, int width>
using ScatteredShape = ShapeOf<width, For<64, ForwardShape<T, 64, 1, 2, 3, true, 2, 2>>,
                               For<128, ForwardShape<T, 128, 1, 1, 2, true, 2, 2>>>;

/// Whether a call has fewer tiles in shape S than the card has multiprocessors. False for maps with
/// long rows, because their bits depend on how many groups share a row.
template <class S, class T>
bool has_few_tiles(const KernelContext& context, const AttentionDims<T>& p) {
  const int64_t head_tiles = (p.map.query_blocks + S::kBlockRows - 1) / S::kBlockRows;
  return p.map.by_query.long_rows == 0 &&
         int64_t{p.batches} * p.heads * head_tiles < multiprocessors(context);
}

/// Whether block rows have a mean of at least 16 entries, and are uneven; or come in pairs of 4.
inline bool is_long(const kernels::BlockMap& map) {
  const kernels::BlockList& list = map.by_query;
  const int64_t rows = map.batches * map.heads * map.query_blocks;
  return list.entries >= (list.paired ? 4 : 16) * rows && (list.paired || is_uneven(list, rows));
}

/// A consumer group. It forms out and lse of a block row.
template <class S, class T>
class ForwardGroup : public Consumer<ForwardGroup<S, T>, S, Forward<T>, SharedStorage<S>, true> {
  using Base = Consumer<ForwardGroup<S, T>, S, Forward<T>, SharedStorage<S>, true>;

 public:
  __device__ ForwardGroup(const Forward<T>& x, SharedStorage<S>& shared)
      : Base(x, shared, group()), q_(shared.resident[0][0][row_]), k_(shared.a[0]) {}

  __device__ void compute(const SharedWorkTile<S::kBlockRows>&) {
#pragma unroll
    for (float& o : sum_) o = 0;
    highest_[0] = highest_[1] = -kInfinity;
    total_[0] = total_[1] = 0;
    shared_.resident_ring.wait(at_resident_);
    const Operand q = q_.at(at_resident_.stage(), sizeof(shared_.resident[0]));
    if constexpr (S::kBlocks == 1) {
      attend(q);
    } else {
      attend_long(q);
    }
  }

  /// Merges the accumulators and softmax states of all groups into those of group 0.
  __device__ void reduce(float* buffer) {
    float* const mine = buffer + threadIdx.x % kGroup;
    const auto place = [mine](int of_group, int i) { return mine + (4 * of_group + i) * kGroup; };
    sync_consumers<S::kGroups>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *place(row_, half) = highest_[half];
      *place(row_, 2 + half) = total_[half];
    }
    sync_consumers<S::kGroups>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = -kInfinity, total = 0;
      for (int i = 0; i < S::kGroups; ++i) highest = max(highest, *place(i, half));
      const float shift = highest == -kInfinity ? 0.f : highest * exponent();
      const auto rescale = [&](float from) { return exp2_approx(fmaf(from, exponent(), -shift)); };
      for (int i = 0; i < S::kGroups; ++i) total += *place(i, 2 + half) * rescale(*place(i, half));
      const float factor = rescale(highest_[half]);
#pragma unroll
      for (int i = 2 * half; i < kSums; i += 4) {
        sum_[i] *= factor;
        sum_[i + 1] *= factor;
      }
      highest_[half] = highest;
      total_[half] = total;
    }
    reduce_groups<S::kGroups>(sum_, buffer);
  }

  /// Rows [first, first + rows) of out and lse of head (b, h).
  __device__ void store(int b, int h, int first, int rows) {
    float* const lse = x_.lse + x_.dims.row_of(b, h) + first;
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = sum_over_quad(total_[half]);
      factor[half] = total == 0 ? 0.f : (S::kDropout ? x_.dims.kept : 1.f) / total;
      if (lane() % 4 == 0 && row_of(half) < rows) {
        lse[row_of(half)] =
            total == 0 ? kInfinity : (highest_[half] * exponent() + log2f(total)) * kLn2;
      }
    }
    store_rows(x_.out.at(b, h), first, rows, sum_, factor);
  }

 private:
  /// Waits for the keys of the current step. Returns whether this group sees the step.
  __device__ bool load_step() {
    shared_.a_ring.wait(at_);
    const auto& step = this->step();
    last_ = step.last;
    const int tile = step.tile[row_][0];
    const bool any = tile != kEmpty;
    masked_ = tile != kFull;
    if (any && masked_) mask_.load(x_.dims, this->work(), step, row_);
    if constexpr (S::kDropout) {
#pragma unroll
      for (int part = 0; part < S::kBlocks; ++part) {
        kept_[part] = kept_word<true>(shared_.kept[this->stage_of(at_)][part][row_]);
      }
    }
    if constexpr (S::kGeneral) position_ = {this->work(), step, row_};
    return any;
  }

  __device__ void advance() {
    ended_ = last_;
    at_.advance();
  }

  /// Forms O, not yet divided by the row sums.
  __device__ void attend(Operand q) {
    ended_ = false;
    while (!ended_) {
      if (!load_step()) {
        this->release_step();
        advance();
        continue;
      }
      float rescale[2];
      start_scores(q);
      warpgroup_wait<0>();
      fence_operand(score_);
      shared_.a_ring.release(at_);
      form_weights(rescale);
      finish_weights(rescale);
      auto before = at_;
      advance();
      // The product O += P V of a step runs while the weights of the next step are formed. A hidden
      // step ends this loop, so that its stages are released before the next wait.
      while (S::kOverlap && !ended_ && load_step()) {
        start_scores(q);
        start_sums(before);
        warpgroup_wait<1>();
        fence_operand(score_);
        shared_.a_ring.release(at_);
        form_weights(rescale);
        warpgroup_wait<0>();
        fence_operand(sum_);
        shared_.b_ring.release(before);
        finish_weights(rescale);
        before = at_;
        advance();
      }
      start_sums(before);
      warpgroup_wait<0>();
      fence_operand(sum_);
      shared_.b_ring.release(before);
    }
  }

  /// The same in steps of two blocks. Each branch takes about 20 cycles here, and two groups hide
  /// little of that. So the next list entry is read while exponentials are computed, and sums are
  /// rescaled while scores are multiplied.
  __device__ void attend_long(Operand q) {
    shared_.a_ring.wait(at_);
    take(this->read(at_));
    do {
      shared_.a_ring.wait(at_);
      load_mask();
      if (!visible_) {
        ended_ = last_;
        take(this->read_next(last_));
        this->release_step();
        at_.advance();
        continue;
      }
      start_scores(q);
      warpgroup_wait<0>();
      fence_operand(score_);
      shared_.a_ring.release(at_);
      form_long_weights([] {});
      auto before = at_;
      at_.advance();
      while (!ended_ && visible_) {
        shared_.a_ring.wait(at_);
        load_mask();
        start_scores(q);
        rescale_sums();
        start_sums(before);
        warpgroup_wait<1>();
        fence_operand(score_);
        shared_.a_ring.release(at_);
        form_long_weights([&] {
          warpgroup_wait<0>();
          fence_operand(sum_);
          shared_.b_ring.release(before);
        });
        before = at_;
        at_.advance();
      }
      rescale_sums();
      start_sums(before);
      warpgroup_wait<0>();
      fence_operand(sum_);
      shared_.b_ring.release(before);
    } while (!ended_);
  }

  /// Makes a step the current step.
  __device__ void take(const typename Base::Listed& listed) {
    last_ = listed.last;
    visible_ = masked_ = false;
#pragma unroll
    for (int part = 0; part < S::kBlocks; ++part) {
      visible_ = visible_ || listed.tile[part] != kEmpty;
      masked_ = masked_ || listed.tile[part] != kFull;
    }
  }
  __device__ void load_mask() {
    if (visible_ && masked_) mask_.load(x_.dims, this->work(), this->step(), row_);
  }

  /// The online softmax of a step. It also reads the next list entry. finish_sums() waits for the
  /// previous product that reads the weights, and is called after the exponentials of the first
  /// row. The vote before it keeps ptxas from moving the wait ahead of the maxima.
  template <class Finish>
  __device__ void form_long_weights(Finish finish_sums) {
    if (masked_) mask_.apply(score_);
    const auto next = this->read_next(last_);
    float shift[2];
    raise_highest(0, shift[0], rescale_[0]);
    exponentiate(0, shift[0], rescale_[0]);
    raise_highest(1, shift[1], rescale_[1]);
    rescales_ = __any_sync(~0u, rescale_[0] != 1 || rescale_[1] != 1);
    finish_sums();
    exponentiate(1, shift[1], rescale_[1]);
    fence_operand(score_);
    pack<T>(weight_, score_);
    ended_ = last_;
    take(next);
  }
  __device__ void rescale_sums() {
    if (!rescales_) return;
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum_[i] *= rescale_[i / 2 % 2];
  }

  __device__ Operand keys(const typename SharedStorage<S>::StepState& at) const {
    const int stage = this->stage_of(at);
    constexpr uint32_t bytes = sizeof(shared_.a[0]);
    return S::kBlocks > 1 ? k_.ahead(stage, bytes) : k_.at(stage, bytes);
  }

  /// S = Q K'
  __device__ void start_scores(Operand q) {
    warpgroup_arrive();
    multiply_rows<typename S::Resident, typename S::Streamed>(score_, q, keys(at_));
    warpgroup_commit();
  }

  /// O += P V
  __device__ void start_sums(const typename SharedStorage<S>::StepState& at) {
    shared_.b_ring.wait(at);
    fence_operand(sum_);
    warpgroup_arrive();
    multiply_add<typename S::Streamed>(sum_, weight_, keys(at) + sizeof(shared_.a));
    warpgroup_commit();
  }

  /// The online softmax: turns products into weights 2^(exponent (s - highest)). Sets `rescale` to
  /// the factors of earlier sums.
  __device__ void form_weights(float (&rescale)[2]) {
    if constexpr (S::kGeneral) apply_options();
    if (masked_) mask_.apply(score_);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float shift;
      raise_highest(half, shift, rescale[half]);
      exponentiate(half, shift, rescale[half]);
    }
    fence_operand(score_);
    if constexpr (S::kGeneral) apply_dropout();
    if constexpr (S::kDropout) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        if (!keeps<true>(kept_[i / 32], i % 32)) score_[i] = 0;
      }
    }
  }

  /// Updates the maximum of row `half`. Sets `shift` to the maximum times the exponent, and
  /// `rescale` to the factor of earlier sums.
  __device__ void raise_highest(int half, float& shift, float& rescale) {
    float now = highest_[half];
#pragma unroll
    for (int j = 2 * half; j < kScores; j += 4) now = max(now, max(score_[j], score_[j + 1]));
    now = max_over_quad(now);
    // The maximum of a row is not updated while weights stay below 2^8, so that sums are seldom
    // rescaled.
    const bool grows = (now - highest_[half]) * exponent() > kGrowth;
    if (!grows) now = highest_[half];
    shift = now == -kInfinity ? 0.f : now * exponent();
    rescale = grows ? exp2_approx(fmaf(highest_[half], exponent(), -shift)) : 1.f;
    highest_[half] = now;
  }
  /// Forms the weights of row `half`, and adds them to the row sum.
  __device__ void exponentiate(int half, float shift, float rescale) {
    float added = 0;
#pragma unroll
    for (int j = 2 * half; j < kScores; j += 4) {
      score_[j] = exp2_approx(fmaf(score_[j], exponent(), -shift));
      score_[j + 1] = exp2_approx(fmaf(score_[j + 1], exponent(), -shift));
      added += score_[j] + score_[j + 1];
    }
    total_[half] = fmaf(total_[half], rescale, added);
  }

  /// For general kernels: turns products into scores to the base 2.
  __device__ void apply_options() {
    const Scores<T, true> scores(x_.dims, position_.b, position_.h);
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      float cap_grad[4];
      scores(four(score_, j), cap_grad, position_.row + row_of(0),
             position_.column + column_of(j, 0));
    }
  }

  /// For general kernels: applies dropout.
  __device__ void apply_dropout() {
    const AttentionDims<T>& p = x_.dims;
    if (!p.dropout) return;
    const uint32_t kept =
        Dropout(p, position_.b, position_.h)
            .template kept<true, S::kKeys>(position_.row + row_of_warp(), position_.column);
#pragma unroll
    for (int i = 0; i < kScores; ++i) score_[i] *= kept >> i & 1 ? p.kept : 0.f;
  }

  /// The factor that turns the numbers in `score_` into scores to the base 2.
  __device__ float exponent() const { return S::kGeneral ? 1.f : x_.dims.exponent; }

  __device__ void finish_weights(const float (&rescale)[2]) {
    pack<T>(weight_, score_);
    if (__any_sync(~0u, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sum_[i] *= rescale[i / 2 % 2];
    }
  }

  static constexpr float kGrowth = 8;  ///< to the base 2
  static constexpr int kScores = S::kKeys / 2, kSums = S::kWidth / 2;

  using Base::at_, Base::at_resident_, Base::row_, Base::shared_, Base::x_;

  const Operand q_, k_;
  bool last_, ended_, masked_;
  bool visible_, rescales_;  ///< for `attend_long`
  float rescale_[2];
  Mask<S::kBlocks, true> mask_;
  uint32_t kept_[S::kBlocks];  ///< with dropout
  StepPosition position_;
  float score_[kScores], sum_[kSums];
  uint32_t weight_[kScores / 2];
  float highest_[2],
      total_[2];  ///< the softmax state: row maxima, and this thread's part of the row sums
};

template <class S, class T = typename S::Element>
__global__ void __launch_bounds__(S::kThreads, S::kTogether)
    forward_kernel(const __grid_constant__ Forward<T> x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<SharedStorage<S>*>(raw);
  const auto copy = [&](auto& tiles, const CUtensorMap& from) {
    return [&](int stage, int part, int block, int b, int h, Barrier& full) {
      const int row = min(block, static_cast<int>(x.dims.map.key_blocks)) * kBlock;
      copy_rows(tiles[stage], part, from, row, h, b, full);
    };
  };
  specialize_warps<S>(
      shared, [&] { ForwardGroup<S, T>(x, shared).run(); },
      [&] { list_steps<S, true>(x, shared, no_work, x.q); },
      [&] {
        copy_steps<S, true, (S::kBlocks > 1)>(x, shared, 0, copy(shared.a, x.k),
                                              copy(shared.b, x.v));
      });
#endif
}

template <class S, class T = typename S::Element>
void launch_forward(const KernelContext& context, const Forward<T>& call) {
  launch_persistent<forward_kernel<S>, S, SharedStorage<S>, true>(context, call);
}

template <class T, Kind kind>
void forward(const KernelContext& context, const Forward<T>& call, int width) {
  constexpr bool general = kind == Kind::general;
  if constexpr (kind == Kind::dropout) {
    if (width == 64)
      return launch_forward<WithDropout<ForwardShapes<T, 64, false>, true>>(context, call);
    launch_forward<WithDropout<ForwardShape<T, 128, 3, 1, 3, true>, true>>(context, call);
  } else {
    with_width<general>(width, [&]<int kWidth>() {
      using Shape = ForwardShapes<T, kWidth, general>;
      if constexpr ((kWidth == 64 || kWidth == 128) && !general) {
        const kernels::BlockList& list = call.dims.map.by_query;
        if (list.scattered && list.long_rows == 0) {
          return launch_forward<ScatteredShape<T, kWidth>>(context, call);
        }
        if constexpr (kWidth == 128) {
          if (is_long(call.dims.map)) return launch_forward<LongShape<T>>(context, call);
        }
        if (has_few_tiles<Shape>(context, call.dims)) {
          return launch_forward<FewShape<T, kWidth>>(context, call);
        }
      }
      launch_forward<Shape>(context, call);
    });
  }
}

}  // namespace sash::cuda::hopper
