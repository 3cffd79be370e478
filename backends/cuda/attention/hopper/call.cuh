#pragma once

#include "../../../../ops/kernels/attention.h"
#include "../common/kept.cuh"
#include "../common/rows.cuh"
#include "launch.cuh"

/// The parameters of the sm_90 kernels, and their launchers. The kernels take long to compile, so
/// each kind of a launcher is instantiated in a separate source (cmake/SashSources.cmake).
namespace sash::cuda::hopper {

template <class T>
struct Forward {
  AttentionDims<T> dims;
  CUtensorMap q, k, v;
  Rows<T> out;
  float* lse;
  CUtensorMap kept;  ///< of the bit tiles `by_query` (KeptCall), for Kind::dropout
  TileOrder order;
};

/// Writes out and lse, in tiles of `width` features. Kind::dropout takes widths of 64 and 128, for
/// calls that read bit tiles (`keeps_tiles` in common/kept.cuh).
template <class T, Kind kind>
void forward(const KernelContext& context, const Forward<T>& call, int width);

/// The row statistics of a query block, with D = rowsum(g . out) - g_lse. The accumulators of q . k
/// start from -lse / scale, so that P = 2^(exponent sum). The accumulators of g . v start from -D,
/// so that dS = P sum. Past the last query the values are -infinity and 0, so that P = 0. General
/// kernels store -lse to the base 2 instead of -lse / scale. So do the one-pass kernels, in which
/// the rows are in the order of `place_of_row`.
struct alignas(128) BlockStats {
  float neg_lse[kBlock], neg_dot[kBlock];
};

/// The place of a row's value in a block, in an order in which threads read the values of their
/// columns four at a time. A chunk of four has two neighbouring values from each of two blocks of
/// 8. The chunks that four lanes read at once are in different banks.
__device__ inline int place_of_row(int row) {
  const int of_four = row % 8 / 2, chunk = row / 16;
  return 4 * (4 * of_four + (chunk ^ of_four / 2)) + row / 8 % 2 * 2 + row % 2;
}

/// Calls f(i, value) for each accumulator i of [64][64] with the value of its column. `values` are
/// in the order of `place_of_row`.
template <class F>
__device__ void for_columns(const float (&values)[kBlock], F&& f) {
  const int of_four = lane() % 4;
  const auto* chunks = reinterpret_cast<const float4*>(values) + 4 * of_four;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 x = chunks[i ^ of_four / 2];
#pragma unroll
    for (int half = 0; half < 4; half += 2) {
      f(8 * i + half, x.x);
      f(8 * i + half + 1, x.y);
      f(8 * i + 4 + half, x.z);
      f(8 * i + 4 + half + 1, x.w);
    }
  }
}

template <class T>
struct Backward {
  AttentionDims<T> dims;
  CUtensorMap q, k, v, g;
  Rows<const T> out;
  const float *lse, *g_lse;
  Rows<T> dq, dk, dv;
  float* dbias;           ///< null if it is not needed
  BlockStats* stats;      ///< [B, H, query blocks], written by the kernel of dq
  CUtensorMap stats_map;  ///< of `stats`
  float* diagonals;       ///< [B, H, query blocks, 2 R + 1]: sums of dS along diagonals, or null
  /// If not 0, dk and dv are sums of parts: one for each query head and each of `splits` ranges of
  /// its queries.
  int splits;
  float4 *dk_parts, *dv_parts;  ///< [B, H splits, key blocks][width / 8][kGroup]: not yet scaled
  TileOrder order;
};

/// Writes dq and the statistics, in tiles of `width` features. General kernels also write dbias and
/// the diagonals.
template <class T, Kind kind>
void backward_queries(const KernelContext& context, const Backward<T>& call, int width);

/// Writes dk and dv, or their parts. Called after `backward_queries`.
template <class T, Kind kind>
void backward_keys(const KernelContext& context, const Backward<T>& call, int width);

/// Called after `backward_keys` if `call.splits` is not 0: adds the parts of dk and dv.
template <class T>
void add_parts(const KernelContext& context, const Backward<T>& call, int width);

/// Sums of dq in global memory, to which work tiles add in turn (turns.cuh).
struct TurnMemory {
  /// [B, H, query blocks][width / 64]: how many work tiles have had their turn. 0 before the kernel
  /// starts.
  int* done;
  int2* tiles;   ///< [map rows of query blocks]: the first and the last work tile in it
  float4* sums;  ///< [B, H, query blocks][width / 64][8][kGroup]: not yet scaled
};

/// The parameters of the kernels that form all gradients in one pass, for maps whose query blocks
/// list neighbours.
template <class T>
struct Fused : Backward<T> {
  Rows<const T> g_rows;
  TurnMemory turns;
  const KeptTile* kept;  ///< bit tiles `by_key` (KeptCall); null without dropout
};

/// The first kernel of a one-pass call. Writes the statistics and the turns, and zeros to dq for
/// queries that see no key.
template <class T>
void row_stats(const KernelContext& context, const Fused<T>& call, int width);

/// The second kernel: writes dq, dk and dv. For tiles of 64 features.
template <class T, Kind kind>
void backward_fused(const KernelContext& context, const Fused<T>& call);

/// The alternative second kernel: writes dk, dv and the sums of dq. For tiles of 64 or 128
/// features.
template <class T, Kind kind>
void backward_staged(const KernelContext& context, const Fused<T>& call, int width);

/// Called after `backward_staged`: writes dq from the sums.
template <class T>
void write_queries(const KernelContext& context, const Fused<T>& call, int width);

}  // namespace sash::cuda::hopper
