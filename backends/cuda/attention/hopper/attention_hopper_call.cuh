#pragma once

#include "../../../../ops/kernels/attention.h"
#include "../common/attention_rows.cuh"
#include "attention_hopper_scheduler.cuh"

/// The parameters of the sm_90 kernels, and their launchers. Each is instantiated in two files, as
/// the kernels take long to compile: plain, and `general` for calls that are not plain.
namespace sash::cuda::hopper {

template <class T>
struct Forward {
  AttentionDims<T> dims;
  CUtensorMap q, k, v;
  Rows<T> out;
  float* lse;
  Schedule schedule;
};

/// Writes out and lse, in tiles of `width` features.
template <class T, bool general>
void forward(const KernelContext& context, const Forward<T>& call, int width);

/// The row statistics of a query block: -lse / scale, which the accumulators of q . k start from,
/// so that P = 2^(exponent sum); and -D, which those of g . v start from, so that dS = P sum. Here
/// D = rowsum(g . out) - g_lse. Past the end -infinity and 0, so that P = 0. General kernels have
/// -lse to the base 2 instead of -lse / scale.
struct alignas(128) BlockStats {
  float neg_lse[kBlock], neg_dot[kBlock];
};

template <class T>
struct Backward {
  AttentionDims<T> dims;
  CUtensorMap q, k, v, g;
  Rows<const T> out;
  const float *lse, *g_lse;
  Rows<T> dq, dk, dv;
  float* dbias;           ///< null if not wanted
  BlockStats* stats;      ///< [B, H, query blocks], written by the kernel of dq
  CUtensorMap stats_map;  ///< of `stats`
  float* diagonals;       ///< [B, H, query blocks, 2 R + 1]: dS along diagonals; null if not wanted
  Schedule schedule;
};

/// Writes dq and the statistics, in tiles of `width` features; general: dbias and diagonals too.
template <class T, bool general>
void backward_queries(const KernelContext& context, const Backward<T>& call, int width);

/// Then dk and dv.
template <class T, bool general>
void backward_keys(const KernelContext& context, const Backward<T>& call, int width);

}  // namespace sash::cuda::hopper
