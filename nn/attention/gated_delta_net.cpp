#include "gated_delta_net.h"

#include <array>

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
      in_proj_qkvz(register_module<Linear>("in_proj_qkvz", dim,
                                           channels() + options_.value_heads * options_.v_head_dim,
                                           {.bias = false})),
      in_proj_ba(
          register_module<Linear>("in_proj_ba", dim, 2 * options_.value_heads, {.bias = false})),
      out_proj(register_module<Linear>("out_proj", options_.value_heads * options_.v_head_dim, dim,
                                       {.bias = false})),
      conv1d(register_module<Conv1d>("conv1d", channels(), channels(), options_.kernel,
                                     {.groups = channels(), .bias = false})),
      norm(register_module<RMSNorm>("norm", options_.v_head_dim, {.eps = options_.eps})) {
  // From a number above 0, whose logarithm is finite.
  const Tensor a = init::uniform_(empty({options_.value_heads}), 1e-4, 16);
  A_log = register_parameter("A_log", log(a));
  dt_bias = register_parameter("dt_bias", ones({options_.value_heads}));
}

int64_t GatedDeltaNet::channels() const {
  return 2 * heads_ * options_.head_dim + options_.value_heads * options_.v_head_dim;
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
  const int64_t batch = x.size(0), length = x.size(1), value_heads = options_.value_heads;
  const int64_t group = value_heads / heads_, depth = options_.head_dim;
  const int64_t width = options_.v_head_dim, keys = heads_ * depth, values = value_heads * width;
  const auto [q, k, v, z] =
      pieces_of_heads<4>(in_proj_qkvz(x), heads_, {depth, depth, group * width, group * width});
  const auto [b, a] = pieces_of_heads<2>(in_proj_ba(x), heads_, {group, group});
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
  const auto gates = [&](const Tensor& t) {
    const DType sums = is_half(t.dtype()) ? DType::float32 : t.dtype();
    return t.reshape({batch, length, value_heads}).to(sums);
  };
  const Tensor steps = gates(a);
  const Tensor g = softplus(steps + dt_bias.to(steps.dtype())) * -exp(A_log.to(steps.dtype()));
  const Tensor out = gated_delta_rule_step(
      heads_of(0, heads_, depth), heads_of(keys, heads_, depth),
      heads_of(2 * keys, value_heads, width), sigmoid(gates(b)).transpose(1, 2), cache.state,
      {.g = g.transpose(1, 2), .normalize = true});
  const Tensor gated =
      norm(out.transpose(1, 2)) * silu(z.reshape({batch, length, value_heads, width}));
  return out_proj(gated.reshape({batch, length, values}));
}

std::string GatedDeltaNet::describe() const {
  return "GatedDeltaNet(" + std::to_string(dim_) + ", " + std::to_string(heads_) + " heads, " +
         std::to_string(options_.value_heads) + " value heads)";
}

}  // namespace sash::nn
