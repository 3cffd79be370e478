#pragma once

#include "backward.cuh"

/// dK = scale dS' Q and dV = P' g. Keys and values are resident; the queries of all heads that read
/// them are streamed. Rows of scores are keys: S' = K Q', dP' = V g'. If dK and dV do not fit into
/// the registers of one group (`split`), one group forms dK, and another group forms S' again and
/// dV.
///
/// Memory traffic: for a work tile, a block of threads reads k and v once, and for each head every
/// listed block of q, g and their statistics once. It writes dk and dv once, or their parts in
/// float32.
namespace sash::cuda::hopper {

template <class S>
struct KeyShared : SharedStorage<S> {
  BlockStats stats[S::kStages][1];  ///< of the queries in ring `a`
};

/// Shapes by the width of tiles; the key of a general kernel is minus the width.
template <class T, int width, bool general>
using KeyShapes = ShapeOf<general ? -width : width, For<32, BackwardShape<T, 32, 3, 6, 2, false>>,
                          For<64, BackwardShape<T, 64, 3, 6, 2, false>>,
                          For<96, BackwardShape<T, 96, 2, 4, 2, false>>,
                          For<128, BackwardShape<T, 128, 2, 3, 2, true>>,
                          For<256, BackwardShape<T, 256, 1, 2, 1, false, 2>>,
                          For<-64, General<BackwardShape<T, 64, 2, 2, 2, false>>>,
                          For<-128, General<BackwardShape<T, 128, 2, 2, 1, false>>>,
                          For<-256, General<BackwardShape<T, 256, 1, 2, 1, false, 2>>>>;

/// A consumer group. It forms dk, dv or both of a block row.
template <class S, class T, bool forms_dk, bool forms_dv>
class KeyGroup
    : public Consumer<KeyGroup<S, T, forms_dk, forms_dv>, S, Backward<T>, KeyShared<S>, false> {
  using Base = Consumer<KeyGroup, S, Backward<T>, KeyShared<S>, false>;

 public:
  __device__ KeyGroup(const Backward<T>& x, KeyShared<S>& shared)
      : Base(x, shared, group() / S::kSplit), k_(shared.resident[0][0][row_]), q_(shared.a[0]) {}

  __device__ void compute(const SharedWorkTile<S::kBlockRows>&) {
#pragma unroll
    for (float& x : dk_) x = 0;
#pragma unroll
    for (float& x : dv_) x = 0;
    shared_.resident_ring.wait(at_resident_);
    const Operand k = k_.at(at_resident_.stage(), sizeof(shared_.resident[0]));
    do {
      take_step(k, k + sizeof(shared_.resident[0][0]));
      at_.advance();
    } while (!last_);
  }

  __device__ void reduce(float* buffer) {
    if constexpr (S::kBlockRows > 1) {
      reduce_groups<S::kGroups>(dk_, buffer);
      reduce_groups<S::kGroups>(dv_, buffer);
    }
  }

  /// Rows [first, first + rows) of dk and dv of key head (b, h), or all sums of part h of batch b.
  __device__ void store(int b, int h, int first, int rows) {
    const AttentionDims<T>& p = x_.dims;
    if (x_.splits > 0) {
      if (rows <= 0) return;
      const int64_t part = int64_t{b} * p.heads * x_.splits + h;
      const int64_t at = (part * p.map.key_blocks + first / kBlock) * (kSums / 4) * kGroup;
      if constexpr (forms_dk) store_sums(x_.dk_parts + at, dk_);
      if constexpr (forms_dv) store_sums(x_.dv_parts + at, dv_);
      return;
    }
    const float scale[2] = {p.scale, p.scale}, one[2] = {1.f, 1.f};
    if constexpr (forms_dk) {
      store_rows(x_.dk.at(b, h), first, rows, dk_, scale);
    }
    if constexpr (forms_dv) {
      store_rows(x_.dv.at(b, h), first, rows, dv_, one);
    }
  }

 private:
  __device__ void take_step(Operand k, Operand v) {
    const int s = this->stage_of(at_);
    shared_.a_ring.wait(at_);
    const auto& step = this->step();
    const int tile = step.tile[row_][0];
    last_ = step.last;
    if (tile == kEmpty) {
      this->release_step();
      return;
    }
    Mask<1, false> mask;
    const bool masked = tile >= 0;
    if (masked || S::kGeneral) {
      mask.load(x_.dims, this->work(), step, row_);
    }
    const Operand q = q_.at(s, sizeof(shared_.a[0])), g = q + sizeof(shared_.a);
    const BlockStats& stats = shared_.stats[s][0];
    // S' = K Q' - lse / scale, dP' = V g' - D. General kernels subtract later.
    constexpr bool add = !S::kGeneral;
    if constexpr (add) start_from(score_, stats.neg_lse);
    if constexpr (add && forms_dk) start_from(dscore_, stats.neg_dot);
    warpgroup_arrive();
    multiply_rows<typename S::Rows, typename S::Rows, add>(score_, k, q);
    warpgroup_commit();
    shared_.b_ring.wait(at_);
    if constexpr (forms_dk) {
      warpgroup_arrive();
      multiply_rows<typename S::Rows, typename S::Rows, add>(dscore_, v, g);
      warpgroup_commit();
    }
    uint32_t words[16];
    // dV += P' g
    const auto start_dv = [&] {
      pack<T>(words, score_);
      fence_operand(dv_);
      warpgroup_arrive();
      multiply_add<typename S::Rows>(dv_, words, g);
      warpgroup_commit();
    };
    if constexpr (S::kGeneral) {
      warpgroup_wait<0>();
      form_general(stats, mask, StepPosition(this->work(), step, row_));
    } else {
      warpgroup_wait<forms_dk ? 1 : 0>();
      fence_operand(score_);
      // P = 2^(exponent S')
      if (masked) mask.apply(score_);
#pragma unroll
      for (float& score : score_) score = exp2_approx(score * x_.dims.exponent);
      fence_operand(score_);
    }
    if constexpr (!forms_dk) {
      shared_.a_ring.release(at_);
      start_dv();
      warpgroup_wait<0>();
      fence_operand(dv_);
      shared_.b_ring.release(at_);
      return;
    }
    if constexpr (!S::kGeneral) {
      if constexpr (S::kOverlap && forms_dv) start_dv();
      warpgroup_wait<S::kOverlap && forms_dv ? 1 : 0>();
      // dS' = P dP'
      fence_operand(dscore_);
#pragma unroll
      for (int i = 0; i < 32; ++i) dscore_[i] *= score_[i];
    }
    uint32_t dscore_words[16];
    pack<T>(dscore_words, dscore_);
    if constexpr (!S::kOverlap && forms_dv) start_dv();
    if constexpr (!forms_dv) shared_.b_ring.release(at_);
    // dK += dS' Q
    fence_operand(dk_);
    warpgroup_arrive();
    multiply_add<typename S::Rows>(dk_, dscore_words, q);
    warpgroup_commit();
    if constexpr (forms_dv) {
      warpgroup_wait<1>();
      fence_operand(dv_);
      shared_.b_ring.release(at_);
    }
    warpgroup_wait<0>();
    fence_operand(dk_);
    shared_.a_ring.release(at_);
  }

  /// Initialises accumulators [64][64] with a value for each column.
  static __device__ void start_from(float (&sum)[32], const float (&value)[kBlock]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 pair = *reinterpret_cast<const float2*>(value + column_of(j, 0));
      sum[4 * j] = sum[4 * j + 2] = pair.x;
      sum[4 * j + 1] = sum[4 * j + 3] = pair.y;
    }
    fence_operand(sum);
  }

  /// For general kernels: forms M P and E (docs/block_maps.md).
  __device__ void form_general(const BlockStats& stats, const Mask<1, false>& mask,
                               const StepPosition& at) {
    fence_operand(score_);
    fence_operand(dscore_);
    const AttentionDims<T>& p = x_.dims;
    const Scores<T, false> scores(p, at.b, at.h);
    const uint32_t kept =
        p.dropout
            ? Dropout(p, at.b, at.h).template kept<false, kBlock>(at.row + row_of_warp(), at.column)
            : ~0u;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = column_of(j, 0);
      fragments::form_dscores(
          four(score_, j), four(dscore_, j), scores, p.kept, mask.bits(j), kept >> 4 * j,
          [&](int e) {
            return RowStats{-stats.neg_lse[column + e % 2], -stats.neg_dot[column + e % 2]};
          },
          at.row + row_of(0), at.column + column, [](const float(&)[4]) {});
    }
  }

  static constexpr int kSums = S::kWidth / 2;

  using Base::at_, Base::at_resident_, Base::row_, Base::shared_, Base::x_;

  const Operand k_, q_;
  bool last_;
  float score_[32], dscore_[32], dk_[kSums], dv_[kSums];
};

template <class S, class T = typename S::Element>
__global__ void __launch_bounds__(S::kThreads, 1)
    key_kernel(const __grid_constant__ Backward<T> x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<KeyShared<S>*>(raw);
  const auto consume = [&] {
    if constexpr (S::kSplit == 1) {
      KeyGroup<S, T, true, true>(x, shared).run();
    } else if (group() % S::kSplit == 0) {
      KeyGroup<S, T, true, false>(x, shared).run();
    } else {
      KeyGroup<S, T, false, true>(x, shared).run();
    }
  };
  specialize_warps<S>(
      shared, consume, [&] { list_steps<S, false>(x, shared, no_work, x.k, x.v); },
      [&] { copy_queries<S>(x, shared); });
#endif
}

template <class S, class T = typename S::Element>
void launch_keys(const KernelContext& context, const Backward<T>& call) {
  static_assert(S::kStagesOfB == S::kStages);
  launch_persistent<key_kernel<S>, S, KeyShared<S>, false>(context, call);
}

template <class T, Kind kind>
void backward_keys(const KernelContext& context, const Backward<T>& call, int width) {
  constexpr bool general = kind == Kind::general;
  with_width<general>(
      width, [&]<int kWidth>() { launch_keys<KeyShapes<T, kWidth, general>>(context, call); });
}

}  // namespace sash::cuda::hopper
