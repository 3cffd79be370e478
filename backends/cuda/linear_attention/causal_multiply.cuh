#pragma once

#include "../attention/mma/instructions.cuh"
#include "causal.cuh"

/// The groups of warps that multiply, in causal linear attention for sm_90.
namespace sash::cuda::linear {

/// sum[i, j] += sum over k of a[k, i] b[j, k], for 64 columns of a tile of type A and the 2 n rows
/// of a tile of type B.
template <class A, class B, int n>
__device__ void multiply_columns(float (&sum)[n], Operand a, Operand b) {
  static_assert(A::kRows == B::kWidth && B::kRows == 2 * n && A::kSlab == 64);
#pragma unroll
  for (int k = 0; k < A::kRows / 16; ++k) {
    hopper::detail::multiply_16<true, false>(
        std::type_identity<Half>{}, sum,
        (a + static_cast<uint32_t>(k * 16 * A::kRowBytes)).template descriptor<A>(),
        (b + column_step<B>(k)).template descriptor<B>(), true);
  }
}

/// A group that multiplies: 64 columns of C, of T and of the result.
template <class S>
class Multiplier {
  static constexpr int kBlocks = S::kGroups;  // of 64 rows of T
  using Tokens = typename S::Tokens;
  using Slab = typename S::Slab;
  using State = typename S::State;

 public:
  __device__ Multiplier(const CausalCall& x, const Segment& segment, typename S::Shared& shared)
      : x_(x), segment_(segment), shared_(shared), group_(group()) {}

  /// Forms T and the vector over all steps, and writes them to `to`.
  __device__ void add_up(float* to) {
    const Operand tiles(shared_.stage[0][0]), weights(shared_.weights[0]);
    clear();
    for (Steps steps(segment_); steps.more(); steps.advance(), at_.advance()) {
      const int stage = at_.stage();
      const Operand b = tiles.at(stage, sizeof(shared_.stage[0]));
      const Operand w = weights.at(S::kWeighted ? stage : 0, sizeof(typename S::Weights));
      shared_.ready[stage].wait(at_.parity());
      fence_sums();
      warpgroup_arrive();
      add_step(b, b + sizeof(Tokens) + slab(), w);
      warpgroup_commit();
      warpgroup_wait<0>();
      fence_sums();
      shared_.ring.release(at_);
    }
    each([&](float* pair, int row, int column) {
      *reinterpret_cast<float2*>(to + row * S::kWidth + column) = {pair[0], pair[1]};
    });
    each_of_vector([&](int at, float& x, float& lost) {
      to[S::kWidth * S::kWidth + 64 * group_ + at] = x + lost;
    });
  }

  /// Walks the steps, from the sums over earlier segments in `from` on, and writes rows of `to`.
  __device__ void walk(const float* from, const Rows<Half>& to) {
    const Operand tiles(shared_.stage[0][0]), state(shared_.state[group_]);
    load(from);
    store_state();
    float sum[32];
#pragma unroll 1
    for (Steps steps(segment_); steps.more(); steps.advance(), at_.advance()) {
      const int first = steps.row(), stage = at_.stage();
      float r[2] = {1, 1}, c[2] = {};
      if constexpr (S::kPass == Pass::dq) {
        const int64_t row0 = x_.row_of(segment_.b, segment_.h) + first;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const bool inside = first + row_of(half) < x_.p.queries;
          const float den = inside ? x_.den[row0 + row_of(half)] : 1.f;
          r[half] = __fdividef(1, den);
          c[half] = inside ? x_.dots[row0 + row_of(half)] * den : 0.f;
        }
      }
      const Operand a = tiles.at(stage, sizeof(shared_.stage[0]));
      const Operand b = a + sizeof(Tokens), own = b + sizeof(Tokens) + slab();
      shared_.ready[stage].wait(at_.parity());
      if (steps.is_first()) sync_group();  // T is in shared memory
      float score[32];
      fence_sums();
      warpgroup_arrive();
      multiply_rows<Tokens, Tokens>(score, a, b);
      warpgroup_commit();
      if (steps.is_first()) {
        warpgroup_arrive();
#pragma unroll
        for (int k = 0; k < S::kWidth / 16; ++k) {
          hopper::detail::multiply_16<false, true>(
              std::type_identity<Half>{}, sum,
              (a + column_step<Tokens>(k)).template descriptor<Tokens>(),
              (state + static_cast<uint32_t>(k * 16 * State::kRowBytes))
                  .template descriptor<State>(),
              k > 0);
        }
      }
      if constexpr (S::kByQuery) warpgroup_arrive();  // again, behind a branch
      add_step(b, own, weights_of(stage));
      warpgroup_commit();
      warpgroup_wait<1>();
      fence_operand(score);
      float total[2] = {};
      finish_scores(score, c, total, shared_.term[stage]);
      uint32_t words[16];
      pack<Half>(words, score);
      float normaliser[8] = {};
      warpgroup_arrive();
      if constexpr (S::kPass == Pass::out) {
        const Operand vector(shared_.normaliser[group_]);
        multiply_rows<Tokens, typename S::Vector>(normaliser, a, vector);
      }
      multiply_add<Slab>(sum, words, own);
      warpgroup_commit();
      warpgroup_wait<0>();
      fence_operand(sum);
      fence_operand(normaliser);
      fence_sums();
      shared_.ring.release(at_);
      if (!steps.is_last()) continue;

      if constexpr (S::kPass == Pass::dq || S::kPass == Pass::dk) add_vector(sum, c);
      if (!steps.ends()) {
        sync_group();  // all have read T and the vector
        store_state();
      }
      if constexpr (S::kSlope) apply_slope(sum, first);
      if constexpr (S::kPass == Pass::out) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = first + row_of(half);
          const float den =
              x_.eps + sum_over_quad(total[half] + normaliser[2 * half] + normaliser[2 * half + 1]);
          r[half] = __fdividef(1, den);
          if (group_ == 0 && lane() % 4 == 0 && row < x_.p.queries) {
            x_.den[x_.row_of(segment_.b, segment_.h) + row] = den;
          }
        }
      }
      Rows<Half> columns = to;
      columns.data += 64 * group_;
      columns.width -= 64 * group_;
      store_rows(columns, first, x_.p.queries - first, sum, r);
    }
  }

 private:
  /// Bytes to this group's columns of a tile.
  __device__ uint32_t slab() const { return static_cast<uint32_t>(group_ * Tokens::kSlabBytes); }

  __device__ Operand weights_of(int stage) const {
    if constexpr (S::kVectors == 0) {
      return Operand(shared_.stage[0][0]);
    } else {
      return Operand(shared_.weights[S::kWeighted ? stage : 0]);
    }
  }

  __device__ void clear() {
    for (auto& block : state_) {
#pragma unroll
      for (float& x : block) x = 0;
    }
    for (auto& block : vector_) {
#pragma unroll
      for (float& x : block) x = 0;
    }
  }

  __device__ void fence_sums() {
#pragma unroll
    for (auto& block : state_) fence_operand(block);
#pragma unroll
    for (auto& block : vector_) fence_operand(block);
  }

  /// T += B' C, and the vector.
  __device__ void add_step(Operand b, Operand own, Operand weights) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      multiply_transposed<Slab, Slab, true>(
          state_[block], b + static_cast<uint32_t>(block * Tokens::kSlabBytes), own);
    }
    if constexpr (S::kVectors > 0) {
#pragma unroll
      for (int block = 0; block < S::kVectors; ++block) {
        const uint32_t at =
            S::kVectors > 1 ? static_cast<uint32_t>(block * Tokens::kSlabBytes) : slab();
        multiply_columns<Slab, typename S::Weights>(vector_[block], S::kVectorOfB ? b + at : own,
                                                    weights);
      }
    }
  }

  /// Calls f(pair, row, column) for neighbouring elements of T.
  template <class F>
  __device__ void each(const F& f) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        f(state_[block] + i, 64 * block + row_of(i % 4 / 2), 64 * group_ + column_of(i / 4, 0));
      }
    }
  }
  /// Calls f(place, x, lost) for this thread's elements of the vector: x + lost.
  template <class F>
  __device__ void each_of_vector(const F& f) {
    if (lane() % 4 != 0) return;
#pragma unroll
    for (int block = 0; block < S::kVectors; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        f(64 * block + row_of(half), vector_[block][2 * half], vector_[block][2 * half + 1]);
      }
    }
  }

  /// States of memory are [D][D_v]; T of dq and dk is the transpose.
  __device__ void load(const float* from) {
    clear();
    each([&](float* to, int row, int column) {
      if constexpr (S::kSlope) {
        to[0] = from[column * S::kWidth + row];
        to[1] = from[(column + 1) * S::kWidth + row];
      } else {
        const float2 pair = *reinterpret_cast<const float2*>(from + row * S::kWidth + column);
        to[0] = pair.x;
        to[1] = pair.y;
      }
    });
    each_of_vector([&](int at, float& x, float&) {
      x = from[S::kWidth * S::kWidth + (S::kVectors > 1 ? 0 : 64 * group_) + at];
    });
  }

  /// Rounds T to shared memory, with the vector.
  __device__ void store_state() {
    const uint32_t to = S::lane_address(shared_.state[group_].address());
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      uint32_t words[16];
      pack<Half>(words, state_[block]);
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const uint32_t* const four = words + 4 * j;
        store_matrices<false>((to ^ 32 * j) + static_cast<uint32_t>(block * 64 * State::kRowBytes),
                              four[0], four[1], four[2], four[3]);
      }
    }
    each_of_vector([&](int at, float& x, float& lost) {
      if constexpr (S::kPass == Pass::out) {
        S::put_both(shared_.normaliser[group_], at, x + lost);
      } else {
        shared_.vector[group_][at] = x + lost;
      }
    });
    fence_proxy_async();
  }

  /// Hides later keys, with what dq and dk add. Sums the scores of a row, for `out`.
  __device__ void finish_scores(float (&score)[32], const float (&c)[2], float (&total)[2],
                                const float* term) const {
    const bool by_query = !S::kByQuery;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int row = row_of(i % 4 / 2), column = column_of(i / 4, i);
      if constexpr (S::kPass == Pass::dq) score[i] += c[i % 4 / 2];
      if constexpr (S::kPass == Pass::dk) score[i] += term[column];
      if (by_query ? column > row : column < row) score[i] = 0;
      if constexpr (S::kPass == Pass::out) total[i % 4 / 2] += score[i];
    }
  }

  /// The part of A T that is a vector, times c for dq.
  __device__ void add_vector(float (&sum)[32], const float (&c)[2]) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float x = shared_.vector[group_][column_of(i / 4, i)];
      sum[i] += S::kPass == Pass::dq ? c[i % 4 / 2] * x : x;
    }
  }

  /// Times phi'(x), 0 for hidden keys.
  __device__ void apply_slope(float (&sum)[32], int first) {
    shared_.slope_ring.wait(at_slope_);
    const uint32_t from = S::lane_address(shared_.slope[at_slope_.stage()].address() + slab());
    const int end = S::kPass == Pass::dk ? x_.key_end(segment_.b) : 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t words[4];
      mma::load_matrices(words, from ^ static_cast<uint32_t>(32 * j));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = unpack(std::type_identity<Half>{}, words[i]);
        float* const pair = sum + 8 * j + 2 * i;
        const bool inside = S::kPass != Pass::dk || first + row_of(i % 2) < end;
        pair[0] = inside ? pair[0] * slope(x.x) : 0.f;
        pair[1] = inside ? pair[1] * slope(x.y) : 0.f;
      }
    }
    shared_.slope_ring.release(at_slope_);
    at_slope_.advance();
  }
  static __device__ float slope(float x) { return min(exp_approx(x), 1.f); }

  const CausalCall& x_;
  const Segment& segment_;
  typename S::Shared& shared_;
  const int group_;  ///< asked once, since `group` needs all lanes of a warp
  PipelineState<S::kStages> at_;
  PipelineState<2> at_slope_;
  float state_[kBlocks][32], vector_[S::kVectors > 0 ? S::kVectors : 1][8];
};

}  // namespace sash::cuda::linear
