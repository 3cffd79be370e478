#include "attention_step.h"

#include <algorithm>
#include <cmath>

#include "../../kernels/attention_step.h"
#include "../../op.h"
#include "attention_call.h"
#include "head_layout.h"
#include "sink_logits.h"

namespace sash {

constinit decltype(kernels::attention_step) kernels::attention_step{"attention_step"};

namespace {

constexpr const char* kAttentionStep = "attention_step";
using detail::with_unit_rows;

void check_arguments(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& keys,
                     const Tensor& values, const Tensor& position,
                     const AttentionStepOptions& options) {
  for (const Tensor* x : {&k, &v, &keys, &values}) check_compatible(kAttentionStep, q, *x);
  check_floating(kAttentionStep, q);
  for (const Tensor* x : {&q, &k, &v, &keys, &values}) check_rank(kAttentionStep, *x, 4);
  const int64_t batch = q.size(0), heads = q.size(1), kv_heads = keys.size(1), width = q.size(3);
  check_shape(kAttentionStep, q, {batch, heads, 1, width});
  for (const Tensor* x : {&k, &v}) check_shape(kAttentionStep, *x, {batch, kv_heads, 1, width});
  for (const Tensor* x : {&keys, &values}) {
    check_shape(kAttentionStep, *x, {batch, kv_heads, keys.size(2), width});
    if (!x->is_contiguous()) throw ValueError(kAttentionStep, "contiguous caches", "others");
  }
  if (kv_heads == 0 || heads % kv_heads != 0) {
    throw ShapeError(kAttentionStep, "heads divisible by kv_heads",
                     to_string(q.shape()) + " and " + to_string(keys.shape()));
  }
  check_same_device(kAttentionStep, q, position);
  check_dtype(kAttentionStep, position, DType::int64);
  if (position.numel() != 1)
    throw ShapeError(kAttentionStep, "one position", to_string(position.shape()));
  if (!options.reach.exact) throw ValueError(kAttentionStep, "an exact reach", "one that is not");
  const int64_t first = options.reach.first, recent = options.reach.recent.value_or(1);
  if (first < 0 || recent < 1) {
    throw ValueError(kAttentionStep, "a reach of first tokens and at least one recent one",
                     std::to_string(first) + " and " + std::to_string(recent));
  }
  check_scale_and_softcap(kAttentionStep, options.scale.value_or(1), options.softcap,
                          *row_statistics(q).dtype);
  check_sink_logits(q, options.sink_logits);
  const RotaryAngles& angles = options.angles;
  if (!angles.cos.defined()) return;
  check_same_device(kAttentionStep, q, angles.cos);
  check_compatible(kAttentionStep, angles.cos, angles.sin);
  check_same_shape(kAttentionStep, angles.cos, angles.sin);
  check_dtype(kAttentionStep, angles.cos, *row_statistics(q).dtype);
  check_rank(kAttentionStep, angles.cos, 2);
  if (2 * angles.cos.size(1) <= width) return;
  throw ShapeError(kAttentionStep, "angles [P, n] with 2 n <= " + std::to_string(width),
                   to_string(angles.cos.shape()));
}

double scale_of(const Tensor& q, const AttentionStepOptions& options) {
  return options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
}

// The kernel's call; heads of a token lie side by side in the result.
Tensor fused(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& keys,
             const Tensor& values, const Tensor& position, const AttentionStepOptions& options) {
  const Tensor out = empty(q.shape(), q.options());
  kernels::AttentionStepParams params{.scale = scale_of(q, options),
                                      .softcap = options.softcap,
                                      .interleaved = options.layout == RotaryLayout::interleaved,
                                      .recent = options.reach.recent.value_or(0),
                                      .first = options.reach.first};
  OptionalViews<3> views;
  params.cos = views(contiguous(options.angles.cos));
  params.sin = views(contiguous(options.angles.sin));
  params.sink_logits = views(contiguous(cast_to(options.sink_logits, q.dtype())));
  run_kernel(kernels::attention_step, with_unit_rows(q), with_unit_rows(k), with_unit_rows(v), keys,
             values, position, params, out);
  return out;
}

}  // namespace

bool has_attention_step_kernel(const Tensor& keys) {
  const auto bytes = keys.size(3) * static_cast<int64_t>(size_of(keys.dtype()));
  return kernels::attention_step.has(keys.device().type) && keys.dtype() != DType::float64 &&
         bytes > 0 && bytes % 16 == 0 && bytes <= 512 && is_aligned(keys);
}

namespace composite {

Tensor attention_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& keys,
                      const Tensor& values, const Tensor& position,
                      const AttentionStepOptions& options) {
  const NoGradGuard no_grad;
  check_arguments(q, k, v, keys, values, position, options);
  const auto at = position.item<int64_t>();
  const auto turned = [&](const Tensor& x) {
    if (!options.angles.cos.defined()) return x;
    const RotaryAngles own{options.angles.cos.narrow(0, at, 1),
                           options.angles.sin.narrow(0, at, 1)};
    return sash::rotary(x, own, options.layout);
  };
  const CausalReach& reach = options.reach;
  const bool turns = reach.recent && at >= reach.first;
  const int64_t slot = turns ? reach.first + (at - reach.first) % *reach.recent : at;
  if (at < 0 || slot >= keys.size(2)) {
    throw IndexError(kAttentionStep, "a position with a slot among " + std::to_string(keys.size(2)),
                     std::to_string(at));
  }
  if (options.angles.cos.defined() && at >= options.angles.cos.size(0)) {
    throw IndexError(
        kAttentionStep,
        "a position below the " + std::to_string(options.angles.cos.size(0)) + " of the angles",
        std::to_string(at));
  }
  const int64_t used = reach.recent ? std::min(at + 1, reach.first + *reach.recent) : at + 1;
  keys.narrow(2, slot, 1).copy_(turned(k));
  values.narrow(2, slot, 1).copy_(v);
  AttentionOptions plain{.scale = scale_of(q, options), .softcap = options.softcap};
  plain.sink_logits = options.sink_logits;
  return attention(turned(q), keys.narrow(2, 0, used), values.narrow(2, 0, used), plain);
}

}  // namespace composite

Tensor attention_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& keys,
                      const Tensor& values, const Tensor& position,
                      const AttentionStepOptions& options) {
  const NoGradGuard no_grad;
  check_defined(kAttentionStep, keys, "keys");
  check_rank(kAttentionStep, keys, 4);
  check_defined(kAttentionStep, values, "values");
  if (!has_attention_step_kernel(keys) || !is_aligned(values)) {
    return composite::attention_step(q, k, v, keys, values, position, options);
  }
  check_arguments(q, k, v, keys, values, position, options);
  return fused(q, k, v, keys, values, position, options);
}

}  // namespace sash
