#include "local.h"

#include "../../index/gather.h"
#include "../../linalg/window_matmul.h"
#include "../../op.h"
#include "attention_call.h"

namespace sash {
namespace {

detail::Window window_of(int64_t context, const Tensor& key_lengths = {}) {
  return {context / 2, (context - 1) / 2, key_lengths};
}

void check_context(const char* op, int64_t context) {
  detail::check_window(op, "a context", context);
  if (context == 0) throw ValueError(op, "a context of at least 1", "0");
}

// mask[l, j] for the key j of each slot, 0 where there is none: [L, c], or [N, 1, L, c] for
// lengths.
Tensor mask_of_slots(const Tensor& mask, int64_t context, const Tensor& lengths) {
  const int64_t length = mask.size(0);
  const TensorOptions options{.device = mask.device()};
  const int64_t first = -(context / 2);
  const Tensor key = arange(0, length, 1, options).unsqueeze(1) +
                     arange(first, first + context, 1, options).unsqueeze(0);
  const Tensor outside = logical_or(lt(key, 0), ge(key, length));
  const Tensor added = gather(mask, 1, clamp(key, 0, length - 1));
  if (!lengths.defined()) return masked_fill(added, outside, 0);
  const Tensor behind = ge(key, lengths.to(key.dtype()).view({-1, 1, 1, 1}));
  return masked_fill(added.expand(behind.shape()), logical_or(outside, behind), 0);
}

}  // namespace

Tensor local_dot_product(const Tensor& q, const Tensor& k, int64_t context,
                         const LocalDotProductOptions& options) {
  constexpr const char* op = "local_dot_product";
  if (Autocast cast(op); cast) return local_dot_product(cast(q), cast(k), context, options);
  check_floating_pair(op, q, k);
  check_rank(op, q, 4);
  check_same_shape(op, q, k);
  check_context(op, context);
  check_parameter(op, q, options.attn_mask, {q.size(2), q.size(2)});
  check_lengths(op, q, options.key_lengths);
  const Tensor lengths = contiguous(options.key_lengths);
  const Tensor a = detail::window_scores(op, q, k, window_of(context, lengths), options.fill);
  if (!options.attn_mask.defined() || q.size(2) == 0) return a;
  // Halves would round the mask's gradient where it is summed over heads, and over sequences.
  const DType wide = *row_statistics(q).dtype;
  return (a + mask_of_slots(options.attn_mask.to(wide), context, lengths)).to(q.dtype());
}

Tensor local_weighted_average(const Tensor& a, const Tensor& v) {
  constexpr const char* op = "local_weighted_average";
  if (Autocast cast(op); cast) return local_weighted_average(cast(a), cast(v));
  check_floating_pair(op, a, v);
  check_rank(op, a, 4);
  check_rank(op, v, 4);
  for (int axis = 0; axis < 3; ++axis) {
    if (a.shape()[axis] == v.shape()[axis]) continue;
    throw ShapeError(op, "a [N, H, L, c] and v [N, H, L, E]", shapes_of(a, v));
  }
  check_context(op, a.size(3));
  return detail::window_sums(op, a, v, window_of(a.size(3)));
}

}  // namespace sash
