#include "decoder_layer.h"

#include <cmath>

#include "../../ops/attention/attention.h"
#include "../../ops/attention/attention_step.h"
#include "../../ops/attention/linear_step.h"
#include "../../ops/attention/normed_heads.h"
#include "../../ops/attention/packed_heads.h"
#include "../../ops/autocast.h"
#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/dropout.h"
#include "../../ops/elementwise/glu.h"
#include "../../ops/elementwise/unary.h"
#include "../../ops/linalg/linear_gelu.h"
#include "../../ops/norm/layer_norm.h"
#include "../../ops/shape/concat.h"
#include "../../tensor/factories.h"
#include "../check.h"

namespace sash::nn {
namespace {

bool plain(const Linear* linear) {
  return linear && !linear->is_block_sparse() && !linear->has_forward_hooks();
}

std::optional<GluKind> gate_of(MlpKind kind) {
  switch (kind) {
    case MlpKind::swiglu:
      return GluKind::swiglu;
    case MlpKind::geglu:
      return GluKind::geglu;
    case MlpKind::geglu_tanh:
      return GluKind::geglu_tanh;
    case MlpKind::clamped_swiglu:
      return GluKind::clamped_swiglu;
    default:
      return {};
  }
}

const char* name_of(MlpKind kind) {
  switch (kind) {
    case MlpKind::relu:
      return "relu";
    case MlpKind::gelu:
      return "gelu";
    case MlpKind::gelu_tanh:
      return "gelu_tanh";
    case MlpKind::swiglu:
      return "swiglu";
    case MlpKind::geglu:
      return "geglu";
    case MlpKind::geglu_tanh:
      return "geglu_tanh";
    case MlpKind::clamped_swiglu:
      return "clamped_swiglu";
  }
  return "";
}

int64_t kv_heads_of(const DecoderConfig& config) {
  return config.kv_heads > 0 ? config.kv_heads : config.heads;
}

int64_t head_dim_of(const DecoderConfig& config) {
  return config.head_dim > 0 ? config.head_dim : config.dim / config.heads;
}

}  // namespace

DecoderNorm::DecoderNorm(const DecoderConfig& config) : kind_(config.norm), eps_(config.norm_eps) {
  const bool offset = kind_ == NormKind::rms_norm_unit_offset;
  weight = register_parameter("weight", offset ? zeros({config.dim}) : ones({config.dim}));
  if (kind_ != NormKind::layer_norm || !config.norm_bias) return;
  bias = register_parameter("bias", zeros({config.dim}));
}

Tensor DecoderNorm::forward(const Tensor& x) {
  if (kind_ == NormKind::layer_norm) return layer_norm(x, weight.shape(), weight, bias, eps_);
  return rms_norm(x, weight.shape(), weight,
                  {.eps = eps_, .unit_offset = kind_ == NormKind::rms_norm_unit_offset});
}

SumAndNorm DecoderNorm::add(const Tensor& branch, const Tensor& residual, double dropout) {
  if (has_forward_hooks()) {
    const Tensor sum = residual + sash::dropout(branch, dropout);
    return {sum, (*this)(sum)};
  }
  return named_errors([&] {
    if (kind_ == NormKind::layer_norm) {
      return dropout_add_layer_norm(branch, residual, weight, bias, dropout, eps_);
    }
    return add_rms_norm(sash::dropout(branch, dropout), residual, weight,
                        {.eps = eps_, .unit_offset = kind_ == NormKind::rms_norm_unit_offset});
  });
}

std::string DecoderNorm::describe() const {
  const std::string name = kind_ == NormKind::layer_norm ? "LayerNorm(" : "RMSNorm(";
  return name + std::to_string(weight.size(0)) +
         (kind_ == NormKind::rms_norm_unit_offset ? ", 1 + weight)" : ")");
}

DecoderAttention::DecoderAttention(const DecoderConfig& config, bool cross)
    : dim_(config.dim),
      heads_(config.heads),
      kv_heads_(kv_heads_of(config)),
      head_dim_(head_dim_of(config)),
      scale_(config.scale.value_or(1 / std::sqrt(static_cast<double>(head_dim_)))),
      softcap_(config.attn_softcap),
      dropout_(config.attn_dropout),
      qk_norm_(config.qk_norm) {
  const auto linear = [&](const char* name, int64_t in, int64_t out, bool bias) {
    return &register_module<Linear>(name, in, out,
                                    LinearOptions{.bias = bias, .draw = config.draw_weights});
  };
  const int64_t queries = heads_ * head_dim_, keys = kv_heads_ * head_dim_;
  if (config.packed && !cross) {
    qkv_proj = linear("qkv_proj", dim_, queries + 2 * keys, config.qkv_bias);
  } else {
    q_proj = linear("q_proj", dim_, queries, config.qkv_bias);
    if (config.packed) {
      kv_proj = linear("kv_proj", dim_, 2 * keys, config.qkv_bias);
    } else {
      k_proj = linear("k_proj", dim_, keys, config.qkv_bias);
      v_proj = linear("v_proj", dim_, keys, config.qkv_bias);
    }
  }
  if (qk_norm_ != QKNorm::none) {
    const bool all = qk_norm_ == QKNorm::all_heads;
    const RMSNormOptions options{.eps = config.norm_eps,
                                 .unit_offset = config.norm == NormKind::rms_norm_unit_offset};
    q_norm = &register_module<RMSNorm>("q_norm", all ? queries : head_dim_, options);
    k_norm = &register_module<RMSNorm>("k_norm", all ? keys : head_dim_, options);
  }
  if (config.sink_logits) sink_logits = register_parameter("sink_logits", zeros({heads_}));
  o_proj = linear("o_proj", queries, dim_, config.out_bias);
}

// heads [B, H, S, D], normalised over D, or over H and D; in their dtype, as the values beside
// them.
Tensor DecoderAttention::normed(const Tensor& heads, RMSNorm* norm) const {
  if (!norm) return heads;
  const Tensor y = qk_norm_ == QKNorm::all_heads
                       ? split_heads((*norm)(merge_heads(heads)), heads.size(1))
                       : (*norm)(heads.transpose(1, 2)).transpose(1, 2);
  return y.to(heads.dtype());
}

std::array<Tensor, 3> DecoderAttention::project(const Tensor& x, const AttentionContext& context) {
  const RotaryAngles angles = context.positions.defined() ? RotaryAngles() : context.angles;
  if (qkv_proj) return split((*qkv_proj)(x), angles, context.layout);
  const auto turned = [&](const Tensor& heads) {
    return angles.cos.defined() ? rotary(heads, angles, context.layout) : heads;
  };
  return {turned(normed(split_heads((*q_proj)(x), heads_), q_norm)),
          turned(normed(split_heads((*k_proj)(x), kv_heads_), k_norm)),
          split_heads((*v_proj)(x), kv_heads_)};
}

// The heads of packed, normalised, and rotated if there are angles.
std::array<Tensor, 3> DecoderAttention::split(Tensor packed, const RotaryAngles& angles,
                                              RotaryLayout layout) const {
  const bool rotates = angles.cos.defined();
  if (!q_norm && rotates) {
    return split_rotary_heads(std::move(packed), angles, heads_, kv_heads_, layout);
  }
  const bool fuses = qk_norm_ == QKNorm::per_head && !q_norm->has_forward_hooks() &&
                     !k_norm->has_forward_hooks() && !Autocast("rms_norm");
  if (fuses) {
    return split_normed_heads(packed, {q_norm->weight, k_norm->weight, q_norm->options()}, heads_,
                              kv_heads_, angles, layout);
  }
  const auto [q, k, v] = split_packed_heads(packed, heads_, kv_heads_);
  const auto turned = [&](const Tensor& heads) {
    return rotates ? rotary(heads, angles, layout) : heads;
  };
  return {turned(normed(q, q_norm)), turned(normed(k, k_norm)), v};
}

Tensor DecoderAttention::attend(const Tensor& q, const Tensor& k, const Tensor& v,
                                const AttentionMask& mask) const {
  AttentionOptions options{.mask = mask, .scale = scale_, .softcap = softcap_};
  options.dropout = is_training() ? dropout_ : 0.0;
  options.sink_logits = sink_logits;
  return merge_heads(attention(q, k, v, options));
}

// Rows whose texts differ attend one by one.
Tensor DecoderAttention::attend_cached(const std::array<Tensor, 3>& qkv,
                                       const std::vector<KeyValueCache*>& caches) const {
  const auto& [q, k, v] = qkv;
  std::vector<Tensor> rows;
  const int64_t batch = caches.size() == 1 ? q.size(0) : 1;
  for (size_t i = 0; i < caches.size(); ++i) {
    const auto row = [&](const Tensor& x) { return x.narrow(0, static_cast<int64_t>(i), batch); };
    const CachedKeys seen = caches[i]->append(row(k), row(v));
    rows.push_back(attend(row(q), seen.k, seen.v, seen.mask));
  }
  return rows.size() == 1 ? rows[0] : cat(rows, 0);
}

Tensor DecoderAttention::attend_step(const std::array<Tensor, 3>& qkv,
                                     const AttentionContext& context) const {
  const auto& [q, k, v] = qkv;
  AttentionStepOptions options{
      .scale = scale_, .softcap = softcap_, .angles = context.angles, .layout = context.layout};
  options.sink_logits = sink_logits;
  std::vector<Tensor> rows;
  const int64_t batch = context.caches.size() == 1 ? q.size(0) : 1;
  for (size_t i = 0; i < context.caches.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const auto row = [&](const Tensor& x) { return x.narrow(0, at, batch); };
    const KeyValueCache& cache = *context.caches[i];
    options.reach = cache.reach();
    rows.push_back(merge_heads(attention_step(row(q), row(k), row(v), cache.keys(), cache.values(),
                                              context.positions.narrow(0, at, 1), options)));
  }
  return rows.size() == 1 ? rows[0] : cat(rows, 0);
}

Tensor DecoderAttention::step(const Tensor& x, const DecoderNorm& norm,
                              const AttentionContext& context) const {
  const Tensor packed = linear_step(x, qkv_proj->weight,
                                    {.norm_weight = norm.weight,
                                     .norm = norm.rms_options(),
                                     .bias = qkv_proj->bias,
                                     .weight_at_rest = true});
  return linear_step(attend_step(split(packed, {}, context.layout), context), o_proj->weight,
                     {.bias = o_proj->bias, .residual = x, .weight_at_rest = true});
}

bool DecoderAttention::can_step() const {
  return plain(qkv_proj) && plain(o_proj) && !has_forward_hooks();
}

Tensor DecoderAttention::forward(const Tensor& x, const AttentionContext& context) {
  check_rank("DecoderAttention", x, 3);
  const std::array<Tensor, 3> qkv = project(x, context);
  if (context.positions.defined()) return (*o_proj)(attend_step(qkv, context));
  return (*o_proj)(context.caches.empty() ? attend(qkv[0], qkv[1], qkv[2], context.mask)
                                          : attend_cached(qkv, context.caches));
}

Tensor DecoderAttention::forward(const Tensor& x, const CrossKeys& keys) {
  check_rank("DecoderAttention", x, 3);
  return (*o_proj)(
      attend(normed(split_heads((*q_proj)(x), heads_), q_norm), keys.k, keys.v, keys.mask));
}

CrossKeys DecoderAttention::cross_keys(const Tensor& states, const AttentionMask& mask) {
  return named_errors([&]() -> CrossKeys {
    check_rank("DecoderAttention", states, 3);
    Tensor k, v;
    if (kv_proj) {
      const Tensor both = split_heads((*kv_proj)(states), 2 * kv_heads_);
      k = both.narrow(1, 0, kv_heads_);
      v = both.narrow(1, kv_heads_, kv_heads_);
    } else {
      k = split_heads((*k_proj)(states), kv_heads_);
      v = split_heads((*v_proj)(states), kv_heads_);
    }
    return {normed(k, k_norm), v, mask};
  });
}

std::string DecoderAttention::describe() const {
  std::string text = "DecoderAttention(" + std::to_string(dim_) + ", heads " +
                     std::to_string(heads_) + ", kv_heads " + std::to_string(kv_heads_) +
                     ", head_dim " + std::to_string(head_dim_);
  if (softcap_ > 0) text += ", softcap " + to_text(softcap_);
  return text + (sink_logits.defined() ? ", sink logits)" : ")");
}

DecoderMlp::DecoderMlp(const DecoderConfig& config) : kind_(config.mlp) {
  const int64_t width = config.mlp_dim > 0 ? config.mlp_dim : 4 * config.dim;
  const auto linear = [&](const char* name, int64_t in, int64_t out) {
    return &register_module<Linear>(
        name, in, out, LinearOptions{.bias = config.mlp_bias, .draw = config.draw_weights});
  };
  if (gate_of(kind_) && config.packed) {
    gate_up_proj = linear("gate_up_proj", config.dim, 2 * width);
  } else {
    if (gate_of(kind_)) gate_proj = linear("gate_proj", config.dim, width);
    up_proj = linear("up_proj", config.dim, width);
  }
  down_proj = linear("down_proj", width, config.dim);
}

Tensor DecoderMlp::forward(const Tensor& x) {
  if (const std::optional<GluKind> gate = gate_of(kind_)) {
    const Tensor both =
        gate_up_proj ? (*gate_up_proj)(x) : cat({(*gate_proj)(x), (*up_proj)(x)}, -1);
    return (*down_proj)(glu(both, *gate));
  }
  if (kind_ == MlpKind::relu) return (*down_proj)(relu((*up_proj)(x)));
  const auto form = kind_ == MlpKind::gelu ? GeluApproximation::none : GeluApproximation::tanh;
  if (plain(up_proj) && plain(down_proj)) {
    return gelu_mlp(x, up_proj->weight, up_proj->bias, down_proj->weight, down_proj->bias, form);
  }
  return (*down_proj)(gelu((*up_proj)(x), form));
}

Tensor DecoderMlp::step(const Tensor& x, const DecoderNorm& norm) const {
  const Tensor hidden = linear_step(x, gate_up_proj->weight,
                                    {.norm_weight = norm.weight,
                                     .norm = norm.rms_options(),
                                     .bias = gate_up_proj->bias,
                                     .gate = gate_of(kind_),
                                     .weight_at_rest = true});
  return linear_step(hidden, down_proj->weight,
                     {.bias = down_proj->bias, .residual = x, .weight_at_rest = true});
}

bool DecoderMlp::can_step() const {
  return plain(gate_up_proj) && plain(down_proj) && !has_forward_hooks();
}

std::string DecoderMlp::describe() const {
  return std::string("DecoderMlp(") + name_of(kind_) + ")";
}

DecoderLayer::DecoderLayer(const DecoderConfig& config, int64_t index)
    : placement_(config.norm_placement),
      branches_(config.branches),
      dropout_(config.dropout),
      attn_norm(norm_before("attn_norm", config, index > 0 || config.first_attn_norm)),
      self_attn(register_module<DecoderAttention>("self_attn", config)),
      attn_post_norm(norm_after("attn_post_norm", config)),
      cross_attn_norm(norm_before("cross_attn_norm", config, config.cross_attention)),
      cross_attn(config.cross_attention
                     ? &register_module<DecoderAttention>("cross_attn", config, true)
                     : nullptr),
      cross_attn_post_norm(config.cross_attention ? norm_after("cross_attn_post_norm", config)
                                                  : nullptr),
      mlp_norm(norm_before("mlp_norm", config, branches_ != Branches::parallel_one_norm)),
      mlp(register_module<DecoderMlp>("mlp", config)),
      mlp_post_norm(norm_after("mlp_post_norm", config)) {}

DecoderNorm* DecoderLayer::norm_before(const char* name, const DecoderConfig& config, bool wanted) {
  const bool placed = placement_ == NormPlacement::before || placement_ == NormPlacement::around;
  return wanted && placed ? &register_module<DecoderNorm>(name, config) : nullptr;
}

DecoderNorm* DecoderLayer::norm_after(const char* name, const DecoderConfig& config) {
  return placement_ == NormPlacement::before ? nullptr
                                             : &register_module<DecoderNorm>(name, config);
}

Tensor DecoderLayer::forward(const Tensor& x, const AttentionContext& context,
                             const CrossKeys& cross) {
  return forward(SumAndNorm{x, attn_norm ? (*attn_norm)(x) : x}, context, cross, nullptr).sum;
}

SumAndNorm DecoderLayer::forward(const SumAndNorm& x, const AttentionContext& context,
                                 const CrossKeys& cross, DecoderNorm* next) {
  if (can_step(x.sum, context)) {
    return {mlp.step(self_attn.step(x.sum, *attn_norm, context), *mlp_norm), {}};
  }
  const Tensor normed = x.norm.defined() ? x.norm : attn_norm ? (*attn_norm)(x.sum) : x.sum;
  const Tensor attended = self_attn(normed, context);
  if (branches_ != Branches::sequential) {
    return add(attended + mlp(mlp_norm ? (*mlp_norm)(x.sum) : normed), x.sum, nullptr, next);
  }
  SumAndNorm y = add(attended, x.sum, attn_post_norm, cross_attn ? cross_attn_norm : mlp_norm);
  if (cross_attn) y = add((*cross_attn)(y.norm, cross), y.sum, cross_attn_post_norm, mlp_norm);
  return add(mlp(y.norm), y.sum, mlp_post_norm, next);
}

bool DecoderLayer::can_step(const Tensor& x, const AttentionContext& context) const {
  if (!context.positions.defined() || placement_ != NormPlacement::before || cross_attn ||
      branches_ != Branches::sequential || Autocast("linear")) {
    return false;
  }
  const auto plain_norm = [](const DecoderNorm* norm) {
    return norm && norm->is_rms() && !norm->has_forward_hooks();
  };
  return plain_norm(attn_norm) && plain_norm(mlp_norm) && self_attn.can_step() && mlp.can_step() &&
         has_linear_step_kernel(x, self_attn.qkv_proj->weight);
}

// residual + branch, where `post` normalises the branch or the sum, and that normalised by `next`.
SumAndNorm DecoderLayer::add(const Tensor& branch, const Tensor& residual, DecoderNorm* post,
                             DecoderNorm* next) const {
  const double p = is_training() ? dropout_ : 0;
  if (placement_ == NormPlacement::after_sum) {
    const Tensor sum = post->add(branch, residual, p).norm;
    return {sum, next ? (*next)(sum) : sum};
  }
  const Tensor normed = post ? (*post)(branch) : branch;
  if (next) return next->add(normed, residual, p);
  const Tensor sum = residual + dropout(normed, p);
  return {sum, sum};
}

}  // namespace sash::nn
