#pragma once

#include "../common/attention_fragments_scores.cuh"
#include "attention_hopper_walk.cuh"

/// What the two backward kernels share: from the saved log-sum-exp both form, each for itself, the
/// probabilities P and the slopes dS of their scores. So every sum has one owner and one order, and
/// neither P nor dS leaves the registers.
namespace sash::cuda::hopper {

/// Of the queries of a block: what sums of q . k start from, such that 2^(exponent sum) = P, and
/// what those of g . v start from, such that dS = P sum: -lse / scale and -D, where
/// D = rowsum(g . out) - g_lse. Past the end of the queries, -infinity and 0, from which follows
/// P = 0. General kernels, whose scores are not those sums, have -lse to the base 2.
struct alignas(128) Terms {
  float score[kBlock], slope[kBlock];
};

template <class T>
struct Backward {
  Problem<T> problem;
  CUtensorMap q, k, v, g;
  const T* out;
  const float *lse, *g_lse;
  T *dq, *dk, *dv;
  float* dbias;           ///< null if not wanted
  Terms* terms;           ///< [B, H, query blocks], made by the kernel of dq
  CUtensorMap terms_map;  ///< of these
  float* diagonals;  ///< [B, H, query blocks, 2 R + 1]: sums along diagonals; null if not wanted
  int qk_width, v_width;
  Schedule schedule;
};

/// Writes dq and the terms; where the call is not plain, dbias and diagonals too.
template <class T, int width>
void backward_queries(const KernelContext& context, const Backward<T>& call);
template <class T, int width>
void backward_queries_general(const KernelContext& context, const Backward<T>& call);

/// Then dk and dv.
template <class T, int width>
void backward_keys(const KernelContext& context, const Backward<T>& call);
template <class T, int width>
void backward_keys_general(const KernelContext& context, const Backward<T>& call);

/// Heads of `width` features; `lines` blocks of 64 queries or keys, which meet one block of the
/// other axis a step; `per_sm` blocks of threads share a multiprocessor. A line has `split` groups.
/// Rings of `stages` buffers, but for the second of each pair of tiles, which may have half as
/// many.
template <class T, int width, int lines, int stages, int resident, int per_sm, bool chains,
          int split = 1, int b_stages = stages>
struct BackwardShape : Groups<lines * split, per_sm> {
  using Element = T;
  static constexpr int kWidth = width, kLines = lines, kSplit = split, kResident = resident;
  static constexpr int kWorks = resident + 1, kStages = stages, kStagesOfB = b_stages;
  static constexpr bool kChains = chains;
  using Rows = Tile<T, width, kBlock>;
};

/// The tiles of both kernels: those that stay while a line is walked, in pairs, and a ring of pairs
/// that come and go.
template <class S>
struct BackwardShared {
  typename S::Rows own[S::kResident][2][S::kLines];
  typename S::Rows a[S::kStages], b[S::kStagesOfB];
  Work<S::kLines> work[S::kWorks];
  Step<S::kLines, 1> step[S::kStages];
  Barrier work_full[S::kWorks];
  Barrier own_full[S::kResident], own_empty[S::kResident];
  Barrier a_full[S::kStages], a_empty[S::kStages];
  Barrier b_full[S::kStagesOfB], b_empty[S::kStagesOfB];

  __device__ void init() {
    constexpr uint32_t readers = 4 * S::kGroups;  // one lane of each warp that multiplies
    if (threadIdx.x == 0) {
      for (Barrier& full : work_full) full.init(S::kLines);
      for (int i = 0; i < S::kResident; ++i) {
        own_full[i].init(1);
        own_empty[i].init(readers);
      }
      for (int i = 0; i < S::kStages; ++i) {
        a_full[i].init(1 + S::kLines);  // the copies, and those who note the step
        a_empty[i].init(readers);
      }
      for (int i = 0; i < S::kStagesOfB; ++i) {
        b_full[i].init(1);
        b_empty[i].init(readers);
      }
      publish_barriers();
    }
    __syncthreads();
  }
};

/// Copies the tiles that stay for `work`: the rows of its lines of `x` and `y`.
template <class S>
__device__ void copy_own(BackwardShared<S>& shared, RingPlace<S::kResident>& at,
                         const WorkAhead& work, const CUtensorMap& x, const CUtensorMap& y) {
  const int own = at.stage();
  Barrier& full = shared.own_full[own];
  shared.own_empty[own].wait(at.parity() ^ 1);
  if (is_chosen()) full.arrive_and_expect(2 * S::kLines * S::Rows::kBytes);
  for (int i = 0; i < S::kLines; ++i) {
    const int row = __shfl_sync(~0u, work.line, i) * kBlock;
    if (!is_chosen()) continue;
    copy_rows(shared.own[own][0][i], 0, x, row, work.h, work.b, full);
    copy_rows(shared.own[own][1][i], 0, y, row, work.h, work.b, full);
  }
  at.advance();
}

}  // namespace sash::cuda::hopper
