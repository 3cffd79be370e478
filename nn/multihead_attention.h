#pragma once

#include "../ops/attention.h"
#include "linear.h"

namespace sash::nn {

struct MultiheadAttentionOptions {
  double dropout = 0;  ///< of attention probabilities, while training
  bool bias = true;
};

/// Multi-head scaled dot-product attention (Vaswani et al., 2017), batch first, with any
/// `AttentionMask`.
///
/// Parameters, as PyTorch's: `in_proj_weight` [3 dim, dim] (queries, keys, values; Xavier uniform
/// at first), `in_proj_bias` [3 dim] (zeros), `out_proj.weight` [dim, dim], `out_proj.bias`
/// (zeros).
class SASH_API MultiheadAttention : public Module {
 public:
  /// `ValueError` unless dim is a positive multiple of heads and dropout lies in [0, 1].
  MultiheadAttention(int64_t dim, int64_t heads, MultiheadAttentionOptions options = {});

  /// Self-attention of x [B, S, dim] without a mask.
  Tensor forward(const Tensor& x) override;
  /// Self-attention of x [B, S, dim]. `ShapeError` unless x is that.
  Tensor forward(const Tensor& x, const AttentionMask& mask);
  /// q [B, S_q, dim] attends to k and v [B, S_k, dim], giving [B, S_q, dim]. `ShapeError` unless
  /// the shapes are those.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask = {});
  template <class... Args>
  Tensor operator()(const Args&... args) {
    return forward(args...);
  }
  std::string describe() const override;

  int64_t dim() const { return dim_; }
  int64_t heads() const { return heads_; }

 private:
  Tensor project(const Tensor& x, int64_t part) const;
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask);

  int64_t dim_;
  int64_t heads_;
  double dropout_;

 public:
  Tensor in_proj_weight;
  Tensor in_proj_bias;  ///< undefined without one
  Linear& out_proj;
};

}  // namespace sash::nn
