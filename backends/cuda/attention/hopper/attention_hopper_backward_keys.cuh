#pragma once

#include "attention_hopper_backward.cuh"

/// dK = scale dS' Q and dV = P' g, by blocks of threads that own keys and meet the queries of all
/// heads of their group that see these. Rows of their scores are keys: they form S' = K Q' and
/// dP' = V g'. Where the sums of a line do not fit the registers of one group, two share it: one
/// forms dK, the other S' once more and dV, so that neither waits for the other.
///
/// Memory: a block reads its rows of k and v once and each block of q, g and their terms that one
/// of its lines lists once a head; it writes its rows of dk and dv once.
namespace sash::cuda::hopper {

template <class S>
struct KeyShared : SharedStorage<S> {
  Terms terms[S::kStages];  ///< with the queries of a stage
};

/// Shapes by the width of tiles.
template <class T, int width, bool general>
struct KeyShapes;
template <class T>
struct KeyShapes<T, 32, false> : BackwardShape<T, 32, 3, 6, 2, 1, false> {};
template <class T>
struct KeyShapes<T, 64, false> : BackwardShape<T, 64, 3, 6, 2, 1, false> {};
template <class T>
struct KeyShapes<T, 96, false> : BackwardShape<T, 96, 2, 4, 2, 1, false> {};
template <class T>
struct KeyShapes<T, 128, false> : BackwardShape<T, 128, 2, 3, 2, 1, true> {};
template <class T>
struct KeyShapes<T, 256, false> : BackwardShape<T, 256, 1, 2, 1, 1, false, 2> {};
template <class T>
struct KeyShapes<T, 64, true> : General<BackwardShape<T, 64, 2, 2, 2, 1, false>> {};
template <class T>
struct KeyShapes<T, 128, true> : General<BackwardShape<T, 128, 2, 2, 1, 1, false>> {};
template <class T>
struct KeyShapes<T, 256, true> : General<BackwardShape<T, 256, 1, 2, 1, 1, false, 2>> {};

/// A group that multiplies, and forms dk, dv or both of a row of the map.
template <class S, class T, bool forms_dk, bool forms_dv>
class KeyGroup
    : public Consumer<KeyGroup<S, T, forms_dk, forms_dv>, S, Backward<T>, KeyShared<S>, false> {
  using Base = Consumer<KeyGroup, S, Backward<T>, KeyShared<S>, false>;

 public:
  __device__ KeyGroup(const Backward<T>& x, KeyShared<S>& shared)
      : Base(x, shared, group() / S::kSplit), k_(shared.resident[0][0][line_]), q_(shared.a[0]) {}

  __device__ void compute(const Work<S::kLines>&) {
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

  __device__ void reduce(float* room) {
    if constexpr (S::kLines > 1) {
      add_up<S::kGroups>(dk_, room);
      add_up<S::kGroups>(dv_, room);
    }
  }

  /// To row `first` of dk and dv and on, of which `rows` exist.
  __device__ void store(int64_t first, int rows) {
    const float scale[2] = {x_.problem.scale, x_.problem.scale}, one[2] = {1.f, 1.f};
    if constexpr (forms_dk) {
      store_rows(x_.dk + first * x_.qk_width, rows, x_.qk_width, dk_, scale);
    }
    if constexpr (forms_dv) {
      store_rows(x_.dv + first * x_.v_width, rows, x_.v_width, dv_, one);
    }
  }

 private:
  __device__ void take_step(Operand k, Operand v) {
    const int s = at_.stage();
    shared_.a_ring.wait(at_);
    const int tile = shared_.step[s].tile[line_][0];
    last_ = shared_.step[s].last;
    if (tile == kAbsent) {
      shared_.b_ring.wait(at_);
      shared_.a_ring.release(at_);
      shared_.b_ring.release(at_);
      return;
    }
    Mask<1, false> mask;
    const bool masked = tile >= 0;
    if (masked || S::kGeneral) {
      mask.load(x_.problem, this->work(), shared_.step[s], line_);
    }
    const Operand q = q_.at(s, sizeof(shared_.a[0])), g = q + sizeof(shared_.a);
    const Terms& terms = shared_.terms[s];
    // S' = K Q' - lse / scale and dP' = V g' - D; general kernels subtract later.
    constexpr bool add = !S::kGeneral;
    if constexpr (add) start_from(score_, terms.score);
    if constexpr (add && forms_dk) start_from(slope_, terms.slope);
    begin_products();
    multiply_rows<typename S::Rows, typename S::Rows, add>(score_, k, q);
    end_products();
    shared_.b_ring.wait(at_);
    if constexpr (forms_dk) {
      begin_products();
      multiply_rows<typename S::Rows, typename S::Rows, add>(slope_, v, g);
      end_products();
    }
    uint32_t words[16];
    // dV += P' g
    const auto start_dv = [&] {
      pack<T>(words, score_);
      settle(dv_);
      begin_products();
      multiply_add<typename S::Rows>(dv_, words, g);
      end_products();
    };
    if constexpr (S::kGeneral) {
      wait_for_products<0>();
      form_general(terms, mask, ScoresAt(this->work(), shared_.step[s], line_));
    } else {
      wait_for_products<forms_dk ? 1 : 0>();
      settle(score_);
      // P = 2^(exponent S')
      if (masked) mask.hide(score_);
#pragma unroll
      for (float& score : score_) score = exp2_approx(score * x_.problem.exponent);
      settle(score_);
    }
    if constexpr (!forms_dk) {
      shared_.a_ring.release(at_);
      start_dv();
      wait_for_products<0>();
      settle(dv_);
      shared_.b_ring.release(at_);
      return;
    }
    if constexpr (!S::kGeneral) {
      if constexpr (S::kChains && forms_dv) start_dv();
      wait_for_products<S::kChains && forms_dv ? 1 : 0>();
      // dS' = P dP'
      settle(slope_);
#pragma unroll
      for (int i = 0; i < 32; ++i) slope_[i] *= score_[i];
    }
    uint32_t slope_words[16];
    pack<T>(slope_words, slope_);
    if constexpr (!S::kChains && forms_dv) start_dv();
    if constexpr (!forms_dv) shared_.b_ring.release(at_);
    // dK += dS' Q
    settle(dk_);
    begin_products();
    multiply_add<typename S::Rows>(dk_, slope_words, q);
    end_products();
    if constexpr (forms_dv) {
      wait_for_products<1>();
      settle(dv_);
      shared_.b_ring.release(at_);
    }
    wait_for_products<0>();
    settle(dk_);
    shared_.a_ring.release(at_);
  }

  /// Lets sums [64][64] start from a value for each column.
  static __device__ void start_from(float (&sum)[32], const float (&value)[kBlock]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 pair = *reinterpret_cast<const float2*>(value + column_of(j, 0));
      sum[4 * j] = sum[4 * j + 2] = pair.x;
      sum[4 * j + 1] = sum[4 * j + 3] = pair.y;
    }
    settle(sum);
  }

  /// P with dropout's factors, and E, of general kernels.
  __device__ void form_general(const Terms& terms, const Mask<1, false>& mask, const ScoresAt& at) {
    settle(score_);
    settle(slope_);
    const Problem<T>& p = x_.problem;
    const Scores<T, false> scores(p, at.b, at.h);
    const uint32_t kept =
        p.dropout
            ? Dropout(p, at.b, at.h).template kept<false, kBlock>(at.row + row_of_warp(), at.column)
            : ~0u;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = column_of(j, 0);
      fragments::form_slopes(
          four(score_, j), four(slope_, j), scores, p.kept, mask.seen(j), kept >> 4 * j,
          [&](int e) {
            return RowTerms{-terms.score[column + e % 2], -terms.slope[column + e % 2]};
          },
          at.row + row_of(0), at.column + column, [](const float(&)[4]) {});
    }
  }

  static constexpr int kSums = S::kWidth / 2;

  using Base::at_, Base::at_resident_, Base::line_, Base::shared_, Base::x_;

  const Operand k_, q_;
  bool last_;
  float score_[32], slope_[32], dk_[kSums], dv_[kSums];
};

template <class S, class T = typename S::Element>
__global__ void __launch_bounds__(S::kThreads, S::kPerSm)
    key_kernel(const __grid_constant__ Backward<T> x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<KeyShared<S>*>(raw);
  const auto begin = [](const WorkAhead&) {};
  const auto consume = [&] {
    if constexpr (S::kSplit == 1) {
      KeyGroup<S, T, true, true>(x, shared).run();
    } else if (group() % S::kSplit == 0) {
      KeyGroup<S, T, true, false>(x, shared).run();
    } else {
      KeyGroup<S, T, false, true>(x, shared).run();
    }
  };
  const auto produce_queries = [&] {
    const auto copy = [&](int stage, int, int found, int b, int h, Barrier& full) {
      const int block = found == kNone ? 0 : found;
      copy_rows(shared.a[stage], 0, x.q, block * kBlock, h, b, full);
      copy_row(&shared.terms[stage], x.terms_map,
               static_cast<int>(x.problem.block_of(b, h)) + block, full);
    };
    produce<S, false>(x, shared, shared.a_ring, sizeof(Terms), begin, copy, x.k, x.v);
  };
  const auto produce_cotangents = [&] {
    const auto copy = [&](int stage, int, int block, int b, int h, Barrier& full) {
      const int row = min(block, static_cast<int>(x.problem.map.query_blocks)) * kBlock;
      copy_rows(shared.b[stage], 0, x.g, row, h, b, full);
    };
    produce<S, false>(x, shared, shared.b_ring, 0, begin, copy);
  };
  specialize_warps<S>(shared, consume, produce_queries, produce_cotangents);
#endif
}

template <class S, class T = typename S::Element>
void launch_keys(const KernelContext& context, const Backward<T>& call) {
  static_assert(S::kStagesOfB == S::kStages);
  static constinit std::atomic<uint64_t> allowed{0};
  launch_walk<S, KeyShared<S>>(context, key_kernel<S>, allowed, call, call.problem.map.by_key,
                               call.problem.map.key_blocks, call.problem.groups);
}

template <class T, bool general>
void backward_keys(const KernelContext& context, const Backward<T>& call, int width) {
  with_width<general>(
      width, [&]<int kWidth>() { launch_keys<KeyShapes<T, kWidth, general>>(context, call); });
}

}  // namespace sash::cuda::hopper
