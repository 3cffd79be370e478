#include "multihead_attention.h"

#include <cmath>
#include <numeric>

#include "../../ops/attention/exact/packed_heads.h"
#include "../../ops/linalg/linear.h"
#include "../../ops/linalg/linear_float8.h"
#include "../../ops/linalg/matmul.h"
#include "../../tensor/factories.h"
#include "../check.h"
#include "../init.h"
#include "position_bias.h"

namespace sash::nn {
namespace {

constexpr const char* kHeads = "MultiheadAttention";

void check_divisible(const char* what, int64_t a, int64_t b) {
  if (a % b == 0) return;
  throw ValueError(kHeads, what, std::to_string(a) + " and " + std::to_string(b));
}

void check_widths(const MultiheadAttentionOptions& options) {
  const std::pair<const char*, int64_t> widths[] = {{"kdim", options.kdim},
                                                    {"vdim", options.vdim},
                                                    {"head_dim", options.head_dim},
                                                    {"v_head_dim", options.v_head_dim}};
  for (const auto& [what, width] : widths) check_not_negative(kHeads, what, width);
}

int64_t checked_dim(int64_t dim, int64_t heads, const MultiheadAttentionOptions& options) {
  check_positive(kHeads, "dim", dim);
  check_positive(kHeads, "number of heads", heads);
  check_widths(options);
  if (options.head_dim == 0) check_divisible("dim divisible by heads", dim, heads);
  if (options.kv_heads < 0) {
    throw ValueError(kHeads, "kv_heads of at least 0", std::to_string(options.kv_heads));
  }
  if (options.kv_heads > 0) check_divisible("heads divisible by kv_heads", heads, options.kv_heads);
  check_probability(kHeads, "dropout", options.dropout);
  if (!(options.softcap >= 0 && std::isfinite(options.softcap))) {
    throw ValueError(kHeads, "a finite softcap of at least 0", to_text(options.softcap));
  }
  if (options.relative_positions.value_or(0) < 0) {
    throw ValueError(kHeads, "relative_positions of at least 0",
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
      head_dim_(options.head_dim > 0 ? options.head_dim : dim / heads),
      v_head_dim_(options.v_head_dim > 0 ? options.v_head_dim : head_dim_),
      kdim_(options.kdim > 0 ? options.kdim : dim),
      vdim_(options.vdim > 0 ? options.vdim : dim),
      present_{options.q_proj, options.k_proj, options.v_proj},
      dropout_(options.dropout),
      softcap_(options.softcap),
      kind_(AttentionKind::parse(options.attention)),
      mask_(kind_.mask() & mask),
      out_proj(options.out_proj && !kind_.gated_delta()
                   ? register_module<Linear>("out_proj", heads * v_head_dim_, dim,
                                             LinearOptions{.bias = options.bias})
                   : register_module<Linear>("out_proj")) {
  if (const GatedDeltaNetOptions* const delta_options = kind_.gated_delta()) {
    delta = &register_module<GatedDeltaNet>("delta", dim, heads, *delta_options);
  } else {
    make_input_projections(options.bias);
  }
  if (out_proj.bias.defined()) init::zeros_(out_proj.bias);
  if (options.relative_positions) {
    relative_bias =
        register_parameter("relative_bias", zeros({heads, 2 * *options.relative_positions + 1}));
  }
  if (options.sink_logits) sink_logits = register_parameter("sink_logits", zeros({heads}));
  if (const NativeSparseOptions* const sparse_options = kind_.native_sparse()) {
    sparse = &register_module<NativeSparseBranches>(
        "sparse", NativeSparseBranches::Heads{dim, heads, kv_heads_, head_dim_, v_head_dim_},
        *sparse_options);
  }
  if (options.alibi) alibi_slopes_ = alibi_slopes(heads, default_device());
  kind_.check(attention_options(mask_, default_device()));
}

MultiheadAttention::Projection MultiheadAttention::projection(Part part) const {
  const int64_t heads = part == kQueries ? heads_ : kv_heads_;
  const int64_t out = heads * (part == kValues ? v_head_dim_ : head_dim_);
  const bool present = present_[part];
  const int64_t in = part == kQueries ? dim_ : part == kKeys ? kdim_ : vdim_;
  return {present ? in : out, out, present};
}

bool MultiheadAttention::packed() const {
  const bool all = present_[kQueries] && present_[kKeys] && present_[kValues];
  return all && kdim_ == dim_ && vdim_ == dim_ && head_dim_ == v_head_dim_;
}

void MultiheadAttention::make_input_projections(bool bias) {
  const auto make = [this](const char* name, int64_t out, int64_t in) {
    return init::xavier_uniform_(register_parameter(name, empty({out, in})));
  };
  const std::array<Projection, 3> parts{projection(kQueries), projection(kKeys),
                                        projection(kValues)};
  int64_t rows = 0;
  for (const Projection& part : parts) rows += part.present ? part.out : 0;
  if (packed()) {
    in_proj_weight = make("in_proj_weight", rows, dim_);
  } else {
    if (parts[0].present) q_proj_weight = make("q_proj_weight", parts[0].out, parts[0].in);
    if (parts[1].present) k_proj_weight = make("k_proj_weight", parts[1].out, parts[1].in);
    if (parts[2].present) v_proj_weight = make("v_proj_weight", parts[2].out, parts[2].in);
  }
  if (bias && rows > 0) in_proj_bias = register_parameter("in_proj_bias", zeros({rows}));
}

Tensor MultiheadAttention::forward(const Tensor& x) { return forward(x, AttentionMask()); }

Tensor MultiheadAttention::forward(const Tensor& x, const AttentionMask& mask) {
  check_input("x", x, projection(kQueries).in);
  if (delta) {
    kind_.check(attention_options(mask_ & mask, x.device()));
    return (*delta)(x);
  }
  const std::array<Tensor, 3> qkv = project(x);
  if (sparse) {
    const AttentionOptions options = attention_options(mask_ & mask, x.device());
    return out_proj(merge_heads(attend_by_kind(x, qkv, options)));
  }
  return out_proj(attend(qkv[0], qkv[1], qkv[2], mask_ & mask));
}

Tensor MultiheadAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionMask& mask) {
  check_inputs(q, k, v);
  if (q.is_same(k) && q.is_same(v)) return forward(q, mask);
  if (sparse || delta) {
    throw ValueError(type_name(), "self-attention, as " + kind_.to_string() + " needs",
                     "q, k and v that are not one tensor");
  }
  return out_proj(attend(project_heads(q, kQueries), project_heads(k, kKeys),
                         project_heads(v, kValues), mask_ & mask));
}

AttentionWithWeights MultiheadAttention::forward_with_weights(const Tensor& q, const Tensor& k,
                                                              const Tensor& v,
                                                              const AttentionMask& mask,
                                                              bool average_heads) {
  return named_errors([&]() -> AttentionWithWeights {
    check_inputs(q, k, v);
    refuse_split("MultiheadAttention", "attention weights");
    if (!kind_.is_mask()) {
      throw NotImplemented(type_name(), kind_.to_string() + " attention returns no weights");
    }
    const Tensor values = project_heads(v, kValues);
    const Tensor weights =
        attention_probabilities(project_heads(q, kQueries), project_heads(k, kKeys),
                                attention_options(mask_ & mask, q.device()));
    const Shape& shape = weights.shape();
    // The heads that read one head of values.
    const Tensor grouped =
        weights.view({shape[0], kv_heads_, heads_ / kv_heads_, shape[2], shape[3]});
    const Tensor heads =
        matmul(grouped, values.unsqueeze(2)).reshape({shape[0], heads_, shape[2], v_head_dim_});
    return {out_proj(merge_heads(heads)), average_heads ? weights.mean({1}) : weights};
  });
}

Tensor MultiheadAttention::forward(const Tensor& x, KeyValueCache& cache) {
  check_input("x", x, projection(kQueries).in);
  kind_.check_caches();
  refuse_split("MultiheadAttention", "a key-value cache");
  kind_.check({.mask = cache.mask()});
  if (delta) return (*delta)(x, cache);
  if (!kind_.is_mask()) cache.check_summaries_of(kind_.to_string());
  const auto [q, k, v] = project(x);
  const int64_t first = cache.length();
  const CachedKeys seen = cache.append(k, v);
  AttentionOptions options = attention_options(seen.mask, x.device());
  if (!kind_.is_mask()) {
    return out_proj(merge_heads(attend_by_kind(x, {q, seen.k, seen.v}, options, &cache)));
  }
  if (!seen.positions.empty() && (options.relative_bias.defined() || alibi_slopes_.defined())) {
    options.bias = position_bias(options.relative_bias, options.alibi_slopes,
                                 consecutive(first, x.size(1)), seen.positions)
                       .to(q.dtype());
    options.relative_bias = options.alibi_slopes = Tensor();
  }
  return out_proj(merge_heads(attention(q, seen.k, seen.v, options)));
}

void MultiheadAttention::check_input(const char* what, const Tensor& x, int64_t width) const {
  if (x.defined() && x.rank() == 3 && x.shape()[2] == width) return;
  const std::string expected =
      std::string(what) + " of shape [B, S, " + std::to_string(width) + "]";
  if (!x.defined()) throw ValueError(type_name(), expected, "an undefined tensor");
  throw ShapeError(type_name(), expected, to_string(x.shape()));
}

void MultiheadAttention::check_inputs(const Tensor& q, const Tensor& k, const Tensor& v) const {
  const int64_t k_width = projection(kKeys).in, v_width = projection(kValues).in;
  check_input("q", q, projection(kQueries).in);
  check_input("k", k, k_width);
  check_input("v", v, v_width);
  if (k.shape()[0] == v.shape()[0] && k.shape()[1] == v.shape()[1] && k.shape()[0] == q.shape()[0])
    return;
  const std::string fit = k_width == v_width ? "of one shape" : "of one length";
  throw ShapeError(
      type_name(), "k and v " + fit + " and q of their batch size",
      to_string(q.shape()) + ", " + to_string(k.shape()) + " and " + to_string(v.shape()));
}

Tensor MultiheadAttention::attend(const Tensor& q, const Tensor& k, const Tensor& v,
                                  const AttentionMask& mask) {
  const AttentionOptions options = attention_options(mask, q.device());
  return merge_heads(kind_.is_mask() ? attend_over_sequence(q, k, v, options)
                                     : kind_(q, k, v, options));
}

Tensor MultiheadAttention::attend_by_kind(const Tensor& x, const std::array<Tensor, 3>& qkv,
                                          const AttentionOptions& options, KeyValueCache* cache) {
  const auto& [q, k, v] = qkv;
  if (!sparse) return kind_(q, k, v, options, cache);
  kind_.check(options);
  return (*sparse)(x, q, k, v, options, cache);
}

void MultiheadAttention::set_sequence(const SequenceParallel& sequence) {
  if (!kind_.is_mask()) {
    throw NotImplemented(type_name(), kind_.to_string() + " attention over a split sequence");
  }
  SplitAttention::set_sequence(sequence);
}

std::array<Tensor, 3> MultiheadAttention::project(const Tensor& x) const {
  if (packed()) {
    const auto product = is_float8() ? linear_float8 : linear;
    return split_packed_heads(product(x, in_proj_weight, in_proj_bias), heads_, kv_heads_);
  }
  check_inputs(x, x, x);
  return {project_heads(x, kQueries), project_heads(x, kKeys), project_heads(x, kValues)};
}

Tensor MultiheadAttention::project_heads(const Tensor& x, Part part) const {
  const int64_t heads = part == kQueries ? heads_ : kv_heads_;
  const Projection shape = projection(part);
  if (!shape.present) return split_heads(x, heads);
  int64_t row = 0;
  for (int before = 0; before < part; ++before) {
    const Projection other = projection(static_cast<Part>(before));
    row += other.present ? other.out : 0;
  }
  const Tensor own = part == kQueries ? q_proj_weight
                     : part == kKeys  ? k_proj_weight
                                      : v_proj_weight;
  const Tensor weight = packed() ? in_proj_weight.narrow(0, row, shape.out) : own;
  const Tensor bias = in_proj_bias.defined() ? in_proj_bias.narrow(0, row, shape.out) : Tensor();
  return split_heads((is_float8() ? linear_float8 : linear)(x, weight, bias), heads);
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
  if (head_dim_ * heads_ != dim_) text += ", head_dim " + std::to_string(head_dim_);
  if (v_head_dim_ != head_dim_) text += ", v_head_dim " + std::to_string(v_head_dim_);
  if (kdim_ != dim_) text += ", kdim " + std::to_string(kdim_);
  if (vdim_ != dim_) text += ", vdim " + std::to_string(vdim_);
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
