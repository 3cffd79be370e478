#include "../../../ops/kernels/selected_attention.h"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "../../../core/error.h"
#include "../../../core/parallel.h"
#include "../linalg/gemm.h"
#include "attention_halves.h"

/// Attention over selected blocks. A task takes a tile of queries and visits, in ascending order,
/// the blocks that any of them selects: the rows of those queries are gathered, so each block is
/// one product of matrices.
namespace sash::cpu {
namespace {
namespace selected {

using attn::FloatOperand;
using attn::FloatResult;
using Index = int64_t;
using kernels::KeyRange;

constexpr Index kTile = 32;       // queries of a task
constexpr Index kStepKeys = 256;  // longer blocks are taken in parts
constexpr Index kSums = 4;        // sums of dk and dv, at least, that run side by side

template <class T>
using Rows = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

template <class T>
T* row_of(const TensorView& x, Index b, Index h, Index row) {
  return x.ptr<T>() + b * x.strides[0] + h * x.strides[1] + row * x.strides[2];
}

template <class T>
Matrix<const T> rows_from(const TensorView& x, Index b, Index h, Index row) {
  return {row_of<const T>(x, b, h, row), x.strides[2], 1};
}

/// A query that selects the keys from `key` on, up to the end of the block or `kStepKeys` of them.
struct Pair {
  Index key, query;
  auto operator<=>(const Pair&) const = default;
};

/// The lengths of a call. A unit is the `group` query heads that share a row of the index.
struct Sizes {
  Index batch, heads, key_heads, queries, keys, depth, width;
  Index units, group;
  const kernels::SelectedAttentionParams& params;

  Sizes(const kernels::AttentionInputs& x, const kernels::SelectedAttentionParams& p)
      : batch(x.q.shape[0]),
        heads(x.q.shape[1]),
        key_heads(x.k.shape[1]),
        queries(x.q.shape[2]),
        keys(x.k.shape[2]),
        depth(x.q.shape[3]),
        width(x.v.shape[3]),
        units(std::max(p.index.shape[1], key_heads)),
        group(units > 0 ? heads / units : 0),
        params(p) {}

  Index step_keys() const { return std::min(params.block, kStepKeys); }
  Index tiles() const { return (queries + kTile - 1) / kTile; }
  Index key_head(Index unit) const { return unit * key_heads / units; }

  KeyRange range(Index b, Index h, Index query) const {
    const Index p = query + keys - queries;
    Index first = std::max<Index>(0, p - params.left), past = std::min(keys, p + params.right + 1);
    if (const TensorView* bounds = params.bounds) {
      const Index at_b = bounds->shape[0] == 1 ? 0 : b, at_h = bounds->shape[1] == 1 ? 0 : h;
      const KeyRange own =
          bounds->ptr<const KeyRange>()[(at_b * bounds->shape[1] + at_h) * queries + query];
      first = std::max<Index>(first, own.first);
      past = std::min<Index>(past, own.past);
    }
    return {static_cast<int32_t>(first), static_cast<int32_t>(past)};
  }

  /// The last key of a pair's keys, + 1.
  Index past(Index key) const {
    const Index end = (key / params.block + 1) * params.block;
    return std::min({key + kStepKeys, end, keys});
  }

  /// The blocks of the queries [first, past) of a unit, ascending, each with its queries.
  void select(Index b, Index unit, Index first, Index past, std::vector<Pair>& pairs) const {
    const TensorView& index = params.index;
    const Index rows = index.shape[2], width_of_row = index.shape[3];
    const Index at = (index.shape[0] == 1 ? 0 : b) * index.shape[1] +
                     (index.shape[1] == 1 ? 0 : unit * index.shape[1] / units);
    pairs.clear();
    for (Index i = first; i < past; ++i) {
      const int32_t* const row =
          index.ptr<const int32_t>() + (at * rows + i / params.queries_per_row) * width_of_row;
      for (Index n = 0; n < width_of_row; ++n) {
        if (row[n] < 0) continue;
        const Index key = row[n] * params.block;
        for (Index at_key = 0; at_key < params.block; at_key += kStepKeys) {
          pairs.push_back({key + at_key, i});
        }
      }
    }
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  }

  void check_index() const {
    const Index blocks = (keys + params.block - 1) / params.block;
    const auto* const begin = params.index.ptr<const int32_t>();
    for (Index at = 0; at < params.index.numel(); ++at) {
      if (begin[at] >= -1 && begin[at] < blocks) continue;
      throw IndexError("attention", "selected blocks in [-1, " + std::to_string(blocks) + ")",
                       std::to_string(begin[at]) + " at element " + std::to_string(at));
    }
  }
};

/// The gathered rows of a block: `rows` (query, head) pairs against the keys [first, past).
struct Step {
  Index first, past, rows;

  Index keys() const { return past - first; }
};

/// Scratch of a task, for tiles of `kTile` queries of `group` heads.
template <class T>
class Scratch {
 public:
  Scratch(const KernelContext& context, const Sizes& s)
      : s_(s),
        most_(kTile * s.group),
        memory_(context, (most_ * (2 * s.depth + 2 * s.width + 2 * s.step_keys() + 4)) *
                             static_cast<Index>(sizeof(T))),
        q(memory_.ptr<T>()),
        g(q + most_ * s.depth),
        product(g + most_ * s.width),
        scores(product + most_ * std::max(s.depth, s.width)),
        gradients(scores + most_ * s.step_keys()) {
    place_.reserve(static_cast<size_t>(most_));
  }

  /// Gathers the rows of q, and of `cotangent` if there is one, of one block's pairs.
  Step gather(const TensorView& queries, const TensorView* cotangent, Index b, Index unit,
              const Pair* begin, const Pair* end) {
    place_.clear();
    ranges_.clear();
    KeyRange all{static_cast<int32_t>(s_.keys), 0};
    for (const Pair* pair = begin; pair != end; ++pair) {
      for (Index n = 0; n < s_.group; ++n) {
        const Index h = unit * s_.group + n;
        KeyRange range = s_.range(b, h, pair->query);
        range.first = std::max(range.first, static_cast<int32_t>(begin->key));
        range.past = std::min(range.past, static_cast<int32_t>(s_.past(begin->key)));
        if (range.first >= range.past) continue;
        all = {std::min(all.first, range.first), std::max(all.past, range.past)};
        const auto row = static_cast<Index>(place_.size());
        std::copy_n(row_of<const T>(queries, b, h, pair->query), s_.depth, q + row * s_.depth);
        if (cotangent) {
          std::copy_n(row_of<const T>(*cotangent, b, h, pair->query), s_.width, g + row * s_.width);
        }
        place_.push_back({pair->query, h});
        ranges_.push_back(range);
      }
    }
    return {all.first, all.past, static_cast<Index>(place_.size())};
  }
  /// Query and head of a gathered row, and the keys that it sees in the step.
  std::pair<Index, Index> place(Index row) const { return place_[static_cast<size_t>(row)]; }
  KeyRange range(Index row) const { return ranges_[static_cast<size_t>(row)]; }

 private:
  const Sizes& s_;
  Index most_;
  Workspace memory_;
  std::vector<std::pair<Index, Index>> place_;
  std::vector<KeyRange> ranges_;

 public:
  T *q, *g, *product, *scores, *gradients;
};

/// Calls f(begin, end) for the pairs of each block.
template <class F>
void for_each_block(const std::vector<Pair>& pairs, F f) {
  const Pair* const past = pairs.data() + pairs.size();
  for (const Pair* at = pairs.data(); at != past;) {
    const Pair* end = at;
    while (end != past && end->key == at->key) ++end;
    f(at, end);
    at = end;
  }
}

template <class T>
class Forward {
 public:
  Forward(const KernelContext& context, const kernels::AttentionInputs& x, const Sizes& s,
          const TensorView& out, const TensorView& lse)
      : context_(context), x_(x), s_(s), out_(out), lse_(lse) {}

  void run() const {
    const Index tiles = s_.tiles();
    parallel_for(s_.batch * s_.units * tiles, 1, [&](Index begin, Index end) {
      Scratch<T> scratch(context_, s_);
      std::vector<Pair> pairs;
      for (Index task = begin; task < end; ++task) {
        const Index unit = task / tiles % s_.units, b = task / (tiles * s_.units);
        tile(b, unit, task % tiles * kTile, scratch, pairs);
      }
    });
  }

 private:
  void tile(Index b, Index unit, Index first, Scratch<T>& scratch, std::vector<Pair>& pairs) const {
    const Index past = std::min(first + kTile, s_.queries), rows = (past - first) * s_.group;
    const Workspace memory(context_, rows * (s_.width + 2) * static_cast<Index>(sizeof(T)));
    T* const sum = memory.ptr<T>();
    T* const largest = sum + rows * s_.width;
    T* const total = largest + rows;
    std::fill_n(sum, rows * s_.width, T(0));
    std::fill_n(largest, rows, -std::numeric_limits<T>::infinity());
    std::fill_n(total, rows, T(0));
    const auto place = [&](Index query, Index h) {
      return (query - first) * s_.group + h - unit * s_.group;
    };
    s_.select(b, unit, first, past, pairs);
    for_each_block(pairs, [&](const Pair* begin, const Pair* end) {
      const Step step = scratch.gather(x_.q, nullptr, b, unit, begin, end);
      if (step.rows == 0) return;
      const Index kv = s_.key_head(unit), n = step.keys();
      gemm<T>(context_, {.m = step.rows,
                         .n = n,
                         .k = s_.depth,
                         .a = {scratch.q, s_.depth, 1},
                         .b = rows_from<T>(x_.k, b, kv, step.first).transposed(),
                         .c = {scratch.scores, n, 1},
                         .alpha = static_cast<T>(s_.params.scale)});
      for (Index row = 0; row < step.rows; ++row) {
        const auto [query, h] = scratch.place(row);
        T* const o = sum + place(query, h) * s_.width;
        const T factor = add_row(scratch.scores + row * n, n, step.first, scratch.range(row),
                                 largest[place(query, h)], total[place(query, h)]);
        if (factor != 1) Rows<T>(o, 1, s_.width) *= factor;
      }
      gemm<T>(context_, {.m = step.rows,
                         .n = s_.width,
                         .k = n,
                         .a = {scratch.scores, n, 1},
                         .b = rows_from<T>(x_.v, b, kv, step.first),
                         .c = {scratch.product, s_.width, 1}});
      for (Index row = 0; row < step.rows; ++row) {
        const auto [query, h] = scratch.place(row);
        Rows<T>(sum + place(query, h) * s_.width, 1, s_.width) +=
            Rows<T>(scratch.product + row * s_.width, 1, s_.width);
      }
    });
    for (Index i = first; i < past; ++i) {
      for (Index h = unit * s_.group; h < (unit + 1) * s_.group; ++h) {
        const Index at = place(i, h);
        const bool none = total[at] == 0;
        Rows<T>(row_of<T>(out_, b, h, i), 1, s_.width) =
            Rows<T>(sum + at * s_.width, 1, s_.width) * (none ? T(0) : 1 / total[at]);
        lse_.ptr<T>()[(b * s_.heads + h) * s_.queries + i] =
            none ? std::numeric_limits<T>::infinity() : largest[at] + std::log(total[at]);
      }
    }
  }

  /// Makes a row of scores exp(s - largest), 0 where the range hides them. Returns the factor of
  /// earlier sums.
  static T add_row(T* scores, Index n, Index first, KeyRange range, T& largest, T& total) {
    const Index from = range.first - first, to = range.past - first;
    const T before = largest;
    for (Index j = from; j < to; ++j) largest = scores[j] > largest ? scores[j] : largest;
    const T base = std::isinf(largest) && largest < 0 ? T(0) : largest;
    std::fill_n(scores, from, T(0));
    std::fill_n(scores + to, n - to, T(0));
    Rows<T> seen(scores + from, 1, to - from);
    seen = (seen - base).exp();
    const T factor = before == largest ? T(1) : std::exp(before - base);
    total = total * factor + seen.sum();
    return factor;
  }

  const KernelContext& context_;
  const kernels::AttentionInputs& x_;
  const Sizes& s_;
  const TensorView &out_, &lse_;
};

/// A task sums dk and dv over a run of tiles, of all units of a key head.
template <class T>
class BackwardPass {
 public:
  BackwardPass(const KernelContext& context, const kernels::AttentionInputs& x, const Sizes& s,
               const kernels::AttentionGradients& g)
      : context_(context),
        x_(x),
        s_(s),
        g_(g),
        heads_(s.batch * s.key_heads),
        parts_(std::clamp<Index>((kSums + heads_ - 1) / std::max<Index>(heads_, 1), 1,
                                 std::max<Index>(s.tiles(), 1))),
        memory_(context,
                parts_ * heads_ * s.keys * (s.depth + s.width) * static_cast<Index>(sizeof(T))) {}

  void run() const {
    parallel_for_each(heads_ * parts_, 1,
                      [&](Index task) { sum_part(task / parts_, task % parts_); });
    parallel_for_each(heads_, 1, [&](Index head) { add_parts(head); });
  }

 private:
  T* sums(Index head, Index part) const {
    return memory_.ptr<T>() + (head * parts_ + part) * s_.keys * (s_.depth + s_.width);
  }

  void sum_part(Index head, Index part) const {
    const Index b = head / s_.key_heads, kv = head % s_.key_heads;
    const Index units = s_.units / s_.key_heads;
    const Index first = s_.tiles() * part / parts_, past = s_.tiles() * (part + 1) / parts_;
    std::fill_n(sums(head, part), s_.keys * (s_.depth + s_.width), T(0));
    Scratch<T> scratch(context_, s_);
    std::vector<Pair> pairs;
    for (Index unit = kv * units; unit < (kv + 1) * units; ++unit) {
      for (Index tile = first; tile < past; ++tile) {
        const Index query = tile * kTile, end = std::min(query + kTile, s_.queries);
        zero_queries(b, unit, query, end);
        s_.select(b, unit, query, end, pairs);
        for_each_block(pairs, [&](const Pair* from, const Pair* to) {
          add_block(b, unit, sums(head, part), scratch, from, to);
        });
      }
    }
  }

  void zero_queries(Index b, Index unit, Index first, Index past) const {
    for (Index h = unit * s_.group; h < (unit + 1) * s_.group; ++h) {
      for (Index i = first; i < past; ++i) std::fill_n(row_of<T>(g_.dq, b, h, i), s_.depth, T(0));
    }
  }

  void add_block(Index b, Index unit, T* sum, Scratch<T>& scratch, const Pair* begin,
                 const Pair* end) const {
    const Step step = scratch.gather(x_.q, &g_.g, b, unit, begin, end);
    if (step.rows == 0) return;
    const Index kv = s_.key_head(unit), n = step.keys(), rows = step.rows;
    const Matrix<const T> k = rows_from<T>(x_.k, b, kv, step.first);
    const Matrix<const T> q{scratch.q, s_.depth, 1}, g{scratch.g, s_.width, 1};
    const Matrix<const T> p{scratch.scores, n, 1}, ds{scratch.gradients, n, 1};
    T* const dk = sum + step.first * s_.depth;
    T* const dv = sum + s_.keys * s_.depth + step.first * s_.width;
    gemm<T>(context_, {.m = rows,
                       .n = n,
                       .k = s_.depth,
                       .a = q,
                       .b = k.transposed(),
                       .c = {scratch.scores, n, 1},
                       .alpha = static_cast<T>(s_.params.scale)});
    gemm<T>(context_, {.m = rows,
                       .n = n,
                       .k = s_.width,
                       .a = g,
                       .b = rows_from<T>(x_.v, b, kv, step.first).transposed(),
                       .c = {scratch.gradients, n, 1}});
    for (Index row = 0; row < rows; ++row) weigh_row(b, step, row, scratch);
    gemm<T>(context_, {.m = n,
                       .n = s_.width,
                       .k = rows,
                       .a = p.transposed(),
                       .b = g,
                       .c = {dv, s_.width, 1},
                       .beta = 1});
    gemm<T>(context_, {.m = n,
                       .n = s_.depth,
                       .k = rows,
                       .a = ds.transposed(),
                       .b = q,
                       .c = {dk, s_.depth, 1},
                       .beta = 1});
    gemm<T>(
        context_,
        {.m = rows, .n = s_.depth, .k = n, .a = ds, .b = k, .c = {scratch.product, s_.depth, 1}});
    for (Index row = 0; row < rows; ++row) {
      const auto [query, h] = scratch.place(row);
      Rows<T>(row_of<T>(g_.dq, b, h, query), 1, s_.depth) +=
          Rows<T>(scratch.product + row * s_.depth, 1, s_.depth);
    }
  }

  /// Makes the scores of a row its weights P, and g v' the gradients scale P (g v' - D).
  void weigh_row(Index b, const Step& step, Index row, Scratch<T>& scratch) const {
    const auto [query, h] = scratch.place(row);
    const Index n = step.keys(), at = (b * s_.heads + h) * s_.queries + query;
    const Index from = scratch.range(row).first - step.first;
    const Index to = scratch.range(row).past - step.first;
    T* const p = scratch.scores + row * n;
    T* const ds = scratch.gradients + row * n;
    for (T* x : {p, ds}) {
      std::fill_n(x, from, T(0));
      std::fill_n(x + to, n - to, T(0));
    }
    T mean = (Rows<T>(row_of<T>(g_.g, b, h, query), 1, s_.width) *
              Rows<T>(row_of<T>(g_.out, b, h, query), 1, s_.width))
                 .sum();
    if (g_.g_lse) mean -= g_.g_lse->template ptr<const T>()[at];
    Rows<T> weights(p + from, 1, to - from), gradients(ds + from, 1, to - from);
    weights = (weights - g_.lse.template ptr<const T>()[at]).exp();
    gradients = weights * (gradients - mean) * static_cast<T>(s_.params.scale);
  }

  void add_parts(Index head) const {
    const Index b = head / s_.key_heads, kv = head % s_.key_heads;
    for (Index j = 0; j < s_.keys; ++j) {
      add_row(head, j * s_.depth, s_.depth, row_of<T>(g_.dk, b, kv, j));
      add_row(head, s_.keys * s_.depth + j * s_.width, s_.width, row_of<T>(g_.dv, b, kv, j));
    }
  }
  void add_row(Index head, Index at, Index count, T* to) const {
    Rows<T> total(to, 1, count);
    total = Rows<T>(sums(head, 0) + at, 1, count);
    for (Index part = 1; part < parts_; ++part) {
      total += Rows<T>(sums(head, part) + at, 1, count);
    }
  }

  const KernelContext& context_;
  const kernels::AttentionInputs& x_;
  const Sizes& s_;
  const kernels::AttentionGradients& g_;
  Index heads_, parts_;
  Workspace memory_;
};

void forward(KernelContext& context, const kernels::AttentionInputs& inputs,
             const kernels::SelectedAttentionParams& params, const TensorView& out,
             const TensorView& lse) {
  const FloatOperand q(context, inputs.q), k(context, inputs.k), v(context, inputs.v);
  FloatResult result(context, out);
  const kernels::AttentionInputs floats{q.view(), k.view(), v.view()};
  const Sizes s(floats, params);
  s.check_index();
  if (out.dtype == DType::float64) {
    Forward<double>(context, floats, s, result.view(), lse).run();
  } else {
    Forward<float>(context, floats, s, result.view(), lse).run();
  }
  result.write();
}

void backward(KernelContext& context, const kernels::AttentionInputs& inputs,
              const kernels::SelectedAttentionParams& params,
              const kernels::AttentionGradients& gradients) {
  const FloatOperand q(context, inputs.q), k(context, inputs.k), v(context, inputs.v);
  const FloatOperand g(context, gradients.g), out(context, gradients.out);
  FloatResult dq(context, gradients.dq), dk(context, gradients.dk), dv(context, gradients.dv);
  const kernels::AttentionInputs floats{q.view(), k.view(), v.view()};
  const Sizes s(floats, params);
  kernels::AttentionGradients x = gradients;
  x.g = g.view();
  x.out = out.view();
  x.dq = dq.view();
  x.dk = dk.view();
  x.dv = dv.view();
  if (inputs.q.dtype == DType::float64) {
    BackwardPass<double>(context, floats, s, x).run();
  } else {
    BackwardPass<float>(context, floats, s, x).run();
  }
  for (FloatResult* result : {&dq, &dk, &dv}) result->write();
}

}  // namespace selected
}  // namespace

void register_selected_attention() {
  kernels::selected_attention_forward.set(DeviceType::cpu, selected::forward);
  kernels::selected_attention_backward.set(DeviceType::cpu, selected::backward);
}

}  // namespace sash::cpu
