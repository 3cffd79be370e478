#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <sash/nn/attention/multihead_attention.h>
#include <sash/tensor/factories.h>

#include "../compare.h"
#include "../names.h"
#include "attention_reference.h"

/// Attention modules over one sequence, in plain loops over float64, and how to compare with them.
namespace sash::testing {

using Values = std::vector<double>;

/// y = x W' + b for rows of x; as many columns as b has elements.
inline Values plain_linear(const Values& x, const Values& w, const Values& b) {
  const size_t out = b.size(), in = w.size() / out, rows = x.size() / in;
  Values y(rows * out);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < out; ++o) {
      y[r * out + o] = b[o];
      for (size_t i = 0; i < in; ++i) y[r * out + o] += x[r * in + i] * w[o * in + i];
    }
  }
  return y;
}

/// The same by rows [first, first + count) of w and b.
inline Values plain_linear(const Values& x, const Tensor& w, const Tensor& b, int64_t first,
                           int64_t count) {
  return plain_linear(x, w.narrow(0, first, count).to_vector<double>(),
                      b.narrow(0, first, count).to_vector<double>());
}
inline Values plain_linear(const Values& x, const nn::Linear& linear) {
  return plain_linear(x, linear.weight, linear.bias, 0, linear.weight.size(0));
}

/// Rows [S, H D] as heads [1, H, S, D].
inline Array split_rows(const Values& x, int64_t heads, int64_t head_dim) {
  const auto rows = static_cast<int64_t>(x.size()) / (heads * head_dim);
  return generate({1, heads, rows, head_dim}, [&](const Index& at) {
    return x[static_cast<size_t>((at[2] * heads + at[1]) * head_dim + at[3])];
  });
}

/// The heads' results side by side, for q [S, H D] and k, v [S, H_kv D] of a module; `problem` says
/// what they see and what is added to the scores.
inline Values plain_heads(const Values& q, const Values& k, const Values& v,
                          const nn::MultiheadAttention& m, AttentionProblem problem = {}) {
  problem.q = split_rows(q, m.heads(), m.head_dim());
  problem.k = split_rows(k, m.kv_heads(), m.head_dim());
  problem.v = split_rows(v, m.kv_heads(), m.head_dim());
  problem.scale = 1 / std::sqrt(static_cast<double>(m.head_dim()));
  return transpose(solve(problem).out, 1, 2).values;
}

/// The heads' results for self-attention of x [S, dim] by the module's packed projection.
inline Values plain_rows(const Values& x, const nn::MultiheadAttention& m,
                         const AttentionProblem& problem) {
  const int64_t narrow = m.kv_heads() * m.head_dim();
  const auto part = [&](int64_t first, int64_t count) {
    return plain_linear(x, m.in_proj_weight, m.in_proj_bias, first, count);
  };
  return plain_heads(part(0, m.dim()), part(m.dim(), narrow), part(m.dim() + narrow, narrow), m,
                     problem);
}

/// Self-attention of x [1, S, dim] by the whole module.
inline Tensor plain_module(const Tensor& x, const nn::MultiheadAttention& m,
                           const AttentionProblem& problem = {}) {
  return tensor(plain_linear(plain_rows(x.to_vector<double>(), m, problem), m.out_proj), x.shape());
}

}  // namespace sash::testing
