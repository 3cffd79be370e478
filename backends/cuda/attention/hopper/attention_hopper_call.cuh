#pragma once

#include "attention_hopper_problem.cuh"

/// What the host hands to the sm_90 kernels. Each launcher is instantiated in two files, as its
/// kernels take long to compile: plain ones, and `general` ones for calls that are not plain.
namespace sash::cuda::hopper {

template <class T>
struct Forward {
  Problem<T> problem;
  CUtensorMap q, k, v;
  T* out;
  float* lse;
  int width;  ///< features of out
  Schedule schedule;
};

/// Writes out and lse, in tiles of `width` features.
template <class T, bool general>
void forward(const KernelContext& context, const Forward<T>& call, int width);

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

/// Writes dq and the terms, in tiles of `width` features; general kernels dbias and diagonals too.
template <class T, bool general>
void backward_queries(const KernelContext& context, const Backward<T>& call, int width);

/// Then dk and dv.
template <class T, bool general>
void backward_keys(const KernelContext& context, const Backward<T>& call, int width);

}  // namespace sash::cuda::hopper
