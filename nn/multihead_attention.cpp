#include "multihead_attention.h"

#include "../ops/checks.h"
#include "../ops/linear.h"
#include "../tensor/factories.h"
#include "check.h"
#include "init.h"
#include "packed_heads.h"

namespace sash::nn {
namespace {

void check_input(const char* what, const Tensor& x, int64_t dim) {
  if (x.defined() && x.rank() == 3 && x.shape()[2] == dim) return;
  const std::string expected = std::string(what) + " of shape [B, S, " + std::to_string(dim) + "]";
  if (!x.defined()) throw ValueError("MultiheadAttention", expected, "an undefined tensor");
  throw ShapeError("MultiheadAttention", expected, to_string(x.shape()));
}

int64_t checked_dim(int64_t dim, int64_t heads, double dropout) {
  check_positive("MultiheadAttention", "dim", dim);
  check_positive("MultiheadAttention", "number of heads", heads);
  check_probability("MultiheadAttention", "dropout", dropout);
  if (dim % heads == 0) return dim;
  throw ValueError("MultiheadAttention", "dim divisible by heads",
                   std::to_string(dim) + " and " + std::to_string(heads));
}

}  // namespace

MultiheadAttention::MultiheadAttention(int64_t dim, int64_t heads,
                                       MultiheadAttentionOptions options)
    : dim_(checked_dim(dim, heads, options.dropout)),
      heads_(heads),
      dropout_(options.dropout),
      in_proj_weight(register_parameter("in_proj_weight", empty({3 * dim, dim}))),
      in_proj_bias(options.bias ? register_parameter("in_proj_bias", zeros({3 * dim})) : Tensor()),
      out_proj(register_module<Linear>("out_proj", dim, dim, LinearOptions{.bias = options.bias})) {
  init::xavier_uniform_(in_proj_weight);
  if (options.bias) init::zeros_(out_proj.bias);
}

Tensor MultiheadAttention::forward(const Tensor& x) { return forward(x, AttentionMask()); }

Tensor MultiheadAttention::forward(const Tensor& x, const AttentionMask& mask) {
  check_input("x", x, dim_);
  const auto [q, k, v] = split_packed_heads(linear(x, in_proj_weight, in_proj_bias), heads_);
  return attend(q, k, v, mask);
}

Tensor MultiheadAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionMask& mask) {
  check_input("q", q, dim_);
  check_input("k", k, dim_);
  check_input("v", v, dim_);
  if (k.shape() != v.shape() || k.shape()[0] != q.shape()[0]) {
    throw ShapeError(
        "MultiheadAttention", "k and v of one shape and q of their batch size",
        to_string(q.shape()) + ", " + to_string(k.shape()) + " and " + to_string(v.shape()));
  }
  if (q.is_same(k) && q.is_same(v)) return forward(q, mask);
  return attend(project(q, 0), project(k, 1), project(v, 2), mask);
}

Tensor MultiheadAttention::project(const Tensor& x, int64_t part) const {
  const Tensor weight = in_proj_weight.narrow(0, part * dim_, dim_);
  const Tensor bias = in_proj_bias.defined() ? in_proj_bias.narrow(0, part * dim_, dim_) : Tensor();
  return split_heads(linear(x, weight, bias), heads_);
}

Tensor MultiheadAttention::attend(const Tensor& q, const Tensor& k, const Tensor& v,
                                  const AttentionMask& mask) {
  const double dropout = is_training() ? dropout_ : 0.0;
  return out_proj(merge_heads(attention(q, k, v, {.mask = mask, .scale = {}, .dropout = dropout})));
}

std::string MultiheadAttention::describe() const {
  return "MultiheadAttention(" + std::to_string(dim_) + ", heads " + std::to_string(heads_) +
         (dropout_ > 0 ? ", dropout " + to_text(dropout_) : "") + ")";
}

}  // namespace sash::nn
