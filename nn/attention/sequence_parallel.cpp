#include "sequence_parallel.h"

#include <algorithm>
#include <string>
#include <vector>

#include "../../core/error.h"
#include "../../ops/attention/exact/attention_call.h"
#include "../../ops/attention/mask/mask_part.h"
#include "../../ops/shape/concat.h"
#include "../../ops/shape/rearrange.h"
#include "../../tensor/factories.h"
#include "../module.h"
#include "sequence_halo.h"

namespace sash::nn {

using distributed::Group;

namespace {

constexpr const char* kOp = "SequenceParallel";
constexpr const char* kAttention = "SequenceParallel.attention";

}  // namespace

SequenceParallel::SequenceParallel(const Group& group, int64_t length)
    : group_(group),
      length_(length),
      side_(std::make_shared<std::shared_ptr<distributed::SideStream>>()) {
  if (length < 1) throw ValueError(kOp, "a length of at least 1", std::to_string(length));
  const auto own = static_cast<double>(length);
  const double least = group.all_reduce(own, distributed::ReduceOp::min);
  const double most = group.all_reduce(own, distributed::ReduceOp::max);
  if (least == most) return;
  throw ValueError(kOp, "the same length on all ranks", to_text(least) + " to " + to_text(most));
}

Tensor SequenceParallel::stretch(const Tensor& x, int axis) const {
  if (x.size(axis) != total()) {
    throw ShapeError("SequenceParallel.stretch", std::to_string(total()) + " elements",
                     std::to_string(x.size(axis)));
  }
  return x.narrow(axis, offset(), length_);
}

Tensor SequenceParallel::positions(int64_t batch, Device device) const {
  const Tensor row =
      arange(offset(), offset() + length_, 1, {.dtype = DType::int64, .device = device});
  return row.unsqueeze(0).expand({batch, length_}).contiguous();
}

Tensor SequenceParallel::halo(const Tensor& x, int axis, int64_t before, int64_t after,
                              int64_t first) const {
  if (x.size(axis) != length_) {
    throw ShapeError("SequenceParallel.halo", std::to_string(length_) + " elements",
                     std::to_string(x.size(axis)));
  }
  if (before < 0 || after < 0 || first < 0) {
    throw ValueError("SequenceParallel.halo", "counts of at least 0",
                     std::to_string(std::min({before, after, first})));
  }
  if (group_.size() == 1 || (before == 0 && after == 0 && first == 0)) return x;
  const int positive = axis < 0 ? axis + x.rank() : axis;
  return with_halo(x, {group_, positive, length_, std::min(before, total()),
                       std::min(after, total()), std::min(first, total())});
}

Tensor SequenceParallel::next_tokens(const Tensor& x, int axis, int64_t last) const {
  const Tensor seen = halo(x, axis, 0, 1);
  const Tensor next = seen.narrow(axis, 1, seen.size(axis) - 1);
  if (next.size(axis) == length_) return next;
  Shape shape = x.shape();
  shape[axis < 0 ? axis + x.rank() : axis] = 1;
  return cat({next, full(shape, last, x.options())}, axis);
}

void SequenceParallel::apply(Module& model) const {
  int found = 0;
  model.apply([&](Module& module) {
    if (auto* const attention = dynamic_cast<SplitAttention*>(&module)) {
      attention->set_sequence(*this);
      ++found;
    }
  });
  if (found == 0) {
    throw ValueError("SequenceParallel.apply", "a model with attention modules", "none");
  }
}

void SplitAttention::refuse_split(const char* op, const char* what) const {
  if (sequence_) throw NotImplemented(op, std::string(what) + " over a split sequence");
}

// What a stretch sees, and the mask among the keys that it has then.
struct SequenceParallel::Plan {
  int64_t before = 0, after = 0, first = 0;
  AttentionMask mask{};
  int64_t padding = 0;  // queries added at the end
};

// Undefined if the mask is not one of a few keys near the query and at the start.
std::optional<SequenceParallel::Plan> SequenceParallel::plan_for(
    const AttentionOptions& options) const {
  if (options.bias.defined()) return std::nullopt;
  const bool by_distance = options.relative_bias.defined() || options.alibi_slopes.defined();
  const int64_t most = total() - 1;
  if (const auto reach = options.mask.causal_reach(); reach && reach->exact) {
    // Queries stand at the last keys in both numberings, and sinks are the first keys.
    const int64_t before = reach->recent ? std::min(*reach->recent - 1, most) : most;
    const int64_t first = before == most ? 0 : reach->first;
    if (first > 0 && by_distance) return std::nullopt;
    return Plan{.before = before, .first = first, .mask = options.mask};
  }
  const std::optional<KeyWindow> window = window_of(options.mask.term());
  if (!window) return std::nullopt;
  const int64_t before = std::min(window->left, most), after = std::min(window->right, most);
  // Attention takes the last query to stand at the last key, which is `shift` keys after it. A
  // window can be moved by that; distances, which biases are by, cannot.
  const int64_t shift = std::min(after, total() - offset() - length_);
  if (shift > 0 && by_distance) {
    return Plan{.before = before,
                .after = after,
                .mask = AttentionMask::window(before, after),
                .padding = shift};
  }
  return Plan{.before = before,
              .after = after,
              .mask = AttentionMask::window(before + shift, after - shift)};
}

// The options of the heads that this rank has of the whole sequence.
AttentionOptions SequenceParallel::own_heads(const AttentionOptions& options, int64_t heads) const {
  AttentionOptions own = options;
  const int64_t share = heads / group_.size();
  const auto narrow = [&](Tensor& x, int axis) {
    if (x.defined() && x.rank() > axis && x.size(axis) == heads)
      x = x.narrow(axis, group_.rank() * share, share);
  };
  if (own.bias.defined() && own.bias.rank() >= 3) narrow(own.bias, own.bias.rank() - 3);
  narrow(own.relative_bias, 0);
  narrow(own.alibi_slopes, 0);
  narrow(own.sink_logits, 0);
  return own;
}

Tensor SequenceParallel::attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionOptions& options) const {
  if (group_.size() == 1) return sash::attention(q, k, v, options);
  if (Autocast cast("attention"); cast) {
    return attention(cast(q), cast(k), cast(v), cast_biases(options, cast));
  }
  check_heads(kAttention, q, k, v);
  for (const Tensor& x : {q, k, v}) {
    if (x.size(2) != length_) {
      throw ShapeError(kAttention, std::to_string(length_) + " tokens", to_string(x.shape()));
    }
  }
  const std::optional<Plan> plan = plan_for(options);
  const bool dense = !plan || std::max(plan->before, plan->after) == total() - 1;
  const int64_t ranks = group_.size();
  // Key heads that several ranks need are repeated.
  const int64_t times = k.size(1) % ranks == 0 ? 1 : ranks % k.size(1) == 0 ? ranks / k.size(1) : 0;
  if (dense && times > 0 && q.size(1) % ranks == 0) {
    const auto whole = [&](const Tensor& x) { return all_to_all(x, 1, 2, group_); };
    const auto repeated = [&](const Tensor& x) {
      return times == 1 ? x : repeat_interleave(x, times, 1);
    };
    const Tensor y = sash::attention(whole(q), whole(repeated(k)), whole(repeated(v)),
                                     own_heads(options, q.size(1)));
    return all_to_all(y, 2, 1, group_);
  }
  if (!plan) {
    throw NotImplemented(kAttention,
                         "a halo is for windows, causal(), and a causal window with sinks, without "
                         "a bias, not for " +
                             options.mask.to_string() +
                             "; heads can be split only if their number is a multiple of the " +
                             std::to_string(ranks) + " ranks, not " + std::to_string(q.size(1)) +
                             " and " + std::to_string(k.size(1)));
  }
  return attention_with_halo(q, k, v, options, *plan);
}

Tensor SequenceParallel::attention_with_halo(const Tensor& q, const Tensor& k, const Tensor& v,
                                             const AttentionOptions& options,
                                             const Plan& plan) const {
  const bool by_parts = plan.first == 0 && options.dropout == 0 && !options.sink_logits.defined() &&
                        !options.relative_bias.defined() && !options.alibi_slopes.defined();
  if (by_parts && has_attention_kernels(q.device())) {
    if (!*side_) *side_ = std::make_shared<distributed::SideStream>(q.device());
    return window_attention(q, k, v, {group_, 2, length_, plan.before, plan.after, 0}, options,
                            *side_);
  }
  AttentionOptions own = options;
  own.mask = plan.mask;
  const auto seen = [&](const Tensor& x) {
    return halo(x, 2, plan.before, plan.after, plan.first);
  };
  if (plan.padding == 0) return sash::attention(q, seen(k), seen(v), own);
  Shape shape = q.shape();
  shape[2] = plan.padding;
  const Tensor padded = cat({q, zeros(shape, q.options())}, 2);
  return sash::attention(padded, seen(k), seen(v), own).narrow(2, 0, length_);
}

}  // namespace sash::nn
