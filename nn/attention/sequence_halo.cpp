#include "sequence_halo.h"

#include <algorithm>
#include <array>
#include <utility>

#include "../../ops/attention/exact/attention_call.h"
#include "../../ops/elementwise/unary.h"
#include "../../ops/op.h"
#include "../../ops/shape/concat.h"
#include "../../tensor/copy.h"

namespace sash::nn {

using distributed::Group;

std::vector<IndexRange> Halo::needed(int rank) const {
  const IndexRange stretch = own(rank);
  const int64_t total = group.size() * length;
  const IndexRange front{0, std::min(first, stretch.first)};
  IndexRange left{std::max<int64_t>(0, stretch.first - before), stretch.first};
  const IndexRange right{stretch.past, std::min(total, stretch.past + after)};
  std::vector<IndexRange> ranges;
  if (front.past < left.first) {
    ranges.push_back(front);
  } else {
    left.first = 0;
  }
  ranges.push_back(left);
  ranges.push_back(right);
  std::erase_if(ranges, [](const IndexRange& range) { return range.empty(); });
  return ranges;
}

namespace {

// f(rank, part) for the parts of a range, by the stretches that they lie in.
template <class F>
void for_each_stretch(const Halo& halo, IndexRange range, F f) {
  const auto first = static_cast<int>(range.first / halo.length);
  for (int r = first; r * halo.length < range.past; ++r) f(r, intersect(halo.own(r), range));
}

// f(rank, part) for the parts of this rank's stretch that other ranks need, in the order of ranks.
template <class F>
void for_each_taker(const Halo& halo, F f) {
  const int rank = halo.group.rank();
  for (int r = 0; r < halo.group.size(); ++r) {
    for (const IndexRange& range : halo.needed(r)) {
      if (const IndexRange part = intersect(halo.own(rank), range); !part.empty()) f(r, part);
    }
  }
}

Tensor part_like(const Tensor& x, int axis, int64_t size) {
  Shape shape = x.shape();
  shape[axis] = size;
  return empty(shape, x.options());
}

// The part of the stretch x at these elements of the sequence.
Tensor part_of(const Tensor& x, const Halo& halo, IndexRange part) {
  return x.narrow(halo.axis, part.first - halo.own(halo.group.rank()).first, part.size());
}

}  // namespace

std::vector<std::vector<Tensor>> fetch(const Halo& halo, std::span<const Tensor> own) {
  const NoGradGuard no_grad;
  std::vector<Group::Parcel> sent, received;
  std::vector<std::vector<std::vector<Tensor>>> pieces(own.size());
  for (size_t i = 0; i < own.size(); ++i) {
    for_each_taker(halo, [&](int r, IndexRange part) {
      sent.push_back({r, part_of(own[i], halo, part).contiguous()});
    });
    for (const IndexRange& range : halo.needed(halo.group.rank())) {
      pieces[i].emplace_back();
      for_each_stretch(halo, range, [&](int r, IndexRange part) {
        received.push_back({r, part_like(own[i], halo.axis, part.size())});
        pieces[i].back().push_back(received.back().tensor);
      });
    }
  }
  halo.group.exchange(sent, received);
  std::vector<std::vector<Tensor>> all(own.size());
  for (size_t i = 0; i < own.size(); ++i) {
    for (const std::vector<Tensor>& some : pieces[i]) {
      all[i].push_back(some.size() == 1 ? some[0] : cat(some, halo.axis));
    }
  }
  return all;
}

std::vector<std::vector<HaloTerm>> give(const Halo& halo, std::span<const Tensor> like,
                                        std::span<const std::vector<Tensor>> needed) {
  const NoGradGuard no_grad;
  const int64_t start = halo.own(halo.group.rank()).first;
  const std::vector<IndexRange> ranges = halo.needed(halo.group.rank());
  std::vector<Group::Parcel> sent, received;
  std::vector<std::vector<HaloTerm>> terms(like.size());
  for (size_t i = 0; i < like.size(); ++i) {
    for (size_t n = 0; n < ranges.size(); ++n) {
      for_each_stretch(halo, ranges[n], [&](int r, IndexRange part) {
        const int64_t at = part.first - ranges[n].first;
        sent.push_back({r, needed[i][n].narrow(halo.axis, at, part.size()).contiguous()});
      });
    }
    for_each_taker(halo, [&](int r, IndexRange part) {
      received.push_back({r, part_like(like[i], halo.axis, part.size())});
      terms[i].push_back({{part.first - start, part.past - start}, received.back().tensor});
    });
  }
  halo.group.exchange(sent, received);
  return terms;
}

namespace {

void add_terms(const Tensor& x, int axis, const std::vector<HaloTerm>& terms) {
  for (const HaloTerm& term : terms) {
    x.narrow(axis, term.place.first, term.place.size()).add_(term.value);
  }
}

Tensor add_halo(const Tensor& g, const Halo& halo);

}  // namespace

Tensor with_halo(const Tensor& x, const Halo& halo) {
  const std::vector<IndexRange> ranges = halo.needed(halo.group.rank());
  const Tensor own = x.detach();
  std::vector<Tensor> parts = fetch(halo, std::array{own})[0];
  const auto behind = std::find_if(ranges.begin(), ranges.end(), [&](const IndexRange& range) {
    return range.first >= halo.own(halo.group.rank()).past;
  });
  parts.insert(parts.begin() + (behind - ranges.begin()), own);
  return record("halo", {x}, cat(parts, halo.axis),
                [halo](Backward&, const Tensor& g) { return Gradients{add_halo(g, halo)}; });
}

namespace {

// The transpose of `with_halo`: what all ranks have for this stretch, own first.
Tensor add_halo(const Tensor& g, const Halo& halo) {
  const IndexRange stretch = halo.own(halo.group.rank());
  const Tensor all = g.detach();
  std::vector<Tensor> needed;
  int64_t at = 0, own_at = 0;
  for (const IndexRange& range : halo.needed(halo.group.rank())) {
    if (range.first >= stretch.past && at == own_at) at += halo.length;
    needed.push_back(all.narrow(halo.axis, at, range.size()));
    at += range.size();
    if (range.past <= stretch.first) own_at = at;
  }
  const Tensor sum = all.narrow(halo.axis, own_at, halo.length).clone();
  add_terms(sum, halo.axis, give(halo, std::array{sum}, std::array{needed})[0]);
  return record("add_halo", {g}, sum,
                [halo](Backward&, const Tensor& h) { return Gradients{with_halo(h, halo)}; });
}

}  // namespace

Tensor all_to_all(const Tensor& x, int from, int to, const Group& group) {
  const int64_t size = x.size(from) / group.size();
  std::vector<Group::Parcel> sent, received;
  std::vector<Tensor> parts;
  const Tensor own = x.detach();
  for (int r = 0; r < group.size(); ++r) {
    const Tensor part = own.narrow(from, r * size, size).contiguous();
    parts.push_back(r == group.rank() ? part : empty_like(part));
    if (r == group.rank()) continue;
    sent.push_back({r, part});
    received.push_back({r, parts.back()});
  }
  group.exchange(sent, received);
  return record("all_to_all", {x}, cat(parts, to), [=](Backward&, const Tensor& g) {
    return Gradients{all_to_all(g, to, from, group)};
  });
}

namespace {

// A call for the queries of a stretch that see keys of other ranks.
struct Border {
  IndexRange queries;
  AttentionMask mask;
};

// In the order of `Halo::needed`. Attention lets the last query stand at the last key.
std::vector<Border> borders(const Halo& halo) {
  std::vector<Border> all;
  for (const IndexRange& keys : halo.needed(halo.group.rank())) {
    if (keys.first < halo.own(halo.group.rank()).first) {
      const int64_t count = std::min(halo.before, halo.length);
      all.push_back({{0, count}, AttentionMask::window(halo.before - count, keys.size())});
    } else {
      const int64_t count = std::min(halo.after, halo.length);
      all.push_back({{halo.length - count, halo.length},
                     AttentionMask::window(keys.size(), halo.after - keys.size())});
    }
  }
  return all;
}

// One call, and the queries of the stretch that it is for.
struct PartialCall {
  IndexRange queries;
  AttentionCall call;

  Tensor rows(const Tensor& x) const { return x.narrow(2, queries.first, queries.size()); }
};

// The softmax over the keys of both: `part` into some rows of `all`.
void merge(const AttentionWithLse& all, const AttentionWithLse& part, const PartialCall& of) {
  const Tensor out = of.rows(all.out), lse = of.rows(all.lse);
  const Tensor difference = part.lse - lse;
  const Tensor share = sigmoid(difference).unsqueeze(-1);
  const Tensor wide = out.to(lse.dtype());
  copy_elements((wide + (part.out.to(lse.dtype()) - wide) * share).to(out.dtype()), out);
  copy_elements(lse + softplus(difference), lse);
}

struct WindowPass {
  AttentionWithLse y;
  std::vector<std::vector<Tensor>> keys;  // of k and v, for each border
  PartialCall own;
  std::vector<PartialCall> borders{};
};

WindowPass window_forward(const AttentionTensors& x, const Halo& halo,
                          const AttentionOptions& options, distributed::SideStream& side) {
  const NoGradGuard no_grad;
  const auto call_of = [&](const AttentionTensors& inputs, const AttentionMask& mask) {
    AttentionOptions own = options;
    own.mask = mask;
    AttentionCall call(inputs, own);
    call.prepare_kernels(inputs.q.device());
    return call;
  };
  const AttentionMask mask = halo.after == 0 ? AttentionMask::causal_window(halo.before + 1)
                                             : AttentionMask::window(halo.before, halo.after);
  PartialCall own{{0, halo.length}, call_of(x, mask)};
  auto keys = side.run([&] { return fetch(halo, std::array{x.k, x.v}); });
  WindowPass pass{run_attention(x, own.call), std::move(keys), std::move(own)};
  side.join();
  const std::vector<Border> all = borders(halo);
  for (size_t i = 0; i < all.size(); ++i) {
    const IndexRange rows = all[i].queries;
    const AttentionTensors inputs{x.q.narrow(2, rows.first, rows.size()), pass.keys[0][i],
                                  pass.keys[1][i]};
    pass.borders.push_back({rows, call_of(inputs, all[i].mask)});
    merge(pass.y, run_attention(inputs, pass.borders[i].call), pass.borders[i]);
  }
  return pass;
}

Gradients window_backward(const Tensor& g, const AttentionTensors& x, const Tensor& out,
                          const WindowPass& pass, const Halo& halo, distributed::SideStream& side) {
  const NoGradGuard no_grad;
  std::vector<Tensor> queries;
  std::vector<std::vector<Tensor>> halos(2);
  for (size_t i = 0; i < pass.borders.size(); ++i) {
    const PartialCall& border = pass.borders[i];
    const Gradients some = run_attention_backward(
        {.out = border.rows(g)}, {border.rows(x.q), pass.keys[0][i], pass.keys[1][i]},
        border.rows(out).contiguous(), border.rows(pass.y.lse).contiguous(), border.call);
    queries.push_back(some[0]);
    halos[0].push_back(some[1]);
    halos[1].push_back(some[2]);
  }
  const auto terms = side.run([&] { return give(halo, std::array{x.k, x.v}, halos); });
  Gradients all = run_attention_backward({.out = g}, x, out, pass.y.lse, pass.own.call);
  for (size_t i = 0; i < queries.size(); ++i) pass.borders[i].rows(all[0]).add_(queries[i]);
  side.join();
  add_terms(all[1], 2, terms[0]);
  add_terms(all[2], 2, terms[1]);
  return {all[0], all[1], all[2]};
}

}  // namespace

Tensor window_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Halo& halo,
                        const AttentionOptions& options,
                        const std::shared_ptr<distributed::SideStream>& side) {
  auto pass = std::make_shared<WindowPass>(
      window_forward({q.detach(), k.detach(), v.detach()}, halo, options, *side));
  const Tensor out = std::exchange(pass->y.out, Tensor());  // a result does not own itself
  record("window_attention", {q, k, v}, out,
         [q = save(q), k = save(k), v = save(v), out = save_output(out, 0), pass = std::move(pass),
          halo, options, side](Backward& backward, const Tensor& g) {
           const AttentionTensors x{backward(q), backward(k), backward(v)};
           if (!backward.create_graph()) {
             return window_backward(g, x, backward(out), *pass, halo, *side);
           }
           const auto whole = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
             return attention(a, with_halo(b, halo), with_halo(c, halo), options);
           };
           return gradients_of_composite(backward, g, whole, std::array{x.q, x.k, x.v});
         });
  return out;
}

}  // namespace sash::nn
