#pragma once

#include "fragments.cuh"
#include "lists.h"

/// The kernels of the backward pass on tensor cores.
namespace sash::cuda::selected {

template <class T>
struct Backward {
  Dims dims;
  IndexFlag* flag;
  CUtensorMap k, v;
  Rows<const T> q, g, k_rows, v_rows;
  Rows<T> dq, dk, dv;
  RowStats* stats;  ///< [B, H, S_q]
};

template <class T>
void backward_queries(const KernelContext& context, const Backward<T>& call);
template <class T>
void backward_keys(const KernelContext& context, const Backward<T>& call);

}  // namespace sash::cuda::selected
