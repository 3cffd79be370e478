#include <algorithm>

#include "../../../core/parallel.h"
#include "attention.h"
#include "attention_halves.h"
#include "attention_scores.h"
#include "few_queries.h"
#include "query_chunk.h"

/// The gradient of attention, from the saved log-sum-exp. A task computes a chunk: it writes the
/// chunk's rows of dq and sums its part of dk and dv; the parts are then added in the order of the
/// chunks. The split depends on sizes alone.
namespace sash::cpu {
namespace {

using namespace attn;

struct BackwardOperands {
  kernels::AttentionInputs inputs;
  kernels::AttentionGradients gradients;
};

/// Computes the tiles of a chunk.
template <class T>
class ChunkPass {
 public:
  ChunkPass(const KernelContext& context, const AttentionDims& dims, const BackwardOperands& x,
            QueryChunk<T>& chunk)
      : dims_(dims),
        x_(x),
        chunk_(chunk),
        width_(padded_width<T>(dims.depth)),
        v_width_(padded_width<T>(dims.v_depth)),
        k_from_(head<const T>(x.inputs.k, chunk.b(), chunk.group())),
        v_from_(head<const T>(x.inputs.v, chunk.b(), chunk.group())),
        scratch_(context, {KeyRows<T>::size(k_from_, chunk.blocks(), dims.keys, dims.depth),
                           KeyRows<T>::size(v_from_, chunk.blocks(), dims.keys, dims.v_depth),
                           kRows * width_, kRows * v_width_, kRows * width_, kRows * v_width_,
                           kRows * width_, kTile, kTile, dims.params.softcap > 0 ? kTile : 0,
                           dims.params.dropout > 0 ? kTile : 0}),
        k_(k_from_, chunk.blocks(), dims.keys, dims.depth, scratch_[0]),
        v_(v_from_, chunk.blocks(), dims.keys, dims.v_depth, scratch_[1]),
        q_(scratch_[2]),
        g_(scratch_[3]),
        q_by_feature_(scratch_[4]),
        g_by_feature_(scratch_[5]),
        dq_(scratch_[6]),
        weights_(scratch_[7]),
        gradients_(scratch_[8]),
        slopes_(dims.params.softcap > 0 ? scratch_[9] : nullptr),
        factors_(scratch_[10]) {}

  void run() {
    const FlushDenormals flush;
    for (Index h = chunk_.heads().first; h < chunk_.heads().past; ++h) {
      for (Index block = chunk_.tiles().first; block < chunk_.tiles().past; ++block) {
        run_tile(QueryTile(dims_, chunk_.b(), h, block));
      }
    }
  }

 private:
  static constexpr Index kTile = kStepKeys * kRows;

  void run_tile(const QueryTile& tile) {
    load_tile(tile);
    std::fill_n(dq_, kRows * width_, T(0));
    const Diagonals<T> diagonals(dims_, tile.h);
    for (Steps steps(dims_, tile); steps.next();) {
      for (const Segment& segment : steps.segments()) {
        form_gradients(tile, segment, diagonals);
        // dq += E k
        add_to_queries(segment, gradients_, k_.from(segment.key), dims_.depth, dq_);
        for (Index j = 0; j < segment.keys;) {
          const Segment part = segment.block_from(j);
          const auto& sums = chunk_.sums_of(part.key / kBlockKeys);
          const Index row = part.key % kBlockKeys;
          // dv += (M P)' g, dk += E' (scale q)
          add_to_keys(part, weights_ + j * kRows, g_, dims_.v_depth, sums.dv + row * v_width_);
          add_to_keys(part, gradients_ + j * kRows, q_, dims_.depth, sums.dk + row * width_);
          j += part.keys;
        }
      }
    }
    const auto dq = head<T>(x_.gradients.dq, tile.b, tile.h);
    const auto scale = static_cast<T>(dims_.params.scale);
    for (Index i = 0; i < tile.count; ++i) {
      for (Index d = 0; d < dims_.depth; ++d) {
        dq.row(tile.first + i)[d] = scale * dq_[i * width_ + d];
      }
    }
  }

  // The tile's rows of scale q and g, those of q and g transposed, and for each row lse and D. Rows
  // past the end, and those that see nothing, have lse = inf: their weights are 0.
  void load_tile(const QueryTile& tile) {
    auto q = head<const T>(x_.inputs.q, tile.b, tile.h);
    auto g = head<const T>(x_.gradients.g, tile.b, tile.h);
    q.data = q.row(tile.first);
    g.data = g.row(tile.first);
    copy_rows(q, tile.count, kRows, dims_.depth, q_);
    const auto scale = static_cast<T>(dims_.params.scale);
    for (Index n = 0; n < tile.count * width_; ++n) q_[n] *= scale;
    copy_rows(g, tile.count, kRows, dims_.v_depth, g_);
    transpose_rows(q, tile.count, dims_.depth, q_by_feature_);
    transpose_rows(g, tile.count, dims_.v_depth, g_by_feature_);
    using Row = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;
    const auto out = head<const T>(x_.gradients.out, tile.b, tile.h);
    const Index first = (tile.b * dims_.heads + tile.h) * dims_.queries + tile.first;
    const T* const lse = x_.gradients.lse.template ptr<const T>() + first;
    const T* const g_lse =
        x_.gradients.g_lse ? x_.gradients.g_lse->template ptr<const T>() + first : nullptr;
    for (Index i = 0; i < kRows; ++i) {
      lse_[i] = i < tile.count ? lse[i] : -kHidden<T>;
      dot_[i] = 0;
      if (lse_[i] == -kHidden<T>) continue;
      dot_[i] = (Row(g.row(i), dims_.v_depth) * Row(out.row(tile.first + i), dims_.v_depth)).sum();
      if (g_lse) dot_[i] -= g_lse[i];
    }
  }

  // Of one segment: weights = M P and gradients = E, which is dS = P (M (g v') - D) times the slope
  // of the softcap.
  void form_gradients(const QueryTile& tile, const Segment& segment,
                      const Diagonals<T>& diagonals) {
    if (has_few_queries(dims_)) {
      form_few_scores(tile, segment);
    } else {
      form_scores(dims_, tile, segment, diagonals, q_by_feature_, k_.from(segment.key), weights_,
                  slopes_);
    }
    multiply_visible(segment, g_by_feature_, v_.from(segment.key), dims_.v_depth, T(1), gradients_);
    if (dims_.params.dropout > 0) {
      draw_dropout(dims_, tile, segment.key, segment.keys, factors_);
      differentiate<true>(segment);
    } else {
      differentiate<false>(segment);
    }
    hide(segment, T(0), weights_);
    hide(segment, T(0), gradients_);
    if (const TensorView* dbias = x_.gradients.dbias) {
      BiasPart<T>(*dbias, dims_, tile, segment).take_from(gradients_);
    }
    if (x_.gradients.drelative) {
      diagonals.sum(tile, segment, gradients_, chunk_.drelative(tile.h));
    }
    if (slopes_) {
      hide(segment, T(0), slopes_);
      for (Index n = 0; n < segment.keys * kRows; ++n) gradients_[n] *= slopes_[n];
    }
  }

  // Scores rounded as in the forward pass of few queries. Those of large scores would not fit its
  // log-sum-exp if they were summed in another order.
  void form_few_scores(const QueryTile& tile, const Segment& segment) {
    const auto q = head<const T>(x_.inputs.q, tile.b, tile.h);
    const Rows<const T> k = k_.from(segment.key);
    std::fill_n(weights_, segment.keys * kRows, T(0));
    IndexRange keys = segment.keys_of(0);
    keys.past = std::min(keys.past, dims_.keys - segment.key);
    for (Index j = keys.first; j < keys.past; ++j) {
      for (Index i = 0; i < tile.count; ++i) {
        weights_[j * kRows + i] = FewQueries<T, T>::score(dims_, q.row(tile.first + i), k.row(j));
      }
    }
    if (dims_.params.softcap > 0) {
      cap(static_cast<T>(dims_.params.softcap), segment.keys * kRows, weights_, slopes_);
    }
  }

  template <bool kDropout>
  void differentiate(const Segment& segment) {
    for (Index j = 0; j < segment.keys; j += kGroup) {
      for (Index i = 0; i < kRows; i += kLanes) {
        if (segment.any_of(i, kLanes, j)) {
          differentiate<kDropout>(j, i);
        } else {
          for (Index k = j; k < j + kGroup; ++k) {
            std::fill_n(weights_ + k * kRows + i, kLanes, T(0));
            std::fill_n(gradients_ + k * kRows + i, kLanes, T(0));
          }
        }
      }
    }
  }

  // For kGroup keys from `key` and kLanes queries from `query` on.
  template <bool kDropout>
  void differentiate(Index key, Index query) {
    const Lanes<T> lse(lse_ + query), dot(dot_ + query);
    for (Index at = key * kRows + query; at < (key + kGroup) * kRows; at += kRows) {
      const Lanes<T> p = exp_of_negative(Lanes<T>(weights_ + at) - lse);
      Lanes<T> dp(gradients_ + at), weight = p;
      if constexpr (kDropout) {
        const Lanes<T> factor(factors_ + at);
        dp *= factor;
        weight *= factor;
      }
      weight.store(weights_ + at);
      (p * (dp - dot)).store(gradients_ + at);
    }
  }

  const AttentionDims& dims_;
  const BackwardOperands& x_;
  QueryChunk<T>& chunk_;
  Index width_, v_width_;
  Rows<const T> k_from_, v_from_;
  Scratch<T, 11> scratch_;
  KeyRows<T> k_, v_;
  // A tile's queries and cotangents, by row and transposed; its dq; tiles of scores.
  T *q_, *g_, *q_by_feature_, *g_by_feature_, *dq_;
  T *weights_, *gradients_, *slopes_, *factors_;
  alignas(64) T lse_[kRows], dot_[kRows];
};

template <class T>
class Backward {
 public:
  Backward(const KernelContext& context, const BackwardOperands& x,
           const kernels::AttentionParams& params)
      : context_(context), x_(x), dims_(x.inputs, params) {}

  void run() {
    const Index groups = dims_.batches * dims_.groups, tiles = dims_.tiles();
    if (groups == 0) return;
    const Index wanted = (kTargetTasks + groups - 1) / groups;
    const Index chunks = std::clamp<Index>(tiles / kMinTilesPerTask, 1, wanted);
    std::vector<std::optional<QueryChunk<T>>> all(static_cast<size_t>(groups * chunks));
    const auto chunks_of = [&](Index group) {
      return std::span(all).subspan(static_cast<size_t>(group * chunks),
                                    static_cast<size_t>(chunks));
    };
    parallel_for(groups * chunks, 1, [&](Index task, Index) {
      const Index group = task / chunks, chunk = task % chunks;
      all[static_cast<size_t>(task)].emplace(
          dims_, group / dims_.groups, group % dims_.groups,
          IndexRange{tiles * chunk / chunks, tiles * (chunk + 1) / chunks});
    });
    // Last chunks first: under a causal mask they have the most work.
    parallel_for(groups * chunks, 1, [&](Index task, Index) {
      const auto chunk = static_cast<size_t>(chunks - 1 - task / groups);
      const auto group = chunks_of(task % groups);
      group[chunk]->allocate(context_, group.first(chunk), x_.gradients);
      ChunkPass<T>(context_, dims_, x_, *group[chunk]).run();
    });
    constexpr Index kBlocksPerTask = 16;
    const Index blocks = dims_.map.key_blocks;
    const Index tasks = (blocks + kBlocksPerTask - 1) / kBlocksPerTask;
    parallel_for(groups * tasks, 1, [&](Index task, Index) {
      const Index first = task % tasks * kBlocksPerTask;
      reduce(chunks_of(task / tasks), {first, std::min(first + kBlocksPerTask, blocks)});
    });
    if (!x_.gradients.drelative) return;
    for (Index group = 0; group < groups; ++group) reduce_relative(chunks_of(group));
  }

 private:
  void reduce(QueryChunks<T> chunks, IndexRange blocks) {
    const QueryChunk<T>& any = *chunks[0];
    const auto dk = head<T>(x_.gradients.dk, any.b(), any.group());
    const auto dv = head<T>(x_.gradients.dv, any.b(), any.group());
    for (Index block = blocks.first; block < blocks.past; ++block) {
      const Index count = dims_.keys_of(block);
      reduce_rows(chunks, block, dk, count, dims_.depth, &QueryChunk<T>::Sums::dk);
      reduce_rows(chunks, block, dv, count, dims_.v_depth, &QueryChunk<T>::Sums::dv);
    }
  }

  void reduce_relative(QueryChunks<T> chunks) {
    const QueryChunk<T>& any = *chunks[0];
    const TensorView* const drelative = x_.gradients.drelative;
    const Index distances = drelative->shape[2];
    for (Index h = any.heads().first; h < any.heads().past; ++h) {
      T* const to = drelative->template ptr<T>() + (any.b() * dims_.heads + h) * distances;
      std::fill_n(to, distances, T(0));
      for (const auto& chunk : chunks) {
        const T* const part = chunk->drelative(h);
        for (Index n = 0; n < distances; ++n) to[n] += part[n];
      }
    }
  }

  const KernelContext& context_;
  const BackwardOperands& x_;
  const AttentionDims dims_;
};

}  // namespace

void attention_backward(KernelContext& context, const kernels::AttentionInputs& inputs,
                        const kernels::AttentionParams& params,
                        const kernels::AttentionGradients& gradients) {
  if (inputs.q.dtype == DType::float64) {
    const BackwardOperands x{inputs, gradients};
    return Backward<double>(context, x, params).run();
  }
  const FloatInputs floats(context, inputs, params);
  const FloatOperand g(context, gradients.g), out(context, gradients.out);
  FloatResult dq(context, gradients.dq), dk(context, gradients.dk), dv(context, gradients.dv);
  BackwardOperands x{floats.inputs(), gradients};
  x.gradients.g = g.view();
  x.gradients.out = out.view();
  x.gradients.dq = dq.view();
  x.gradients.dk = dk.view();
  x.gradients.dv = dv.view();
  Backward<float>(context, x, floats.params()).run();
  for (FloatResult* result : {&dq, &dk, &dv}) result->write();
}

}  // namespace sash::cpu
