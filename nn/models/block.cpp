#include "block.h"

#include <cmath>

#include "../../ops/attention/exact/attention.h"
#include "../../ops/attention/exact/attention_step.h"
#include "../../ops/attention/exact/linear_step.h"
#include "../../ops/attention/exact/normed_heads.h"
#include "../../ops/attention/exact/packed_heads.h"
#include "../../ops/autocast.h"
#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/dropout.h"
#include "../../ops/elementwise/glu.h"
#include "../../ops/elementwise/unary.h"
#include "../../ops/linalg/linear_float8.h"
#include "../../ops/linalg/linear_gelu.h"
#include "../../ops/shape/concat.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/autograd/recompute.h"
#include "../../tensor/factories.h"
#include "../check.h"
#include "../layers/layer_norm.h"

namespace sash::nn {
namespace {

bool plain(const Linear* linear) {
  return linear && !linear->is_block_sparse() && !linear->has_forward_hooks();
}

struct MlpRow {
  const char* name;
  std::optional<GluKind> gate;
};
// In the order of `MlpKind`.
constexpr MlpRow kMlps[] = {{"relu", {}},
                            {"gelu", {}},
                            {"gelu_tanh", {}},
                            {"swiglu", GluKind::swiglu},
                            {"geglu", GluKind::geglu},
                            {"geglu_tanh", GluKind::geglu_tanh},
                            {"clamped_swiglu", GluKind::clamped_swiglu}};

std::optional<GluKind> gate_of(MlpKind kind) { return kMlps[static_cast<size_t>(kind)].gate; }

int64_t kv_heads_of(const TransformerConfig& config) {
  return config.kv_heads > 0 ? config.kv_heads : config.heads;
}

int64_t head_dim_of(const TransformerConfig& config) {
  return config.head_dim > 0 ? config.head_dim : config.dim / config.heads;
}

}  // namespace

Norm* add_norm(Module& parent, const char* name, const TransformerConfig& config) {
  if (config.norm == NormKind::layer_norm) {
    return &parent.register_module<LayerNorm>(
        name, config.dim, LayerNormOptions{.eps = config.norm_eps, .bias = config.norm_bias});
  }
  return &parent.register_module<RMSNorm>(
      name, config.dim,
      RMSNormOptions{.eps = config.norm_eps,
                     .unit_offset = config.norm == NormKind::rms_norm_unit_offset});
}

BlockAttention::BlockAttention(const TransformerConfig& config, bool cross, int64_t index)
    : dim_(config.dim),
      heads_(config.heads),
      kv_heads_(kv_heads_of(config)),
      head_dim_(head_dim_of(config)),
      scale_(config.scale.value_or(1 / std::sqrt(static_cast<double>(head_dim_)))),
      softcap_(config.attn_softcap),
      dropout_(config.attn_dropout),
      qk_norm_(config.qk_norm) {
  const LayerAttention& layer =
      config.attention[static_cast<size_t>(index) % config.attention.size()];
  if (!cross) kind_ = AttentionKind::parse(layer.kind);
  if (const GatedDeltaNetOptions* const delta_options = kind_.gated_delta()) {
    kind_.check({.mask = layer.mask});
    delta = &register_module<GatedDeltaNet>("delta", dim_, heads_, *delta_options);
    return;
  }
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
  if (cross) return;
  AttentionOptions options{.mask = layer.mask, .softcap = softcap_};
  options.sink_logits = sink_logits;
  kind_.check(options);
  if (const NativeSparseOptions* const sparse_options = kind_.native_sparse()) {
    sparse = &register_module<NativeSparseBranches>(
        "sparse", NativeSparseBranches::Heads{dim_, heads_, kv_heads_, head_dim_, head_dim_},
        *sparse_options, config.draw_weights);
  }
}

// heads [B, H, S, D], normalised over D, or over H and D; in their dtype, as the values beside
// them.
Tensor BlockAttention::normed(const Tensor& heads, RMSNorm* norm) const {
  if (!norm) return heads;
  const Tensor y = qk_norm_ == QKNorm::all_heads
                       ? split_heads((*norm)(merge_heads(heads)), heads.size(1))
                       : (*norm)(heads.transpose(1, 2)).transpose(1, 2);
  return y.to(heads.dtype());
}

std::array<Tensor, 3> BlockAttention::project(const Tensor& x, const AttentionContext& context) {
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
std::array<Tensor, 3> BlockAttention::split(Tensor packed, const RotaryAngles& angles,
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

Tensor BlockAttention::attend(const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttentionMask& mask, const Tensor& x,
                              KeyValueCache* cache) const {
  AttentionOptions options{.mask = mask, .scale = scale_, .softcap = softcap_};
  options.dropout = is_training() ? dropout_ : 0.0;
  options.sink_logits = sink_logits;
  if (kind_.is_mask()) return merge_heads(attend_over_sequence(q, k, v, options));
  if (!sparse) return merge_heads(kind_(q, k, v, options, cache));
  kind_.check(options);
  return merge_heads((*sparse)(x, q, k, v, options, cache));
}

// Rows whose texts differ attend one by one.
Tensor BlockAttention::attend_cached(const std::array<Tensor, 3>& qkv, const Tensor& x,
                                     const std::vector<KeyValueCache*>& caches) const {
  const auto& [q, k, v] = qkv;
  std::vector<Tensor> rows;
  const int64_t batch = caches.size() == 1 ? x.size(0) : 1;
  for (size_t i = 0; i < caches.size(); ++i) {
    const auto row = [&](const Tensor& t) { return t.narrow(0, static_cast<int64_t>(i), batch); };
    if (delta) {
      rows.push_back((*delta)(row(x), *caches[i]));
      continue;
    }
    const CachedKeys seen = caches[i]->append(row(k), row(v));
    rows.push_back(attend(row(q), seen.k, seen.v, seen.mask, row(x), caches[i]));
  }
  return rows.size() == 1 ? rows[0] : cat(rows, 0);
}

Tensor BlockAttention::attend_step(const std::array<Tensor, 3>& qkv,
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

Tensor BlockAttention::step(const Tensor& x, const RMSNorm& norm,
                            const AttentionContext& context) const {
  const Tensor packed = linear_step(x, qkv_proj->weight,
                                    {.norm_weight = norm.weight,
                                     .norm = norm.options(),
                                     .bias = qkv_proj->bias,
                                     .weight_at_rest = true});
  return linear_step(attend_step(split(packed, {}, context.layout), context), o_proj->weight,
                     {.bias = o_proj->bias, .residual = x, .weight_at_rest = true});
}

bool BlockAttention::can_step() const {
  return kind_.is_mask() && plain(qkv_proj) && plain(o_proj) && !has_forward_hooks();
}

Tensor BlockAttention::forward(const Tensor& x, const AttentionContext& context) {
  check_rank("BlockAttention", x, 3);
  if (!context.caches.empty()) refuse_split("BlockAttention", "a key-value cache");
  if (delta) {
    kind_.check({.mask = context.mask});
    return context.caches.empty() ? (*delta)(x) : attend_cached({}, x, context.caches);
  }
  const std::array<Tensor, 3> qkv = project(x, context);
  if (context.positions.defined()) return (*o_proj)(attend_step(qkv, context));
  return (*o_proj)(context.caches.empty() ? attend(qkv[0], qkv[1], qkv[2], context.mask, x)
                                          : attend_cached(qkv, x, context.caches));
}

Tensor BlockAttention::forward(const Tensor& x, const CrossKeys& keys) {
  check_rank("BlockAttention", x, 3);
  return (*o_proj)(
      attend(normed(split_heads((*q_proj)(x), heads_), q_norm), keys.k, keys.v, keys.mask));
}

CrossKeys BlockAttention::cross_keys(const Tensor& states, const AttentionMask& mask) {
  return named_errors([&]() -> CrossKeys {
    check_rank("BlockAttention", states, 3);
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

void BlockAttention::set_sequence(const SequenceParallel& sequence) {
  if (!kind_.is_mask()) {
    throw NotImplemented(type_name(), kind_.to_string() + " attention over a split sequence");
  }
  SplitAttention::set_sequence(sequence);
}

std::string BlockAttention::describe() const {
  std::string text = "BlockAttention(" + std::to_string(dim_) + ", heads " +
                     std::to_string(heads_) + ", kv_heads " + std::to_string(kv_heads_) +
                     ", head_dim " + std::to_string(head_dim_);
  if (!kind_.is_mask()) text += ", " + kind_.to_string();
  if (softcap_ > 0) text += ", softcap " + to_text(softcap_);
  return text + (sink_logits.defined() ? ", sink logits)" : ")");
}

Tensor plain_mlp(const Tensor& x, Linear& up, Linear& down, MlpKind kind, Dropout* dropout) {
  const bool drops =
      dropout && (dropout->has_forward_hooks() || (dropout->is_training() && dropout->p() > 0));
  const auto dropped = [&](const Tensor& hidden) { return drops ? (*dropout)(hidden) : hidden; };
  if (kind == MlpKind::relu) return down(dropped(relu(up(x))));
  const auto form = kind == MlpKind::gelu ? GeluApproximation::none : GeluApproximation::tanh;
  if (!plain(&up) || up.is_float8()) return down(dropped(gelu(up(x), form)));
  if (!drops && plain(&down) && !down.is_float8()) {
    return gelu_mlp(x, up.weight, up.bias, down.weight, down.bias, form);
  }
  return down(dropped(linear_gelu(x, up.weight, up.bias, form)));
}

const char* name_of(MlpKind kind) { return kMlps[static_cast<size_t>(kind)].name; }

BlockMlp::BlockMlp(const TransformerConfig& config) : kind_(config.mlp) {
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

Tensor BlockMlp::forward(const Tensor& x) {
  if (const std::optional<GluKind> gate = gate_of(kind_)) {
    const auto fits_float8 = [](const Linear* linear) {
      return plain(linear) && linear->is_float8() && !linear->bias.defined();
    };
    if (fits_float8(gate_up_proj) && fits_float8(down_proj)) {
      return glu_mlp_float8(x, gate_up_proj->weight, down_proj->weight, *gate);
    }
    const Tensor both =
        gate_up_proj ? (*gate_up_proj)(x) : cat({(*gate_proj)(x), (*up_proj)(x)}, -1);
    return (*down_proj)(glu(both, *gate));
  }
  return plain_mlp(x, *up_proj, *down_proj, kind_);
}

Tensor BlockMlp::step(const Tensor& x, const RMSNorm& norm) const {
  const Tensor hidden = linear_step(x, gate_up_proj->weight,
                                    {.norm_weight = norm.weight,
                                     .norm = norm.options(),
                                     .bias = gate_up_proj->bias,
                                     .gate = gate_of(kind_),
                                     .weight_at_rest = true});
  return linear_step(hidden, down_proj->weight,
                     {.bias = down_proj->bias, .residual = x, .weight_at_rest = true});
}

bool BlockMlp::can_step() const {
  return plain(gate_up_proj) && plain(down_proj) && !has_forward_hooks();
}

std::string BlockMlp::describe() const { return std::string("BlockMlp(") + name_of(kind_) + ")"; }

Tensor BlockBase::forward(const Tensor& x, const AttentionContext& context,
                          const CrossKeys& cross) {
  return run({x, {}}, context, cross, nullptr).sum;
}

SumAndNorm BlockBase::run(const SumAndNorm& x, const AttentionContext& context,
                          const CrossKeys& cross, Norm* next) {
  const Tensor normed = x.norm.defined() ? x.norm : attn_norm ? (*attn_norm)(x.sum) : x.sum;
  const Tensor attended = attend(normed, context);
  if (branches_ != Branches::sequential) {
    return add(attended + feed_forward(mlp_norm ? (*mlp_norm)(x.sum) : normed), x.sum, nullptr,
               nullptr, next);
  }
  SumAndNorm y =
      add(attended, x.sum, attn_dropout_, attn_post_norm, crosses_ ? cross_attn_norm : mlp_norm);
  if (crosses_) {
    y = add(cross_attend(y.norm, cross), y.sum, cross_dropout_, cross_attn_post_norm, mlp_norm);
  }
  return add(feed_forward(y.norm), y.sum, mlp_dropout_, mlp_post_norm, next);
}

// residual + branch, where `post` normalises the branch or the sum, and the norm `next` of that.
SumAndNorm BlockBase::add(const Tensor& branch, const Tensor& residual, Dropout* dropout,
                          Norm* post, Norm* next) const {
  const bool after_sum = placement_ == NormPlacement::after_sum;
  Tensor y = post && !after_sum ? (*post)(branch) : branch;
  double p = dropout ? dropout->p() : dropout_;
  if (!(dropout ? dropout->is_training() : is_training())) p = 0;
  if (dropout && dropout->has_forward_hooks()) {
    y = (*dropout)(y);
    p = 0;
  }
  if (after_sum) {
    const Tensor sum = post->add(y, residual, p).norm;
    return {sum, next ? (*next)(sum) : sum};
  }
  if (next) return next->add(y, residual, p);
  const Tensor sum = residual + sash::dropout(y, p);
  return {sum, sum};
}

Block::Block(const TransformerConfig& config, int64_t index)
    : BlockBase(config.norm_placement, config.branches, config.dropout),
      self_attn(add_attention(config, index)),
      mlp(add_mlp(config)) {
  mlp_post_norm = norm_after("mlp_post_norm", config);
}

// Parts are registered in the order in which checkpoints list them.
BlockAttention& Block::add_attention(const TransformerConfig& config, int64_t index) {
  if (index > 0 || config.first_attn_norm) attn_norm = norm_before("attn_norm", config);
  return register_module<BlockAttention>("self_attn", config, false, index);
}

BlockMlp& Block::add_mlp(const TransformerConfig& config) {
  attn_post_norm = norm_after("attn_post_norm", config);
  crosses_ = config.cross_attention;
  if (crosses_) {
    cross_attn_norm = norm_before("cross_attn_norm", config);
    cross_attn = &register_module<BlockAttention>("cross_attn", config, true);
    cross_attn_post_norm = norm_after("cross_attn_post_norm", config);
  }
  if (branches_ != Branches::parallel_one_norm) mlp_norm = norm_before("mlp_norm", config);
  return register_module<BlockMlp>("mlp", config);
}

Norm* Block::norm_before(const char* name, const TransformerConfig& config) {
  const bool placed = placement_ == NormPlacement::before || placement_ == NormPlacement::around;
  return placed ? add_norm(*this, name, config) : nullptr;
}

Norm* Block::norm_after(const char* name, const TransformerConfig& config) {
  return placement_ == NormPlacement::before ? nullptr : add_norm(*this, name, config);
}

SumAndNorm Block::run(const SumAndNorm& x, const AttentionContext& context, const CrossKeys& cross,
                      Norm* next) {
  if (!can_step(x.sum, context)) return BlockBase::run(x, context, cross, next);
  const Tensor y = self_attn.step(x.sum, static_cast<const RMSNorm&>(*attn_norm), context);
  return {mlp.step(y, static_cast<const RMSNorm&>(*mlp_norm)), {}};
}

Tensor Block::attend(const Tensor& x, const AttentionContext& context) {
  return self_attn(x, context);
}

Tensor Block::feed_forward(const Tensor& x) { return mlp(x); }

bool Block::can_step(const Tensor& x, const AttentionContext& context) const {
  if (!context.positions.defined() || placement_ != NormPlacement::before || crosses_ ||
      branches_ != Branches::sequential || Autocast("linear")) {
    return false;
  }
  const auto plain_norm = [](const Norm* norm) {
    return dynamic_cast<const RMSNorm*>(norm) && !norm->has_forward_hooks();
  };
  return plain_norm(attn_norm) && plain_norm(mlp_norm) && self_attn.can_step() && mlp.can_step() &&
         has_linear_step_kernel(x, self_attn.qkv_proj->weight);
}

Tensor run_blocks(const std::vector<BlockBase*>& blocks, Norm* norm, const Tensor& x,
                  const std::vector<AttentionContext>& contexts,
                  const std::vector<CrossKeys>& cross, bool recompute) {
  // A block with hooks is called as such, and normalises its input itself.
  const auto norm_of = [&](size_t i) {
    if (i == blocks.size()) return norm;
    return blocks[i]->has_forward_hooks() ? nullptr : blocks[i]->attn_norm;
  };
  const auto run = [](BlockBase& block, const SumAndNorm& in, const AttentionContext& context,
                      const CrossKeys& keys, Norm* next) {
    if (!block.has_forward_hooks()) return block(in, context, keys, next);
    const Tensor out = block(in.sum, context, keys);
    return SumAndNorm{out, next ? (*next)(out) : out};
  };
  SumAndNorm y{x, {}};
  if (!contexts[0].positions.defined()) y.norm = norm_of(0) ? (*norm_of(0))(x) : x;
  for (size_t i = 0; i < blocks.size(); ++i) {
    BlockBase& block = *blocks[i];
    Norm* const next = norm_of(i + 1);
    const AttentionContext& context = contexts[i % contexts.size()];
    const CrossKeys keys = cross.empty() ? CrossKeys() : cross[i];
    if (!recompute || !grad_enabled()) {
      y = run(block, y, context, keys, next);
      continue;
    }
    const std::vector<Tensor> out = checkpoint(
        [run, &block, context, keys, next](const std::vector<Tensor>& in) -> std::vector<Tensor> {
          const SumAndNorm result = run(block, {in[0], in[1]}, context, keys, next);
          return {result.sum, result.norm};
        },
        {y.sum, y.norm});
    y = {out[0], out[1]};
  }
  return y.norm.defined() ? y.norm : norm ? (*norm)(y.sum) : y.sum;
}

}  // namespace sash::nn
