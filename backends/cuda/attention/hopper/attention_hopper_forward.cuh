#pragma once

#include "../common/attention_fragments_scores.cuh"
#include "attention_hopper_call.cuh"
#include "attention_hopper_producer.cuh"

/// Attention with a running softmax (M. Milakov and N. Gimelshein, "Online normalizer calculation
/// for softmax", 2018) whose products run behind the exponentials (J. Shah et al.,
/// "FlashAttention-3", NeurIPS 2024).
///
/// Memory: a block of threads reads its queries once and each block of keys and values that one of
/// its lines lists once; it writes its rows of out and lse once.
namespace sash::cuda::hopper {

/// Heads of `width` features; `lines` blocks of 64 queries, which meet `blocks` blocks of 64 keys a
/// step; `per_sm` blocks of threads share a multiprocessor. `chains`: whether products run while
/// weights are formed, which takes registers. `resident` buffers hold queries: of two, one is
/// filled while the other is in use.
template <class T, int width, int lines, int blocks, int stages, int per_sm, bool chains,
          int resident = 2>
struct ForwardShape : Groups<lines, per_sm> {
  using Element = T;
  static constexpr int kWidth = width, kLines = lines, kBlocks = blocks, kKeys = blocks * kBlock;
  static constexpr int kResident = resident, kOperands = 1, kWorks = resident + 1;
  static constexpr int kStages = stages, kStagesOfB = stages;
  static constexpr bool kChains = chains;
  using Resident = Tile<T, width, kBlock>;
  using Streamed = Tile<T, width, kKeys>;
};

/// Shapes by the width of tiles.
template <class T, int width, bool general>
struct ForwardShapes;
template <class T>
struct ForwardShapes<T, 32, false> : ForwardShape<T, 32, 4, 1, 4, 1, true> {};
template <class T>
struct ForwardShapes<T, 64, false> : ForwardShape<T, 64, 4, 1, 8, 1, true> {};
template <class T>
struct ForwardShapes<T, 96, false> : ForwardShape<T, 96, 3, 1, 4, 1, true> {};
template <class T>
struct ForwardShapes<T, 128, false> : ForwardShape<T, 128, 3, 1, 4, 1, true> {};
template <class T>
struct ForwardShapes<T, 256, false> : ForwardShape<T, 256, 2, 1, 2, 1, true, 1> {};
template <class T>
struct ForwardShapes<T, 64, true> : General<ForwardShape<T, 64, 3, 1, 2, 1, false>> {};
template <class T>
struct ForwardShapes<T, 128, true> : General<ForwardShape<T, 128, 2, 1, 2, 1, false>> {};
template <class T>
struct ForwardShapes<T, 256, true> : General<ForwardShape<T, 256, 1, 1, 2, 1, false, 1>> {};

/// Of causal masks and such, whose lines are long but uneven: two blocks of keys a step make
/// products of 128 columns, and tiles of two lines end together.
template <class T>
using LongShape = ForwardShape<T, 128, 2, 2, 2, 1, true>;

/// Lines of at least 16 blocks each in the mean, the longest half as long again.
inline bool is_long(const kernels::BlockMap& map) {
  const kernels::BlockList& list = map.by_query;
  const int64_t lines = map.batches * map.heads * map.query_blocks;
  return list.entries >= 16 * lines && 2 * list.longest * lines > 3 * list.entries;
}

/// A group that multiplies, with the queries of a row.
template <class S, class T>
class ForwardGroup : public Consumer<ForwardGroup<S, T>, S, Forward<T>, SharedStorage<S>, true> {
  using Base = Consumer<ForwardGroup<S, T>, S, Forward<T>, SharedStorage<S>, true>;

 public:
  __device__ ForwardGroup(const Forward<T>& x, SharedStorage<S>& shared)
      : Base(x, shared, group()), q_(shared.resident[0][0][line_]), k_(shared.a[0]) {}

  __device__ void compute(const Work<S::kLines>&) {
#pragma unroll
    for (float& o : sum_) o = 0;
    highest_[0] = highest_[1] = -kInfinity;
    total_[0] = total_[1] = 0;
    shared_.resident_ring.wait(at_resident_);
    attend(q_.at(at_resident_.stage(), sizeof(shared_.resident[0])));
  }

  /// The sums of all groups, which share a line, to the first, by way of the tiles of its queries.
  __device__ void reduce(float* room) {
    float* const own = room + threadIdx.x % kGroup;
    const auto place = [own](int of_group, int i) { return own + (4 * of_group + i) * kGroup; };
    meet_groups<S::kGroups>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *place(line_, half) = highest_[half];
      *place(line_, 2 + half) = total_[half];
    }
    meet_groups<S::kGroups>();
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
    add_up<S::kGroups>(sum_, room);
  }

  /// To row `first` of out and on, of which `rows` exist.
  __device__ void store(int64_t first, int rows) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = total_[half];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      factor[half] = total == 0 ? 0.f : 1 / total;
      if (lane() % 4 == 0 && row_of(half) < rows) {
        x_.lse[first + row_of(half)] =
            total == 0 ? kInfinity : (highest_[half] * exponent() + log2f(total)) * kLn2;
      }
    }
    store_rows(x_.out + first * x_.width, rows, x_.width, sum_, factor);
  }

 private:
  /// Whether the step at hand shows this group something; once its keys are there.
  __device__ bool look() {
    shared_.a_ring.wait(at_);
    const auto& step = this->step();
    last_ = step.last;
    bool any = false;
    masked_ = false;
#pragma unroll
    for (int part = 0; part < S::kBlocks; ++part) {
      const int tile = step.tile[line_][part];
      any = any || tile != kAbsent;
      masked_ = masked_ || tile != kWhole;
    }
    if (any && masked_) mask_.load(x_.problem, this->work(), step, line_);
    if constexpr (S::kGeneral) at_scores_ = {this->work(), step, line_};
    return any;
  }

  __device__ void advance() {
    ended_ = last_;
    at_.advance();
  }

  /// O, not yet divided by the sums of weights.
  __device__ void attend(Operand q) {
    ended_ = false;
    while (!ended_) {
      if (!look()) {
        shared_.b_ring.wait(at_);
        shared_.a_ring.release(at_);
        shared_.b_ring.release(at_);
        advance();
        continue;
      }
      float rescale[2];
      start_scores(q);
      wait_for_products<0>();
      settle(score_);
      shared_.a_ring.release(at_);
      form_weights(rescale);
      finish_weights(rescale);
      PipelineState<S::kStages> before = at_;
      advance();
      // The products of a step run while the weights of the next are formed. A step that shows
      // nothing ends the chain, so that no buffer waits for what comes after it.
      while (S::kChains && !ended_ && look()) {
        start_scores(q);
        start_sums(before);
        wait_for_products<1>();
        settle(score_);
        shared_.a_ring.release(at_);
        form_weights(rescale);
        wait_for_products<0>();
        settle(sum_);
        shared_.b_ring.release(before);
        finish_weights(rescale);
        before = at_;
        advance();
      }
      start_sums(before);
      wait_for_products<0>();
      settle(sum_);
      shared_.b_ring.release(before);
    }
  }

  /// S = Q K'
  __device__ void start_scores(Operand q) {
    begin_products();
    multiply_rows<typename S::Resident, typename S::Streamed>(
        score_, q, k_.at(at_.stage(), sizeof(shared_.a[0])));
    end_products();
  }

  /// O += P V
  __device__ void start_sums(const PipelineState<S::kStages>& at) {
    shared_.b_ring.wait(at);
    settle(sum_);
    begin_products();
    multiply_add<typename S::Streamed>(sum_, weight_,
                                       k_.at(at.stage(), sizeof(shared_.a[0])) + sizeof(shared_.a));
    end_products();
  }

  /// From products to weights relative to the highest score so far, 2^(exponent (s - highest)), and
  /// what earlier ones have to be multiplied with.
  __device__ void form_weights(float (&rescale)[2]) {
    if constexpr (S::kGeneral) modify();
    if (masked_) mask_.hide(score_);
    const float exponent = this->exponent();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float now = highest_[half];
#pragma unroll
      for (int j = 2 * half; j < kScores; j += 4) now = max(now, max(score_[j], score_[j + 1]));
      now = max(now, __shfl_xor_sync(~0u, now, 1));
      now = max(now, __shfl_xor_sync(~0u, now, 2));
      const float shift = now == -kInfinity ? 0.f : now * exponent;
      rescale[half] = exp2_approx(fmaf(highest_[half], exponent, -shift));
      highest_[half] = now;
      float added = 0;
#pragma unroll
      for (int j = 2 * half; j < kScores; j += 4) {
        score_[j] = exp2_approx(fmaf(score_[j], exponent, -shift));
        score_[j + 1] = exp2_approx(fmaf(score_[j + 1], exponent, -shift));
        added += score_[j] + score_[j + 1];
      }
      total_[half] = fmaf(total_[half], rescale[half], added);
    }
    settle(score_);
    if constexpr (S::kGeneral) drop();
  }

  /// Of general kernels: from products to scores to the base 2.
  __device__ void modify() {
    const Scores<T, true> scores(x_.problem, at_scores_.b, at_scores_.h);
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      float bend[4];
      scores(four(score_, j), bend, at_scores_.row + row_of(0),
             at_scores_.column + column_of(j, 0));
    }
  }

  /// Of general kernels: weights, of which dropout keeps some.
  __device__ void drop() {
    const Problem<T>& p = x_.problem;
    if (!p.dropout) return;
    const uint32_t kept =
        Dropout(p, at_scores_.b, at_scores_.h)
            .template kept<true, S::kKeys>(at_scores_.row + row_of_warp(), at_scores_.column);
#pragma unroll
    for (int i = 0; i < kScores; ++i) score_[i] *= kept >> i & 1 ? p.kept : 0.f;
  }

  /// By what scores are multiplied on their way to the base 2.
  __device__ float exponent() const { return S::kGeneral ? 1.f : x_.problem.exponent; }

  __device__ void finish_weights(const float (&rescale)[2]) {
    pack<T>(weight_, score_);
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum_[i] *= rescale[i / 2 % 2];
  }

  static constexpr int kScores = S::kKeys / 2, kSums = S::kWidth / 2;

  using Base::at_, Base::at_resident_, Base::line_, Base::shared_, Base::x_;

  const Operand q_, k_;
  bool last_, ended_, masked_;
  Mask<S::kBlocks, true> mask_;
  ScoresAt at_scores_;
  float score_[kScores], sum_[kSums];
  uint32_t weight_[kScores / 2];
  float highest_[2], total_[2];  ///< a thread's share of a row's total
};

template <class S, class T = typename S::Element>
__global__ void __launch_bounds__(S::kThreads, S::kPerSm)
    forward_kernel(const __grid_constant__ Forward<T> x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<SharedStorage<S>*>(raw);
  const auto copy = [&](auto& tiles, const CUtensorMap& from) {
    return [&](int stage, int part, int block, int b, int h, Barrier& full) {
      const int row = min(block, static_cast<int>(x.problem.map.key_blocks)) * kBlock;
      copy_rows(tiles[stage], part, from, row, h, b, full);
    };
  };
  specialize_warps<S>(
      shared, [&] { ForwardGroup<S, T>(x, shared).run(); },
      [&] {
        produce<S, true>(
            x, shared, shared.a_ring, 0, [](const WorkAhead&) {}, copy(shared.a, x.k), x.q);
      },
      [&] {
        produce<S, true>(
            x, shared, shared.b_ring, 0, [](const WorkAhead&) {}, copy(shared.b, x.v));
      });
#endif
}

template <class S, class T = typename S::Element>
void launch_forward(const KernelContext& context, const Forward<T>& call) {
  static constinit std::atomic<uint64_t> allowed{0};
  launch_walk<S, SharedStorage<S>>(context, forward_kernel<S>, allowed, call,
                                   call.problem.map.by_query, call.problem.map.query_blocks,
                                   call.problem.heads);
}

template <class T, bool general>
void forward(const KernelContext& context, const Forward<T>& call, int width) {
  with_width<general>(width, [&]<int kWidth>() {
    if constexpr (kWidth == 128 && !general) {
      if (is_long(call.problem.map)) return launch_forward<LongShape<T>>(context, call);
    }
    launch_forward<ForwardShapes<T, kWidth, general>>(context, call);
  });
}

}  // namespace sash::cuda::hopper
