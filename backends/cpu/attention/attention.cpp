#include "attention.h"

#include <algorithm>
#include <cmath>

#include "../../../core/parallel.h"
#include "attention_halves.h"
#include "attention_scores.h"
#include "few_queries.h"

/// Attention in tiles with a running softmax (M. Milakov and N. Gimelshein, "Online normalizer
/// calculation for softmax", 2018; T. Dao et al., "FlashAttention", NeurIPS 2022).
namespace sash::cpu {
namespace {

using namespace attn;

// Keys and values are gathered once per task.
constexpr Index kMaxTilesPerTask = 32;

struct Operands {
  kernels::AttentionInputs inputs;
  TensorView out, lse;
};

/// Consecutive query tiles of one head.
template <class T>
class ForwardTask {
 public:
  ForwardTask(const KernelContext& context, const AttentionDims& dims, const Operands& x, Index b,
              Index h, IndexRange tiles)
      : dims_(dims),
        x_(x),
        b_(b),
        h_(h),
        tiles_(tiles),
        width_(padded_width<T>(dims.v_depth)),
        blocks_(dims, b, {h, h + 1}, tiles),
        k_from_(head<const T>(x.inputs.k, b, dims.group_of(h))),
        v_from_(head<const T>(x.inputs.v, b, dims.group_of(h))),
        scratch_(context, {KeyRows<T>::size(k_from_, blocks_, dims.keys, dims.depth),
                           KeyRows<T>::size(v_from_, blocks_, dims.keys, dims.v_depth),
                           kRows * dims.depth, kRows * width_, kStepKeys * kRows,
                           dims.params.dropout > 0 ? kStepKeys * kRows : 0}),
        k_(k_from_, blocks_, dims.keys, dims.depth, scratch_[0]),
        v_(v_from_, blocks_, dims.keys, dims.v_depth, scratch_[1]),
        q_(scratch_[2]),
        out_(scratch_[3]),
        weights_(scratch_[4]),
        factors_(scratch_[5]) {}

  void run() {
    const FlushDenormals flush;
    for (Index block = tiles_.first; block < tiles_.past; ++block) {
      run_tile(QueryTile(dims_, b_, h_, block));
    }
  }

 private:
  void run_tile(const QueryTile& tile) {
    const auto q = head<const T>(x_.inputs.q, b_, h_);
    transpose_rows<T>({q.row(tile.first), q.stride}, tile.count, dims_.depth, q_);
    std::fill_n(out_, kRows * width_, T(0));
    std::fill_n(highest_, kRows, kHidden<T>);
    std::fill_n(total_, kRows, T(0));
    const Diagonals<T> diagonals(dims_, h_);
    Steps steps(dims_, tile);
    for (bool first = true; steps.next(); first = false) {
      for (const Segment& segment : steps.segments()) {
        T* const scores = weights_ + segment.column * kRows;
        form_scores(dims_, tile, segment, diagonals, q_, k_.from(segment.key), scores);
        hide(segment, kHidden<T>, scores);
      }
      weigh(steps);
      if (!first) rescale();
      for (const Segment& segment : steps.segments()) {
        T* const weights = weights_ + segment.column * kRows;
        if (dims_.params.dropout > 0) drop(tile, segment, weights);
        add_to_queries(segment, weights, v_.from(segment.key), dims_.v_depth, out_);
      }
    }
    finish(tile);
  }

  // Replaces a step's scores by the weights exp(s - running maximum) and adds them to the total.
  // Sums of earlier steps have to be multiplied by `rescale_`.
  void weigh(const Steps& steps) {
    for (Index i = 0; i < kRows; i += kLanes) {
      const Lanes<T> before(highest_ + i);
      Lanes<T> highest = before;
      for_each_group(steps, i, [&](T* column, bool seen) {
        if (seen) highest = max(highest, highest_of(column));
      });
      // Finite also while nothing is visible.
      const Lanes<T> shift = max(highest, Lanes<T>(std::numeric_limits<T>::lowest()));
      const Lanes<T> rescale = exp_of_negative(before - shift);
      Lanes<T> sum = T(0);
      for_each_group(steps, i, [&](T* column, bool seen) {
        for (Index j = 0; j < kGroup; ++j, column += kRows) {
          const Lanes<T> weight = seen ? exp_of_negative(Lanes<T>(column) - shift) : Lanes<T>(T(0));
          weight.store(column);
          sum += weight;
        }
      });
      highest.store(highest_ + i);
      rescale.store(rescale_ + i);
      (Lanes<T>(total_ + i) * rescale + sum).store(total_ + i);
    }
  }

  // Calls `f` with the scores of queries [i, i + kLanes) for each kGroup keys of a step, and
  // whether any of them is visible.
  template <class F>
  void for_each_group(const Steps& steps, Index i, F&& f) {
    for (const Segment& segment : steps.segments()) {
      for (Index j = 0; j < segment.keys; j += kGroup) {
        f(weights_ + (segment.column + j) * kRows + i, segment.any_of(i, kLanes, j));
      }
    }
  }

  static Lanes<T> highest_of(const T* column) {
    const auto at = [column](Index j) { return Lanes<T>(column + j * kRows); };
    static_assert(kGroup == 8);
    return max(max(max(at(0), at(1)), max(at(2), at(3))),
               max(max(at(4), at(5)), max(at(6), at(7))));
  }

  void rescale() {
    for (Index i = 0; i < kRows; ++i) {
      for (Index e = 0; e < width_; ++e) out_[i * width_ + e] *= rescale_[i];
    }
  }

  void drop(const QueryTile& tile, const Segment& segment, T* weights) {
    draw_dropout(dims_, tile, segment.key, segment.keys, factors_);
    for (Index n = 0; n < segment.keys * kRows; ++n) weights[n] *= factors_[n];
  }

  void finish(const QueryTile& tile) {
    using Array = Eigen::Map<Eigen::Array<T, kRows, 1>>;
    const auto out = head<T>(x_.out, b_, h_);
    T* const lse = x_.lse.ptr<T>() + (b_ * dims_.heads + h_) * dims_.queries;
    T logs[kRows];
    Array(logs, kRows) = Array(highest_, kRows) + Array(total_, kRows).log();
    for (Index i = 0; i < tile.count; ++i) {
      const bool empty = total_[i] == 0;
      const T factor = empty ? T(0) : 1 / total_[i];
      T* const y = out.row(tile.first + i);
      for (Index e = 0; e < dims_.v_depth; ++e) y[e] = out_[i * width_ + e] * factor;
      lse[tile.first + i] = empty ? -kHidden<T> : logs[i];
    }
  }

  const AttentionDims& dims_;
  const Operands& x_;
  Index b_, h_;
  IndexRange tiles_;
  Index width_;
  BlockSet blocks_;
  Rows<const T> k_from_, v_from_;
  Scratch<T, 6> scratch_;
  KeyRows<T> k_, v_;
  // A tile's queries [depth][kRows], sums of its rows [kRows][width_], a step's weights.
  T *q_, *out_, *weights_, *factors_;
  // Of each query: the highest score so far, the sum of the weights, and see `weigh`.
  alignas(64) T highest_[kRows], total_[kRows], rescale_[kRows];
};

template <class T>
void forward(const KernelContext& context, const Operands& x,
             const kernels::AttentionParams& params) {
  const AttentionDims dims(x.inputs, params);
  const Index heads = dims.batches * dims.heads;
  const Index tiles =
      std::clamp(heads * dims.tiles() / kTargetTasks, kMinTilesPerTask, kMaxTilesPerTask);
  const Index tasks = (dims.tiles() + tiles - 1) / tiles;
  parallel_for(heads * tasks, 1, [&](Index task, Index) {
    const Index head = task / tasks, first = task % tasks * tiles;
    ForwardTask<T>(context, dims, x, head / dims.heads, head % dims.heads,
                   {first, std::min(first + tiles, dims.tiles())})
        .run();
  });
}

template <class T, class Element>
void forward_few(const KernelContext& context, const AttentionDims& dims, const Operands& x) {
  constexpr Index kLeastWork = Index{1} << 18;  // multiply-adds of a task
  const Index work = std::max<Index>(dims.queries * dims.keys * (dims.depth + dims.v_depth), 1);
  parallel_for(dims.batches * dims.heads, kLeastWork / work, [&](Index begin, Index end) {
    for (Index head = begin; head < end; ++head) {
      FewQueries<T, Element>(context, dims, x.inputs, x.out, x.lse, head / dims.heads,
                             head % dims.heads)
          .run();
    }
  });
}

void forward_few(KernelContext& context, const AttentionDims& dims, const Operands& x) {
  const DType dtype = x.out.dtype;
  if (dtype == DType::float64) return forward_few<double, double>(context, dims, x);
  if (dtype == DType::float32) return forward_few<float, float>(context, dims, x);
  const FloatOperand q(context, x.inputs.q);
  FloatResult out(context, x.out);
  const Operands floats{{q.view(), x.inputs.k, x.inputs.v}, out.view(), x.lse};
  if (dtype == DType::float16) {
    forward_few<float, float16>(context, dims, floats);
  } else {
    forward_few<float, bfloat16>(context, dims, floats);
  }
  out.write();
}

void attention_forward(KernelContext& context, const kernels::AttentionInputs& inputs,
                       const kernels::AttentionParams& params, const TensorView& out,
                       const TensorView& lse) {
  const AttentionDims dims(inputs, params);
  if (dims.tiles() == 0) return;
  if (has_few_queries(dims)) return forward_few(context, dims, {inputs, out, lse});
  if (out.dtype == DType::float64) return forward<double>(context, {inputs, out, lse}, params);
  const FloatInputs floats(context, inputs, params);
  FloatResult result(context, out);
  forward<float>(context, {floats.inputs(), result.view(), lse}, floats.params());
  result.write();
}

void attention_block_rows(KernelContext&, const kernels::AttentionInputs&, kernels::AttentionPass,
                          int64_t& query_rows) {
  query_rows = kRows;
}

void attention_dropout(KernelContext&, View kept, PhiloxState state, double p) {
  const kernels::AttentionDropout drop(p);
  const uint64_t start = (state.base ? *state.base : 0) + state.offset;
  const Index keys = kept.shape[3], words = kernels::AttentionDropout::words(keys);
  parallel_for_each(keys > 0 ? kept.numel() / keys : 0, 16, [&](int64_t row) {
    bool* const y = kept.ptr<bool>() + row * keys;
    for (Index at = 0; at < words; ++at) {
      const uint32_t word = drop.word(state.seed, start, row, at);
      const Index first = at * drop.kKeys, end = std::min<Index>(keys, first + drop.kKeys);
      for (Index j = first; j < end; ++j) y[j] = word >> (j - first) & 1;
    }
  });
}

}  // namespace

void register_attention() {
  kernels::attention_block_rows.set(DeviceType::cpu, attention_block_rows);
  kernels::attention_forward.set(DeviceType::cpu, attention_forward);
  kernels::attention_backward.set(DeviceType::cpu, attention_backward);
  kernels::attention_dropout.set(DeviceType::cpu, attention_dropout);
}

}  // namespace sash::cpu
