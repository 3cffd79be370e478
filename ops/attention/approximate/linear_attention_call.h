#pragma once

#include "linear_attention.h"

/// One checked call of linear attention: the input of the kernels and of the composite.
namespace sash {

/// Throws as `linear_attention` does.
void check_linear_attention(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                            double eps);

struct LinearAttentionCall {
  LinearAttentionCall(const Tensor& q, const Tensor& k, const Tensor& v,
                      const LinearAttentionOptions& options);

  bool causal;
  double eps;
  Tensor lengths{};  ///< int32 [B], in [0, S_k], a copy; undefined if all keys are visible
};

Tensor linear_attention_from_plain_ops(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const LinearAttentionCall& call);

}  // namespace sash
