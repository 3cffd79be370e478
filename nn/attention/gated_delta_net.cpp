#include "gated_delta_net.h"

#include <array>
#include <cmath>

#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/unary.h"
#include "../../ops/shape/concat.h"
#include "../../tensor/factories.h"
#include "../check.h"
#include "../init.h"

namespace sash::nn {
namespace {

constexpr const char* kGatedDeltaNet = "GatedDeltaNet";

// The options with all numbers filled in.
GatedDeltaNetOptions completed(int64_t dim, int64_t heads, GatedDeltaNetOptions options) {
  check_positive(kGatedDeltaNet, "dim", dim);
  check_positive(kGatedDeltaNet, "number of heads", heads);
  if (options.value_heads == 0) options.value_heads = heads;
  if (options.head_dim == 0) {
    if (dim % heads != 0) {
      throw ValueError(kGatedDeltaNet, "heads that divide dim, or a head_dim",
                       std::to_string(heads) + " heads and dim " + std::to_string(dim));
    }
    options.head_dim = dim / heads;
  }
  if (options.v_head_dim == 0) options.v_head_dim = options.head_dim;
  check_positive(kGatedDeltaNet, "head_dim", options.head_dim);
  check_positive(kGatedDeltaNet, "v_head_dim", options.v_head_dim);
  check_positive(kGatedDeltaNet, "kernel", options.kernel);
  check_positive(kGatedDeltaNet, "number of value heads", options.value_heads);
  if (options.value_heads % heads != 0) {
    throw ValueError(kGatedDeltaNet, "value_heads that are a multiple of heads",
                     std::to_string(options.value_heads) + " and " + std::to_string(heads));
  }
  if (!(options.eps > 0)) throw ValueError(kGatedDeltaNet, "eps > 0", to_text(options.eps));
  return options;
}

// Pieces of the last axis of x [B, S, heads width], for each head one after the other: [B, S,
// heads, n] each.
template <size_t kPieces>
std::array<Tensor, kPieces> pieces_of_heads(const Tensor& x, int64_t heads,
                                            const std::array<int64_t, kPieces>& extents) {
  const Tensor by_heads = x.reshape({x.size(0), x.size(1), heads, x.size(2) / heads});
  std::array<Tensor, kPieces> pieces;
  int64_t at = 0;
  for (size_t i = 0; i < kPieces; ++i) {
    pieces[i] = by_heads.narrow(3, at, extents[i]);
    at += extents[i];
  }
  return pieces;
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(int64_t dim, int64_t heads, const GatedDeltaNetOptions& options)
    : dim_(dim),
      heads_(heads),
      options_(completed(dim, heads, options)),
      in_proj_qkvz(
          add(options.kimi ? "in_proj_qkv" : "in_proj_qkvz", dim,
              channels() + (options.kimi ? 0 : options_.value_heads * options_.v_head_dim))),
      in_proj_ba(add(options.kimi ? "in_proj_b" : "in_proj_ba", dim,
                     (options.kimi ? 1 : 2) * options_.value_heads)),
      out_proj(add("out_proj", options_.value_heads * options_.v_head_dim, dim)),
      conv1d(register_module<Conv1d>("conv1d", channels(), channels(), options_.kernel,
                                     {.groups = channels(), .bias = false})),
      norm(register_module<RMSNorm>("norm", options_.v_head_dim, {.eps = options_.eps})) {
  const int64_t value_heads = options_.value_heads, width = options_.v_head_dim;
  int64_t decays = value_heads;
  if (options_.kimi) {
    decays *= options_.head_dim;
    f_a_proj = &add("f_a_proj", dim, width);
    f_b_proj = &add("f_b_proj", width, decays);
    g_a_proj = &add("g_a_proj", dim, width);
    g_b_proj = &add("g_b_proj", width, value_heads * width, true);
  }
  // From a number above 0, whose logarithm is finite.
  A_log = register_parameter("A_log", log(init::uniform_(empty({value_heads}), 1e-4, 16)));
  const Tensor step = exp(init::uniform_(empty({decays}), std::log(1e-3), std::log(0.1)));
  dt_bias = register_parameter("dt_bias", log(expm1(step)));  // softplus(dt_bias) = step
}

Linear& GatedDeltaNet::add(const char* name, int64_t in, int64_t out, bool bias) {
  return register_module<Linear>(name, in, out, LinearOptions{.bias = bias});
}

int64_t GatedDeltaNet::channels() const {
  return 2 * heads_ * options_.head_dim + options_.value_heads * options_.v_head_dim;
}

void GatedDeltaNet::check_cache(int64_t batch, const GatedDeltaNetCache& cache) const {
  const Tensor &inputs = cache.inputs, &state = cache.state.s;
  if (inputs.defined() != state.defined()) {
    throw ValueError(kGatedDeltaNet, "a cache with inputs and a state, or neither", "one of them");
  }
  if (!inputs.defined()) return;
  const Shape expected{batch, options_.kernel - 1, channels()};
  if (inputs.shape() != expected) {
    throw ShapeError(kGatedDeltaNet, "a cache with inputs " + sash::to_string(expected),
                     sash::to_string(inputs.shape()));
  }
  check_shape(kGatedDeltaNet, state,
              {batch, options_.value_heads, options_.head_dim, options_.v_head_dim});
}

// y[t] = silu(sum of w[:, i] x[t - kernel + 1 + i]), from x [B, S, channels].
Tensor GatedDeltaNet::convolved(const Tensor& mixed, GatedDeltaNetCache& cache) const {
  const int64_t length = mixed.size(1), before = options_.kernel - 1;
  if (!cache.inputs.defined()) {
    cache.inputs = zeros({mixed.size(0), before, mixed.size(2)}, mixed.options());
  }
  const Tensor all = cat({cache.inputs, mixed}, 1);
  // A copy: a view would keep the memory of all tokens.
  cache.inputs = all.narrow(1, length, before).clone();
  const Tensor weight = conv1d.weight.to(mixed.dtype());
  Tensor sum;
  for (int64_t i = 0; i < options_.kernel; ++i) {
    const Tensor term = all.narrow(1, i, length) * weight.select(2, i).select(1, 0);
    sum = sum.defined() ? sum + term : term;
  }
  return silu(sum);
}

Tensor GatedDeltaNet::forward(const Tensor& x) {
  GatedDeltaNetCache none;
  return forward(x, none);
}

Tensor GatedDeltaNet::forward(const Tensor& x, GatedDeltaNetCache& cache) {
  check_last_extent(kGatedDeltaNet, x, dim_);
  check_rank(kGatedDeltaNet, x, 3);
  check_cache(x.size(0), cache);
  const int64_t batch = x.size(0), length = x.size(1), value_heads = options_.value_heads;
  const int64_t group = value_heads / heads_, depth = options_.head_dim;
  const int64_t width = options_.v_head_dim, keys = heads_ * depth, values = value_heads * width;
  const bool kimi = options_.kimi;
  const auto [q, k, v, own_z] = pieces_of_heads<4>(
      in_proj_qkvz(x), heads_, {depth, depth, group * width, kimi ? 0 : group * width});
  const auto [b, own_a] = pieces_of_heads<2>(in_proj_ba(x), heads_, {group, kimi ? 0 : group});
  const Tensor z = kimi ? (*g_b_proj)((*g_a_proj)(x)) : own_z;
  const Tensor a = kimi ? (*f_b_proj)((*f_a_proj)(x)) : own_a;
  const Tensor mixed =
      convolved(cat({q.reshape({batch, length, keys}), k.reshape({batch, length, keys}),
                     v.reshape({batch, length, values})},
                    2),
                cache);
  const auto heads_of = [&](int64_t first, int64_t heads, int64_t features) {
    return mixed.narrow(2, first, heads * features)
        .reshape({batch, length, heads, features})
        .transpose(1, 2);
  };
  const DType sums = is_half(b.dtype()) ? DType::float32 : b.dtype();
  const auto gates = [&](const Tensor& t, int64_t features) {
    return t.reshape({batch, length, value_heads, features}).to(sums);
  };
  const int64_t decays = kimi ? depth : 1;
  Tensor g = softplus(gates(a, decays) + dt_bias.to(sums).view({value_heads, decays})) *
             -exp(A_log.to(sums)).unsqueeze(1);
  if (!kimi) g = g.squeeze(3);
  const Tensor beta = sigmoid(gates(b, 1).squeeze(3));
  const Tensor out =
      gated_delta_rule_step(heads_of(0, heads_, depth), heads_of(keys, heads_, depth),
                            heads_of(2 * keys, value_heads, width), beta.transpose(1, 2),
                            cache.state, {.g = g.transpose(1, 2), .normalize = true});
  const Tensor gate = z.reshape({batch, length, value_heads, width});
  const Tensor gated = norm(out.transpose(1, 2)) * (kimi ? sigmoid(gate) : silu(gate));
  return out_proj(gated.reshape({batch, length, values}));
}

Tensor GatedDeltaNet::forward(const Tensor& x, KeyValueCache& cache) {
  if (cache.keys().defined()) {
    throw ValueError(kGatedDeltaNet, "its own cache", "one with keys and values");
  }
  std::vector<Tensor>& kept = cache.summaries();
  GatedDeltaNetCache past;
  if (!kept.empty()) past = {kept[0], {kept[1]}};
  Tensor y = forward(x, past);
  kept = {past.inputs, past.state.s};
  cache.count(x.size(1));
  return y;
}

std::string GatedDeltaNet::describe() const {
  return "GatedDeltaNet(" + std::to_string(dim_) + ", " + std::to_string(heads_) + " heads, " +
         std::to_string(options_.value_heads) + " value heads" + (options_.kimi ? ", kimi)" : ")");
}

}  // namespace sash::nn
