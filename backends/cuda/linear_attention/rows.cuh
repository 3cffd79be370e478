#pragma once

#include "../attention/common/rows.cuh"
#include "../elementwise/compute.cuh"
#include "common.h"

/// What all kernels of linear attention share: the two sides of a product.
///
/// Keys have the features phi(k) and the wide rows [v, 1]. Queries have the features phi(q) and, in
/// the backward pass, the wide rows [h, c]. A state is the sum of features times wide rows over
/// tokens, [D, D_v + 1].
namespace sash::cuda::linear {

/// elu(x) + 1. Its slope is min(phi(x), 1).
template <class C>
__device__ C phi(C x) {
  return x > 0 ? x + 1 : exp(x);
}

struct Sizes {
  int batches, heads, key_heads, queries, keys, depth, width;  ///< width: D_v + 1
  bool causal;

  Sizes(const Inputs& x, const Params& params)
      : batches(static_cast<int>(x.q.shape[0])),
        heads(static_cast<int>(x.q.shape[1])),
        key_heads(static_cast<int>(x.k.shape[1])),
        queries(static_cast<int>(x.q.shape[2])),
        keys(static_cast<int>(x.k.shape[2])),
        depth(static_cast<int>(x.q.shape[3])),
        width(static_cast<int>(x.v.shape[3]) + 1),
        causal(params.causal) {}

  __host__ __device__ int group() const { return heads / key_heads; }
};

/// Rows from `end` on count as 0, whatever their memory contains.
template <class T>
struct Keys {
  using C = compute_t<T>;

  struct Head {
    Rows<const T> k, v;
    int end;

    __device__ C feature(int row, int d) const {
      return row < end && d < k.width ? phi(widen(k.data[row * k.row + d])) : C(0);
    }
    __device__ C wide(int row, int m) const {
      if (row >= end || m > v.width) return 0;
      return m < v.width ? widen(v.data[row * v.row + m]) : C(1);
    }
  };

  Keys(const Inputs& x, const Params& params)
      : k(rows_of<const T>(x.k)),
        v(rows_of<const T>(x.v)),
        count(static_cast<int>(x.k.shape[2])),
        lengths(params.lengths ? params.lengths->ptr<const int32_t>() : nullptr),
        length_step(params.lengths ? params.lengths->strides[0] : 0) {}

  __device__ int end_of(int b) const { return lengths ? lengths[b * length_step] : count; }
  __device__ Head at(int b, int h) const { return {k.at(b, h), v.at(b, h), end_of(b)}; }

  Rows<const T> k, v;
  int count;
  const int32_t* lengths;
  int64_t length_step;
};

template <class T>
struct Queries {
  using C = compute_t<T>;

  struct Head {
    Rows<const T> q, g;
    const C *den, *c;
    int end;

    __device__ C feature(int row, int d) const {
      return row < end && d < q.width ? phi(widen(q.data[row * q.row + d])) : C(0);
    }
    __device__ C wide(int row, int m) const {
      if (row >= end || m > g.width) return 0;
      return m < g.width ? widen(g.data[row * g.row + m]) / den[row] : c[row];
    }
  };

  /// For the forward pass, without wide rows.
  explicit Queries(const Inputs& x)
      : q(rows_of<const T>(x.q)),
        g(q),
        heads(static_cast<int>(x.q.shape[1])),
        count(static_cast<int>(x.q.shape[2])) {}
  Queries(const Inputs& x, const Gradients& grads, const C* dots) : Queries(x) {
    g = rows_of<const T>(grads.g);
    den = grads.den.ptr<const C>();
    c = dots;
  }

  __device__ Head at(int b, int h) const {
    const int64_t row = (static_cast<int64_t>(b) * heads + h) * count;
    return {q.at(b, h), g.at(b, h), den + row, c + row, count};
  }

  Rows<const T> q, g;
  const C *den = nullptr, *c = nullptr;  ///< [B, H, S_q]
  int heads, count;
};

}  // namespace sash::cuda::linear
