#pragma once

#include "../../runtime/dependent_launch.cuh"
#include "../common/diagonals.cuh"
#include "backward.cuh"

/// dQ = scale dS K. Queries and cotangents are resident; keys and values are streamed.
///
/// Memory traffic: for a work tile, a block of threads reads q, g, out and lse once, and each
/// listed block of keys and values once. It writes dq and the statistics once.
namespace sash::cuda::hopper {

template <class S>
struct GeneralQueryShared : SharedStorage<S> {
  DiagonalSquare<kBlock, kBlock> square[S::kBlockRows];
};
template <class S>
using QueryShared = std::conditional_t<S::kGeneral, GeneralQueryShared<S>, SharedStorage<S>>;

/// Shapes by the width of tiles; the key of a general kernel is minus the width.
template <class T, int width, bool general>
using QueryShapes = ShapeOf<general ? -width : width, For<32, BackwardShape<T, 32, 4, 4, 2, false>>,
                            For<64, BackwardShape<T, 64, 3, 6, 2, false>>,
                            For<96, BackwardShape<T, 96, 3, 3, 2, false>>,
                            For<128, BackwardShape<T, 128, 3, 4, 1, false>>,
                            For<256, BackwardShape<T, 256, 2, 2, 1, false, 1, 1>>,
                            For<-64, General<BackwardShape<T, 64, 3, 2, 1, false>>>,
                            For<-128, General<BackwardShape<T, 128, 2, 2, 1, false>>>,
                            For<-256, General<BackwardShape<T, 256, 1, 2, 1, false>>>>;

/// For pairs of rows with the same blocks, such as layouts of blocks of 128 have: a work tile of
/// three rows would visit each block for one or two of them.
template <class T>
using PairedQueryShape = BackwardShape<T, 128, 2, 3, 2, true>;

/// Prefetches to the L2 cache the rows of `out` that the groups will read.
template <int kBlockRows, class T>
__device__ void prefetch_out(const Backward<T>& x, const WorkTile& work) {
  const Rows<const T> out = x.out.at(work.b, work.h);
  constexpr int line = 128 / sizeof(T);
  const int lines = (out.width + line - 1) / line;
#pragma unroll
  for (int i = 0; i < kBlockRows; ++i) {
    const int first = __shfl_sync(~0u, work.block_row, i) * kBlock;
    const int rows = min(kBlock, x.dims.queries - first);
    for (int at = lane(); at < rows * lines; at += 32) {
      cuda::prefetch(out.data + (first + at / lines) * out.row + at % lines * line);
    }
  }
}

/// A consumer group. It forms dq of a block row.
template <class S, class T>
class QueryGroup : public Consumer<QueryGroup<S, T>, S, Backward<T>, QueryShared<S>, true> {
  using Base = Consumer<QueryGroup, S, Backward<T>, QueryShared<S>, true>;

 public:
  __device__ QueryGroup(const Backward<T>& x, QueryShared<S>& shared)
      : Base(x, shared, group()), q_(shared.resident[0][0][row_]), k_(shared.a[0]) {}

  __device__ void compute(const SharedWorkTile<S::kBlockRows>& work) {
    form_stats(work);
    if constexpr (S::kGeneral) {
      if (x_.diagonals && work.block_row[row_] < x_.dims.map.query_blocks) {
        diagonals(work.b, work.h, work.block_row[row_]).clear();
      }
    }
#pragma unroll
    for (float& dq : dq_) dq = 0;
    const Operand q = q_.at(at_resident_.stage(), sizeof(shared_.resident[0]));
    take_steps(q, q + sizeof(shared_.resident[0][0]));
  }

  __device__ void reduce(float* buffer) { reduce_groups<S::kGroups>(dq_, buffer); }

  /// Rows [first, first + rows) of dq of head (b, h).
  __device__ void store(int b, int h, int first, int rows) {
    const float factor[2] = {x_.dims.scale, x_.dims.scale};
    store_rows(x_.dq.at(b, h), first, rows, dq_, factor);
  }

 private:
  /// Computes lse and D of this warp's 16 rows, and writes both to memory for the kernel of dk and
  /// dv.
  __device__ void form_stats(const SharedWorkTile<S::kBlockRows>& work) {
    // `across` lanes read a row, `parts` chunks each. A warp reads `down` rows at a time.
    constexpr int across = S::kWidth % 64 == 0 ? S::kWidth / 8 : 4, parts = S::kWidth / 8 / across;
    constexpr int down = 32 / across, turns = 16 / down;
    const AttentionDims<T>& p = x_.dims;
    const int block = work.block_row[row_], query = block * kBlock;
    const int64_t head = p.row_of(work.b, work.h);
    const int chunk = lane() % across, top = warp() % 4 * 16 + lane() / across;
    const Rows<const T> rows = x_.out.at(work.b, work.h);
    uint4 out[turns][parts];
#pragma unroll
    for (int i = 0; i < turns; ++i) {
      const int row = query + top + i * down;
#pragma unroll
      for (int part = 0; part < parts; ++part) {
        const int d = 8 * (chunk + part * across);
        const bool inside = row < p.queries && d < rows.width;
        out[i][part] =
            inside ? *reinterpret_cast<const uint4*>(rows.data + row * rows.row + d) : uint4{};
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
    const auto& g = shared_.resident[at_resident_.stage()][1][row_];
#pragma unroll
    for (int i = 0; i < turns; ++i) {
      const int row = top + i * down;
      float sum = 0;
#pragma unroll
      for (int part = 0; part < parts; ++part) {
        sum = dot_of<T>(g.read(row, chunk + part * across), out[i][part], sum);
      }
      sum = sum_over_lanes<across>(sum);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int mine = lane() / 4 + 8 * half;
        const float found = __shfl_sync(~0u, sum, mine % down * across);
        if (mine / down == i) dot[half] += found;
      }
    }
    BlockStats* stats = x_.stats + p.block_of(work.b, work.h) + block;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      lse_[half] = lse[half];
      dot_[half] = dot[half];
      if (block < p.map.query_blocks && lane() % 4 == 0) {
        stats->neg_lse[row_of(half)] = -lse[half] / (S::kGeneral ? 1.f : p.exponent);
        stats->neg_dot[row_of(half)] = -dot[half];
      }
    }
  }

  /// Makes a step the current step.
  __device__ void take(const typename Base::Listed& listed) {
    last_ = listed.last;
    masked_ = listed.tile[0] >= 0;
    visible_ = listed.tile[0] != kEmpty;
  }

  /// Starts to load the mask of the current step, whose keys have arrived.
  __device__ void load_mask() {
    const auto& step = this->step();
    if (masked_ || S::kGeneral) mask_.load(x_.dims, this->work(), step, row_);
    if constexpr (S::kGeneral) position_ = {this->work(), step, row_};
  }

  /// dQ, not yet scaled.
  __device__ void take_steps(Operand q, Operand g) {
    shared_.a_ring.wait(at_);
    take(this->read(at_));
    while (true) {
      load_mask();
      if (!visible_) {
        ended_ = last_;
        take(this->read_next(last_));
        this->release_step();
        at_.advance();
        if (ended_) return;
        shared_.a_ring.wait(at_);
        continue;
      }
      start_scores(q);
      start_dscores(g);
      if constexpr (S::kGeneral) {
        warpgroup_wait<0>();
        form_general();
      } else {
        warpgroup_wait<1>();
        form_weights();
        warpgroup_wait<0>();
        form_dscores();
      }
      shared_.b_ring.release(at_);
      auto before = at_;
      at_.advance();
      // The product dQ += dS K of a step runs while the weights of the next step are formed. A
      // hidden step ends this loop, so that its stages are released before the next wait.
      while (S::kOverlap && !ended_ && visible_) {
        shared_.a_ring.wait(at_);
        load_mask();
        start_scores(q);
        start_sums(before);
        start_dscores(g);
        warpgroup_wait<2>();
        form_weights();
        warpgroup_wait<0>();
        fence_operand(dq_);
        shared_.a_ring.release(before);
        form_dscores();
        shared_.b_ring.release(at_);
        before = at_;
        at_.advance();
      }
      start_sums(before);
      warpgroup_wait<0>();
      fence_operand(dq_);
      shared_.a_ring.release(before);
      if (ended_) return;
      shared_.a_ring.wait(at_);
    }
  }

  /// S = Q K'
  __device__ void start_scores(Operand q) {
    warpgroup_arrive();
    multiply_rows<typename S::Rows, typename S::Rows>(
        score_, q, k_.at(this->stage_of(at_), sizeof(shared_.a[0])));
    warpgroup_commit();
  }

  /// dP = g V'
  __device__ void start_dscores(Operand g) {
    shared_.b_ring.wait(at_);
    warpgroup_arrive();
    multiply_rows<typename S::Rows, typename S::Rows>(
        dscore_, g,
        k_.at(at_.template in<S::kStagesOfB>().stage(), sizeof(shared_.a[0])) + sizeof(shared_.a));
    warpgroup_commit();
  }

  /// P = 2^(exponent S - lse)
  __device__ void form_weights() {
    fence_operand(score_);
    if (masked_) mask_.apply(score_);
    next_ = this->read_next(last_);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      score_[i] = exp2_approx(fmaf(score_[i], x_.dims.exponent, -lse_[i / 2 % 2]));
    }
    fence_operand(score_);
  }

  /// dS = P (dP - D)
  __device__ void form_dscores() {
    fence_operand(dscore_);
#pragma unroll
    for (int i = 0; i < 32; ++i) dscore_[i] = score_[i] * (dscore_[i] - dot_[i / 2 % 2]);
    pack<T>(dscore_words_, dscore_);
    ended_ = last_;
    take(next_);
  }

  /// For general kernels: forms M P and E (docs/block_maps.md), and the gradients of bias and
  /// relative bias.
  __device__ void form_general() {
    fence_operand(score_);
    fence_operand(dscore_);
    const AttentionDims<T>& p = x_.dims;
    const auto [b, h, query, key] = position_;
    const Scores<T, true> scores(p, b, h);
    const auto sums = diagonals(b, h, query / kBlock);
    const uint32_t kept =
        p.dropout ? Dropout(p, b, h).template kept<true, kBlock>(query + row_of_warp(), key) : ~0u;
    const int row = query + row_of(0);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = key + column_of(j, 0);
      fragments::form_dscores(
          four(score_, j), four(dscore_, j), scores, p.kept, mask_.bits(j), kept >> 4 * j,
          [&](int e) {
            return RowStats{lse_[e / 2], dot_[e / 2]};
          },
          row, column,
          [&](const float(&ds)[4]) {
            if (x_.diagonals) sums.put(ds, row_of(0), column_of(j, 0));
            if (x_.dbias) put_dbias(x_.dbias, p.keys, ds, p.row_of(b, h) + row, column);
          });
    }
    if (x_.diagonals) {
      sync_group();
      sums.add(key - query - (p.keys - p.queries), sync_group);
    }
    pack<T>(dscore_words_, dscore_);
    ended_ = last_;
    take(this->read_next(last_));
  }

  __device__ Diagonals<kBlock, kBlock> diagonals(int b, int h, int query_block) const {
    const AttentionDims<T>& p = x_.dims;
    return {shared_.square[row_],
            x_.diagonals + (p.block_of(b, h) + query_block) * (2 * p.radius + 1), p.radius,
            static_cast<int>(threadIdx.x) % kGroup, kGroup};
  }

  /// dQ += dS K
  __device__ void start_sums(const typename SharedStorage<S>::StepState& at) {
    fence_operand(dq_);
    warpgroup_arrive();
    multiply_add<typename S::Rows>(dq_, dscore_words_,
                                   k_.at(this->stage_of(at), sizeof(shared_.a[0])));
    warpgroup_commit();
  }

  using Base::at_, Base::at_resident_, Base::row_, Base::shared_, Base::x_;

  const Operand q_, k_;
  bool last_, ended_, visible_, masked_;
  typename Base::Listed next_;
  Mask<1, true> mask_;
  StepPosition position_;
  float score_[32], dscore_[32], dq_[S::kWidth / 2];
  uint32_t dscore_words_[16];
  float lse_[2], dot_[2];
};

template <class S, class T = typename S::Element>
__global__ void __launch_bounds__(S::kThreads, 1)
    query_kernel(const __grid_constant__ Backward<T> x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<QueryShared<S>*>(raw);
  const AttentionDims<T>& p = x.dims;
  const auto begin = [&](const WorkTile& work) { prefetch_out<S::kBlockRows>(x, work); };
  const auto copy_keys = [&](int stage, int, int block, int b, int h, Barrier& full) {
    const int row = block == kNoBlock ? 0 : block * kBlock;
    copy_rows(shared.a[stage], 0, x.k, row, h, b, full);
  };
  const auto copy_values = [&](int stage, int, int block, int b, int h, Barrier& full) {
    const int row = min(block, static_cast<int>(p.map.key_blocks)) * kBlock;
    copy_rows(shared.b[stage], 0, x.v, row, h, b, full);
  };
  specialize_warps<S>(
      shared, [&] { QueryGroup<S, T>(x, shared).run(); },
      [&] { list_steps<S, true>(x, shared, begin, x.q, x.g); },
      [&] { copy_steps<S, true, true>(x, shared, 0, copy_keys, copy_values); });
#endif
}

template <class S, class T = typename S::Element>
void launch_queries(const KernelContext& context, const Backward<T>& call) {
  static_assert(S::kSplit == 1);
  launch_persistent<query_kernel<S>, S, QueryShared<S>, true>(context, call, !call.diagonals);
}

template <class T, Kind kind>
void backward_queries(const KernelContext& context, const Backward<T>& call, int width) {
  constexpr bool general = kind == Kind::general;
  with_width<general>(width, [&]<int kWidth>() {
    if constexpr (kWidth == 128 && !general) {
      if (call.dims.map.by_query.paired) {
        return launch_queries<PairedQueryShape<T>>(context, call);
      }
    }
    launch_queries<QueryShapes<T, kWidth, general>>(context, call);
  });
}

}  // namespace sash::cuda::hopper
