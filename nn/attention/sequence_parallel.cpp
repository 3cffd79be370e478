#include "sequence_parallel.h"

#include <algorithm>
#include <string>
#include <vector>

#include "../../core/error.h"
#include "../../core/range.h"
#include "../../ops/attention/mask/mask_part.h"
#include "../../ops/shape/concat.h"
#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"

namespace sash::nn {

using distributed::Group;

namespace {

constexpr const char* kOp = "SequenceParallel";

// The stretches of the ranks along an axis, and what each rank sees of the sequence: its stretch,
// `before` elements in front of it, `after` behind it, and the first `sinks` elements.
struct Halo {
  Group group;
  int axis;
  int64_t length, before, after, sinks;

  IndexRange own(int rank) const { return {rank * length, (rank + 1) * length}; }
  // In ascending order, without overlaps.
  std::vector<IndexRange> seen(int rank) const {
    const IndexRange stretch = own(rank);
    const int64_t total = group.size() * length;
    const IndexRange near{std::max<int64_t>(0, stretch.first - before),
                          std::min(total, stretch.past + after)};
    if (near.first <= sinks) return {{sinks > 0 ? 0 : near.first, near.past}};
    if (sinks == 0) return {near};
    return {{0, sinks}, near};
  }
  // What `rank` sees of the stretch of `owner`.
  std::vector<IndexRange> parts(int owner, int rank) const {
    std::vector<IndexRange> found;
    for (const IndexRange& range : seen(rank)) {
      if (const IndexRange part = intersect(own(owner), range); !part.empty())
        found.push_back(part);
    }
    return found;
  }
};

Tensor part_like(const Tensor& x, int axis, int64_t size) {
  Shape shape = x.shape();
  shape[axis] = size;
  return empty(shape, x.options());
}

Tensor add_halo(const Tensor& g, const Halo& halo);

// What this rank sees of the sequence whose stretch here is x.
Tensor with_halo(const Tensor& x, const Halo& halo) {
  const int rank = halo.group.rank();
  std::vector<Group::Parcel> sent, received;
  std::vector<Tensor> parts;
  const Tensor own = x.detach();
  Tensor y;
  {
    const NoGradGuard no_grad;
    const auto mine = [&](IndexRange part) {
      return own.narrow(halo.axis, part.first - halo.own(rank).first, part.size());
    };
    for (int r = 0; r < halo.group.size(); ++r) {
      if (r == rank) continue;
      for (const IndexRange& part : halo.parts(rank, r))
        sent.push_back({r, mine(part).contiguous()});
    }
    for (const IndexRange& range : halo.seen(rank)) {
      for (int r = 0; r < halo.group.size(); ++r) {
        const IndexRange part = intersect(halo.own(r), range);
        if (part.empty()) continue;
        parts.push_back(r == rank ? mine(part) : part_like(own, halo.axis, part.size()));
        if (r != rank) received.push_back({r, parts.back()});
      }
    }
    halo.group.exchange(sent, received);
    y = cat(parts, halo.axis);
  }
  return record("halo", {x}, y,
                [halo](Backward&, const Tensor& g) { return Gradients{add_halo(g, halo)}; });
}

// The transpose of `with_halo`: the sum of what all ranks have for this rank's stretch, own first,
// then in the order of ranks.
Tensor add_halo(const Tensor& g, const Halo& halo) {
  const int rank = halo.group.rank();
  const int64_t start = halo.own(rank).first;
  std::vector<Group::Parcel> sent, received;
  std::vector<IndexRange> places;
  const Tensor all = g.detach();
  Tensor sum = part_like(all, halo.axis, halo.length);
  {
    const NoGradGuard no_grad;
    sum.zero_();
    int64_t at = 0;  // in g
    for (const IndexRange& range : halo.seen(rank)) {
      for (int r = 0; r < halo.group.size(); ++r) {
        const IndexRange part = intersect(halo.own(r), range);
        if (part.empty()) continue;
        const Tensor piece = all.narrow(halo.axis, at, part.size());
        at += part.size();
        if (r == rank) {
          sum.narrow(halo.axis, part.first - start, part.size()).add_(piece);
        } else {
          sent.push_back({r, piece.contiguous()});
        }
      }
    }
    for (int r = 0; r < halo.group.size(); ++r) {
      if (r == rank) continue;
      for (const IndexRange& part : halo.parts(rank, r)) {
        received.push_back({r, part_like(all, halo.axis, part.size())});
        places.push_back(part);
      }
    }
    halo.group.exchange(sent, received);
    for (size_t i = 0; i < places.size(); ++i) {
      sum.narrow(halo.axis, places[i].first - start, places[i].size()).add_(received[i].tensor);
    }
  }
  return record("add_halo", {g}, sum,
                [halo](Backward&, const Tensor& h) { return Gradients{with_halo(h, halo)}; });
}

[[noreturn]] void refuse(const std::string& what) {
  throw NotImplemented("SequenceParallel.attention", what);
}

}  // namespace

SequenceParallel::SequenceParallel(const Group& group, int64_t length)
    : group_(group), length_(length) {
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

// What a stretch sees, and the mask among the keys that it has then.
struct SequenceParallel::Plan {
  int64_t before = 0, after = 0, first = 0;
  AttentionMask mask{};
  int64_t padding = 0;  // queries added at the end
};

SequenceParallel::Plan SequenceParallel::plan_for(const AttentionOptions& options) const {
  if (options.bias.defined()) refuse("a bias of the whole sequence");
  const int64_t most = total() - 1;
  if (const auto reach = options.mask.causal_reach(); reach && reach->exact) {
    // Queries stand at the last keys in both numberings, and sinks are the first keys.
    const int64_t before = reach->recent ? std::min(*reach->recent - 1, most) : most;
    const int64_t first = before == most ? 0 : reach->first;
    if (first > 0 && (options.relative_bias.defined() || options.alibi_slopes.defined())) {
      refuse("sinks with a relative bias or ALiBi, whose distances are those of the sequence");
    }
    return {.before = before, .first = first, .mask = options.mask};
  }
  const std::optional<KeyWindow> window = window_of(options.mask.term());
  if (!window) {
    refuse("the mask " + options.mask.to_string() +
           " is not split: expected a window, causal(), or a causal window with sinks");
  }
  const int64_t before = std::min(window->left, most), after = std::min(window->right, most);
  // Attention takes the last query to stand at the last key, which is `shift` keys after it. A
  // window can be moved by that; distances, which biases are by, cannot.
  const int64_t shift = std::min(after, total() - offset() - length_);
  if (shift > 0 && (options.relative_bias.defined() || options.alibi_slopes.defined())) {
    return {.before = before,
            .after = after,
            .mask = AttentionMask::window(before, after),
            .padding = shift};
  }
  return {.before = before,
          .after = after,
          .mask = AttentionMask::window(before + shift, after - shift)};
}

Tensor SequenceParallel::attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionOptions& options) const {
  if (group_.size() == 1) return sash::attention(q, k, v, options);
  const Plan plan = plan_for(options);
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
