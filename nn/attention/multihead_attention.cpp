#include "multihead_attention.h"

#include <cmath>
#include <numeric>

#include "../../ops/attention/packed_heads.h"
#include "../../ops/linalg/linear.h"
#include "../../tensor/factories.h"
#include "../check.h"
#include "../init.h"
#include "position_bias.h"

namespace sash::nn {
namespace {

constexpr const char* kOp = "MultiheadAttention";

void check_divisible(const char* what, int64_t a, int64_t b) {
  if (a % b == 0) return;
  throw ValueError(kOp, what, std::to_string(a) + " and " + std::to_string(b));
}

int64_t checked_dim(int64_t dim, int64_t heads, const MultiheadAttentionOptions& options) {
  check_positive(kOp, "dim", dim);
  check_positive(kOp, "number of heads", heads);
  check_divisible("dim divisible by heads", dim, heads);
  if (options.kv_heads < 0) {
    throw ValueError(kOp, "kv_heads of at least 0", std::to_string(options.kv_heads));
  }
  if (options.kv_heads > 0) check_divisible("heads divisible by kv_heads", heads, options.kv_heads);
  check_probability(kOp, "dropout", options.dropout);
  if (!(options.softcap >= 0 && std::isfinite(options.softcap))) {
    throw ValueError(kOp, "a finite softcap of at least 0", to_text(options.softcap));
  }
  if (options.relative_positions.value_or(0) < 0) {
    throw ValueError(kOp, "relative_positions of at least 0",
                     std::to_string(*options.relative_positions));
  }
  return dim;
}

std::vector<int64_t> consecutive(int64_t first, int64_t count) {
  std::vector<int64_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

}  // namespace

MultiheadAttention::MultiheadAttention(int64_t dim, int64_t heads,
                                       const MultiheadAttentionOptions& options,
                                       const AttentionMask& mask)
    : dim_(checked_dim(dim, heads, options)),
      heads_(heads),
      kv_heads_(options.kv_heads > 0 ? options.kv_heads : heads),
      dropout_(options.dropout),
      softcap_(options.softcap),
      kind_(AttentionKind::parse(options.attention)),
      mask_(kind_.mask() & mask),
      in_proj_weight(
          register_parameter("in_proj_weight", empty({projected_heads() * head_dim(), dim}))),
      out_proj(register_module<Linear>("out_proj", dim, dim, LinearOptions{.bias = options.bias})) {
  init::xavier_uniform_(in_proj_weight);
  if (options.bias) {
    in_proj_bias = register_parameter("in_proj_bias", zeros({in_proj_weight.size(0)}));
    init::zeros_(out_proj.bias);
  }
  if (options.relative_positions) {
    relative_bias =
        register_parameter("relative_bias", zeros({heads, 2 * *options.relative_positions + 1}));
  }
  if (options.sink_logits) sink_logits = register_parameter("sink_logits", zeros({heads}));
  if (options.alibi) alibi_slopes_ = alibi_slopes(heads, in_proj_weight.device());
  kind_.check(attention_options(mask_, in_proj_weight.device()));
}

Tensor MultiheadAttention::forward(const Tensor& x) { return forward(x, AttentionMask()); }

Tensor MultiheadAttention::forward(const Tensor& x, const AttentionMask& mask) {
  check_input("x", x);
  const auto [q, k, v] = project(x);
  return out_proj(attend(q, k, v, mask_ & mask));
}

Tensor MultiheadAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionMask& mask) {
  check_input("q", q);
  check_input("k", k);
  check_input("v", v);
  if (k.shape() != v.shape() || k.shape()[0] != q.shape()[0]) {
    throw ShapeError(
        type_name(), "k and v of one shape and q of their batch size",
        to_string(q.shape()) + ", " + to_string(k.shape()) + " and " + to_string(v.shape()));
  }
  if (q.is_same(k) && q.is_same(v)) return forward(q, mask);
  return out_proj(attend(project_heads(q, 0, heads_), project_heads(k, heads_, kv_heads_),
                         project_heads(v, heads_ + kv_heads_, kv_heads_), mask_ & mask));
}

Tensor MultiheadAttention::forward(const Tensor& x, KeyValueCache& cache) {
  check_input("x", x);
  kind_.check_caches();
  const auto [q, k, v] = project(x);
  const int64_t first = cache.length();
  const CachedKeys seen = cache.append(k, v);
  AttentionOptions options = attention_options(seen.mask, x.device());
  if (!seen.positions.empty() && (options.relative_bias.defined() || alibi_slopes_.defined())) {
    options.bias = position_bias(options.relative_bias, options.alibi_slopes,
                                 consecutive(first, x.size(1)), seen.positions)
                       .to(q.dtype());
    options.relative_bias = options.alibi_slopes = Tensor();
  }
  return out_proj(merge_heads(attention(q, seen.k, seen.v, options)));
}

void MultiheadAttention::check_input(const char* what, const Tensor& x) const {
  if (x.defined() && x.rank() == 3 && x.shape()[2] == dim_) return;
  const std::string expected = std::string(what) + " of shape [B, S, " + std::to_string(dim_) + "]";
  if (!x.defined()) throw ValueError(type_name(), expected, "an undefined tensor");
  throw ShapeError(type_name(), expected, to_string(x.shape()));
}

Tensor MultiheadAttention::attend(const Tensor& q, const Tensor& k, const Tensor& v,
                                  const AttentionMask& mask) {
  return merge_heads(kind_(q, k, v, attention_options(mask, q.device())));
}

std::array<Tensor, 3> MultiheadAttention::project(const Tensor& x) const {
  return split_packed_heads(linear(x, in_proj_weight, in_proj_bias), heads_, kv_heads_);
}

Tensor MultiheadAttention::project_heads(const Tensor& x, int64_t first, int64_t count) const {
  const int64_t row = first * head_dim(), rows = count * head_dim();
  const Tensor weight = in_proj_weight.narrow(0, row, rows);
  const Tensor bias = in_proj_bias.defined() ? in_proj_bias.narrow(0, row, rows) : Tensor();
  return split_heads(linear(x, weight, bias), count);
}

AttentionOptions MultiheadAttention::attention_options(const AttentionMask& mask, Device device) {
  if (alibi_slopes_.defined() && alibi_slopes_.device() != device) {
    alibi_slopes_ = alibi_slopes_.to(device);
  }
  return {.mask = mask,
          .softcap = softcap_,
          .relative_bias = relative_bias,
          .alibi_slopes = alibi_slopes_,
          .dropout = is_training() ? dropout_ : 0.0,
          .sink_logits = sink_logits};
}

std::string MultiheadAttention::describe() const {
  std::string text = type_name() + "(" + std::to_string(dim_) + ", heads " + std::to_string(heads_);
  if (kv_heads_ != heads_) text += ", kv_heads " + std::to_string(kv_heads_);
  if (!kind_.is_mask()) text += ", " + kind_.to_string();
  if (!mask_.shows_all()) text += ", " + mask_.to_string();
  if (softcap_ > 0) text += ", softcap " + to_text(softcap_);
  if (alibi_slopes_.defined()) text += ", alibi";
  if (relative_bias.defined()) {
    text += ", relative positions " + std::to_string(relative_bias.size(1) / 2);
  }
  if (sink_logits.defined()) text += ", sink logits";
  return text + (dropout_ > 0 ? ", dropout " + to_text(dropout_) : "") + ")";
}

}  // namespace sash::nn
