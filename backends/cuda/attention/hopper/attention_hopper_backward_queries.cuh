#pragma once

#include "../common/attention_diagonals.cuh"
#include "attention_hopper_backward.cuh"

/// dQ = scale dS K by blocks of threads that own queries and meet the keys that these see.
///
/// Memory: a block reads its rows of q, g, out and lse once and each block of keys and values that
/// one of its lines lists once; it writes its rows of dq and their terms once.
namespace sash::cuda::hopper {

template <class S>
struct GeneralQueryShared : SharedStorage<S> {
  DiagonalSquare<kBlock, kBlock> square[S::kLines];
};
template <class S>
using QueryShared = std::conditional_t<S::kGeneral, GeneralQueryShared<S>, SharedStorage<S>>;

/// Shapes by the width of tiles.
template <class T, int width, bool general>
struct QueryShapes;
template <class T>
struct QueryShapes<T, 32, false> : BackwardShape<T, 32, 4, 4, 2, 1, false> {};
template <class T>
struct QueryShapes<T, 64, false> : BackwardShape<T, 64, 3, 6, 2, 1, false> {};
template <class T>
struct QueryShapes<T, 96, false> : BackwardShape<T, 96, 3, 3, 2, 1, false> {};
template <class T>
struct QueryShapes<T, 128, false> : BackwardShape<T, 128, 3, 4, 1, 1, false> {};
template <class T>
struct QueryShapes<T, 256, false> : BackwardShape<T, 256, 2, 2, 1, 1, false, 1, 1> {};
template <class T>
struct QueryShapes<T, 64, true> : General<BackwardShape<T, 64, 3, 2, 1, 1, false>> {};
template <class T>
struct QueryShapes<T, 128, true> : General<BackwardShape<T, 128, 2, 2, 1, 1, false>> {};
template <class T>
struct QueryShapes<T, 256, true> : General<BackwardShape<T, 256, 1, 2, 1, 1, false>> {};

/// Brings the rows of `out` that the groups will read closer.
template <class T>
__device__ void prefetch_out(const Backward<T>& x, const WorkAhead& work) {
  const Problem<T>& p = x.problem;
  const int row = work.line * kBlock, rows = min(kBlock, p.queries - row);
  if (rows <= 0) return;
  prefetch(x.out + (p.row_of(work.b, work.h) + row) * x.v_width,
           static_cast<uint32_t>(rows * x.v_width) * static_cast<uint32_t>(sizeof(T)));
}

/// A group that multiplies, with the queries of a row.
template <class S, class T>
class QueryGroup : public Consumer<QueryGroup<S, T>, S, Backward<T>, QueryShared<S>, true> {
  using Base = Consumer<QueryGroup, S, Backward<T>, QueryShared<S>, true>;

 public:
  __device__ QueryGroup(const Backward<T>& x, QueryShared<S>& shared)
      : Base(x, shared, group()), q_(shared.resident[0][0][line_]), k_(shared.a[0]) {}

  __device__ void compute(const Work<S::kLines>& work) {
    form_terms(work);
    if constexpr (S::kGeneral) {
      if (x_.diagonals && work.line[line_] < x_.problem.map.query_blocks) {
        diagonals(work.b, work.h, work.line[line_]).clear();
      }
    }
#pragma unroll
    for (float& dq : dq_) dq = 0;
    const Operand q = q_.at(at_resident_.stage(), sizeof(shared_.resident[0]));
    walk(q, q + sizeof(shared_.resident[0][0]));
  }

  __device__ void reduce(float* room) { add_up<S::kGroups>(dq_, room); }

  /// To row `first` of dq and on, of which `rows` exist.
  __device__ void store(int64_t first, int rows) {
    const float factor[2] = {x_.problem.scale, x_.problem.scale};
    store_rows(x_.dq + first * x_.qk_width, rows, x_.qk_width, dq_, factor);
  }

 private:
  /// D of this warp's 16 rows, their log-sum-exps, and both to memory for the kernel of dk and dv.
  __device__ void form_terms(const Work<S::kLines>& work) {
    // Lanes across a row, each with `parts` chunks of it; rows at a time.
    constexpr int across = S::kWidth % 64 == 0 ? S::kWidth / 8 : 4, parts = S::kWidth / 8 / across;
    constexpr int down = 32 / across, turns = 16 / down;
    const Problem<T>& p = x_.problem;
    const int line = work.line[line_], query = line * kBlock;
    const int64_t head = p.row_of(work.b, work.h);
    const int chunk = lane() % across, top = warp() % 4 * 16 + lane() / across;
    uint4 out[turns][parts];
#pragma unroll
    for (int i = 0; i < turns; ++i) {
      const int row = query + top + i * down;
#pragma unroll
      for (int part = 0; part < parts; ++part) {
        const int d = 8 * (chunk + part * across);
        const bool inside = row < p.queries && d < x_.v_width;
        out[i][part] = inside
                           ? *reinterpret_cast<const uint4*>(x_.out + (head + row) * x_.v_width + d)
                           : uint4{};
      }
    }
    float lse[2], dot[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query + row_of(half);
      lse[half] = row < p.queries ? x_.lse[head + row] * kLog2E : kInfinity;
      if (x_.g_lse && row < p.queries) dot[half] = -x_.g_lse[head + row];
    }
    shared_.resident_ring.wait(at_resident_);
    const auto& g = shared_.resident[at_resident_.stage()][1][line_];
#pragma unroll
    for (int i = 0; i < turns; ++i) {
      const int row = top + i * down;
      float sum = 0;
#pragma unroll
      for (int part = 0; part < parts; ++part) {
        sum = dot_of(g.read(row, chunk + part * across), out[i][part], sum);
      }
#pragma unroll
      for (int step = across / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int mine = lane() / 4 + 8 * half;
        const float found = __shfl_sync(~0u, sum, mine % down * across);
        if (mine / down == i) dot[half] += found;
      }
    }
    Terms* terms = x_.terms + p.block_of(work.b, work.h) + line;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      lse_[half] = lse[half];
      dot_[half] = dot[half];
      if (line < p.map.query_blocks && lane() % 4 == 0) {
        terms->score[row_of(half)] = -lse[half] / (S::kGeneral ? 1.f : p.exponent);
        terms->slope[row_of(half)] = -dot[half];
      }
    }
  }

  /// The products of eight pairs of elements, added to `sum`.
  static __device__ float dot_of(const uint4& a, const uint4& b, float sum) {
    const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 u = unpack(std::type_identity<T>{}, x[i]);
      const float2 w = unpack(std::type_identity<T>{}, y[i]);
      sum = fmaf(u.x, w.x, fmaf(u.y, w.y, sum));
    }
    return sum;
  }

  /// Whether the step at hand shows this group something; once its keys are there.
  __device__ bool look() {
    shared_.a_ring.wait(at_);
    const auto& step = this->step();
    last_ = step.last;
    const int tile = step.tile[line_][0];
    masked_ = tile >= 0;
    if (masked_ || S::kGeneral) mask_.load(x_.problem, this->work(), step, line_);
    if constexpr (S::kGeneral) at_scores_ = {this->work(), step, line_};
    return tile != kAbsent;
  }

  __device__ void advance() {
    ended_ = last_;
    at_.advance();
  }

  /// dQ, not yet scaled.
  __device__ void walk(Operand q, Operand g) {
    ended_ = false;
    while (!ended_) {
      if (!look()) {
        shared_.b_ring.wait(at_);
        shared_.a_ring.release(at_);
        shared_.b_ring.release(at_);
        advance();
        continue;
      }
      start_scores(q);
      start_slopes(g);
      if constexpr (S::kGeneral) {
        wait_for_products<0>();
        form_general();
      } else {
        wait_for_products<1>();
        form_weights();
        wait_for_products<0>();
        form_slopes();
      }
      shared_.b_ring.release(at_);
      PipelineState<S::kStages> before = at_;
      advance();
      // The last product of a step runs while the weights of the next are formed. A step that shows
      // nothing ends the chain, so that no buffer waits for what comes after it.
      while (S::kChains && !ended_ && look()) {
        start_scores(q);
        start_sums(before);
        start_slopes(g);
        wait_for_products<2>();
        form_weights();
        wait_for_products<0>();
        settle(dq_);
        shared_.a_ring.release(before);
        form_slopes();
        shared_.b_ring.release(at_);
        before = at_;
        advance();
      }
      start_sums(before);
      wait_for_products<0>();
      settle(dq_);
      shared_.a_ring.release(before);
    }
  }

  /// S = Q K'
  __device__ void start_scores(Operand q) {
    begin_products();
    multiply_rows<typename S::Rows, typename S::Rows>(score_, q,
                                                      k_.at(at_.stage(), sizeof(shared_.a[0])));
    end_products();
  }

  /// dP = g V'
  __device__ void start_slopes(Operand g) {
    shared_.b_ring.wait(at_);
    begin_products();
    multiply_rows<typename S::Rows, typename S::Rows>(
        slope_, g,
        k_.at(at_.template in<S::kStagesOfB>().stage(), sizeof(shared_.a[0])) + sizeof(shared_.a));
    end_products();
  }

  /// P = 2^(exponent S - lse)
  __device__ void form_weights() {
    settle(score_);
    if (masked_) mask_.hide(score_);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      score_[i] = exp2_approx(fmaf(score_[i], x_.problem.exponent, -lse_[i / 2 % 2]));
    }
    settle(score_);
  }

  /// dS = P (dP - D)
  __device__ void form_slopes() {
    settle(slope_);
#pragma unroll
    for (int i = 0; i < 32; ++i) slope_[i] = score_[i] * (slope_[i] - dot_[i / 2 % 2]);
    pack<T>(slope_words_, slope_);
  }

  /// P and dS of general kernels, the slopes of bias and relative bias, and E instead of dS.
  __device__ void form_general() {
    settle(score_);
    settle(slope_);
    const Problem<T>& p = x_.problem;
    const auto [b, h, query, key] = at_scores_;
    const Scores<T, true> scores(p, b, h);
    const auto sums = diagonals(b, h, query / kBlock);
    const uint32_t kept =
        p.dropout ? Dropout(p, b, h).template kept<true, kBlock>(query + row_of_warp(), key) : ~0u;
    const int row = query + row_of(0);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = key + column_of(j, 0);
      fragments::form_slopes(
          four(score_, j), four(slope_, j), scores, p.kept, mask_.seen(j), kept >> 4 * j,
          [&](int e) {
            return RowTerms{lse_[e / 2], dot_[e / 2]};
          },
          row, column,
          [&](const float(&ds)[4]) {
            if (x_.diagonals) sums.put(ds, row_of(0), column_of(j, 0));
            if (x_.dbias) put_dbias(x_.dbias, p.keys, ds, p.row_of(b, h) + row, column);
          });
    }
    if (x_.diagonals) {
      meet_group();
      sums.add(key - query - (p.keys - p.queries), meet_group);
    }
    pack<T>(slope_words_, slope_);
  }

  /// Of block `line` of queries.
  __device__ Diagonals<kBlock, kBlock> diagonals(int b, int h, int line) const {
    const Problem<T>& p = x_.problem;
    return {shared_.square[line_], x_.diagonals + (p.block_of(b, h) + line) * (2 * p.radius + 1),
            p.radius, static_cast<int>(threadIdx.x) % kGroup, kGroup};
  }

  /// dQ += dS K
  __device__ void start_sums(const PipelineState<S::kStages>& at) {
    settle(dq_);
    begin_products();
    multiply_add<typename S::Rows>(dq_, slope_words_, k_.at(at.stage(), sizeof(shared_.a[0])));
    end_products();
  }

  using Base::at_, Base::at_resident_, Base::line_, Base::shared_, Base::x_;

  const Operand q_, k_;
  bool last_, ended_, masked_;
  Mask<1, true> mask_;
  ScoresAt at_scores_;
  float score_[32], slope_[32], dq_[S::kWidth / 2];
  uint32_t slope_words_[16];
  float lse_[2], dot_[2];
};

template <class S, class T = typename S::Element>
__global__ void __launch_bounds__(S::kThreads, S::kPerSm)
    query_kernel(const __grid_constant__ Backward<T> x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<QueryShared<S>*>(raw);
  const Problem<T>& p = x.problem;
  const auto begin = [&](const WorkAhead& work) { prefetch_out(x, work); };
  const auto produce_keys = [&] {
    const auto copy = [&](int stage, int, int block, int b, int h, Barrier& full) {
      const int row = block == kNone ? 0 : block * kBlock;
      copy_rows(shared.a[stage], 0, x.k, row, h, b, full);
    };
    produce<S, true>(x, shared, shared.a_ring, 0, begin, copy, x.q, x.g);
  };
  const auto produce_values = [&] {
    const auto copy = [&](int stage, int, int block, int b, int h, Barrier& full) {
      const int row = min(block, static_cast<int>(p.map.key_blocks)) * kBlock;
      copy_rows(shared.b[stage], 0, x.v, row, h, b, full);
    };
    produce<S, true>(x, shared, shared.b_ring, 0, begin, copy);
  };
  specialize_warps<S>(
      shared, [&] { QueryGroup<S, T>(x, shared).run(); }, produce_keys, produce_values);
#endif
}

template <class S, class T = typename S::Element>
void launch_queries(const KernelContext& context, const Backward<T>& call) {
  static_assert(S::kSplit == 1);
  static constinit std::atomic<uint64_t> allowed{0};
  launch_walk<S, QueryShared<S>>(context, query_kernel<S>, allowed, call, call.problem.map.by_query,
                                 call.problem.map.query_blocks, call.problem.heads,
                                 !call.diagonals);
}

template <class T, bool general>
void backward_queries(const KernelContext& context, const Backward<T>& call, int width) {
  with_width<general>(
      width, [&]<int kWidth>() { launch_queries<QueryShapes<T, kWidth, general>>(context, call); });
}

}  // namespace sash::cuda::hopper
