#include "clustered_attention.h"

#include <algorithm>

#include "../../elementwise/dropout.h"
#include "../../index/embedding.h"
#include "../../index/gather.h"
#include "../../index/index_checks.h"
#include "../../index/topk.h"
#include "../../kernels/clusters.h"
#include "../../kernels/index.h"
#include "../../linalg/matmul.h"
#include "../../norm/softmax.h"
#include "../../op.h"
#include "../exact/attention_call.h"
#include "../exact/head_layout.h"
#include "../exact/sink_logits.h"

namespace sash {
namespace {

constexpr const char* kClustered = "clustered_attention";
using Options = ClusteredAttentionOptions;

AttentionOptions attention_options(const Options& options) {
  AttentionOptions all{.scale = options.scale, .dropout = options.dropout};
  if (options.key_lengths.defined()) all.mask = AttentionMask::key_lengths(options.key_lengths);
  return all;
}

// Checks the arguments; the factor of the scores.
double checked_scale(const Tensor& q, const Tensor& k, const Tensor& v, const Options& options) {
  check_lengths(kClustered, q, options.key_lengths);
  check_lengths(kClustered, q, options.query_lengths);
  return AttentionCall({q, k, v, {}, {}}, attention_options(options)).scale;
}

// Also of the values, on the CPU; CUDA kernels report them.
void check_clusters(const Tensor& q, const QueryClusters& clusters) {
  const Shape expected{q.size(0), q.size(1), q.size(2)};
  for (const Tensor* x : {&clusters.index, &clusters.order, &clusters.rank, &clusters.counts}) {
    check_index_tensor(kClustered, q, *x, "clusters");
    if (x != &clusters.counts) check_shape(kClustered, *x, expected);
  }
  check_rank(kClustered, clusters.counts, 3);
  check_shape(kClustered, clusters.counts, {q.size(0), q.size(1), clusters.counts.size(2)});
  check_index_values(kClustered, clusters.index.contiguous(), clusters.counts.size(2));
  check_index_values(kClustered, clusters.order.contiguous(), q.size(2));
  check_index_values(kClustered, clusters.rank.contiguous(), q.size(2));
}

// index [B, H, ...] into tables of `rows` rows as one into all tables together, which are those of
// B x (H / shared) heads.
Tensor into_tables(const Tensor& index, int64_t rows, int64_t shared) {
  const int64_t batch = index.size(0), tables = index.size(1) / shared;
  Shape shape = Shape::filled(index.rank(), 1);
  shape[0] = batch, shape[1] = index.size(1);
  const Tensor starts = arange(0, batch * tables, 1, {.device = index.device()}) * rows;
  return index + starts.view({batch, tables, 1}).expand({batch, tables, shared}).reshape(shape);
}

// x [B, H, N, D] as [B H N, D].
Tensor all_rows(const Tensor& x) {
  return x.reshape({x.size(0) * x.size(1) * x.size(2), x.size(3)});
}

// lengths [B] beside [B, H, N] or [B, H, N, K].
Tensor beside(const Tensor& lengths, int rank) {
  Shape shape = Shape::filled(rank, 1);
  shape[0] = lengths.numel();
  return lengths.view(shape);
}

// x [B, H, N, D], where rows past the lengths may hold anything, with these as 0.
Tensor within(const Tensor& lengths, const Tensor& x) {
  if (!lengths.defined()) return x;
  const Tensor place = arange(0, x.size(2), 1, {.device = x.device()}).unsqueeze(1);
  return masked_fill(x, ge(place, beside(lengths, 4)), 0);
}

// The rows of x [B, H, ...] that index [B, H, N] names.
Tensor gathered(const Tensor& x, const Tensor& index) {
  const Tensor y = empty({x.size(0), x.size(1), index.size(2), x.size(3)}, x.options());
  run_kernel(kernels::gather, x, index.unsqueeze(3).expand(y.shape()), y, 2);
  return y;
}

// Clusters kept for a backward pass, which throws if they were written since.
struct SavedClusters {
  Saved index, counts, order, rank;

  explicit SavedClusters(const QueryClusters& x)
      : index(save(x.index)), counts(save(x.counts)), order(save(x.order)), rank(save(x.rank)) {}
  QueryClusters operator()(const Backward& pass) const {
    return {pass(index), pass(counts), pass(order), pass(rank)};
  }
};

Tensor sum_of_clusters(const Tensor& x, const QueryClusters& clusters);

// What each query [B, H, N] gets of its cluster: x is [B, H, C, D].
Tensor broadcast(const Tensor& x, const QueryClusters& clusters) {
  const Tensor y = unrecorded([&] { return gathered(x, clusters.index); });
  return record("broadcast_clusters", {x}, y,
                [saved = SavedClusters(clusters)](Backward& pass, const Tensor& g) {
                  return Gradients{sum_of_clusters(g, saved(pass))};
                });
}

// The sum over each cluster [B, H, C, D] of x [B, H, N, D].
Tensor sum_of_clusters(const Tensor& x, const QueryClusters& clusters) {
  const int64_t groups = x.size(0) * x.size(1), count = clusters.counts.size(2);
  const Tensor y = empty({x.size(0), x.size(1), count, x.size(3)}, x.options());
  {
    const NoGradGuard no_grad;
    const Tensor in = x.contiguous(), index = clusters.index.contiguous(),
                 order = clusters.order.contiguous();
    run_kernel(kernels::cluster_sums, contiguous_view(in, {groups, x.size(2), x.size(3)}),
               matrix_view(index, groups, x.size(2)), matrix_view(order, groups, x.size(2)),
               contiguous_view(y, {groups, count, x.size(3)}));
  }
  return record("sum_of_clusters", {x}, y,
                [saved = SavedClusters(clusters)](Backward& pass, const Tensor& g) {
                  return Gradients{broadcast(g, saved(pass))};
                });
}

// The mean of each cluster's queries [B, H, C, D], 0 without any. Halves are summed in float32, and
// their sum might be beyond float16.
Tensor mean_queries(const Tensor& q, const QueryClusters& clusters, const Options& options) {
  const Tensor x = within(options.query_lengths, is_half(q.dtype()) ? q.to(DType::float32) : q);
  const Tensor members = clamp(clusters.counts, 1).to(x.dtype()).unsqueeze(3);
  return (sum_of_clusters(x, clusters) / members).to(q.dtype());
}

// Rows of x [B, H, N, D] in the order `to` [B, H, N] of each head; `back` is its inverse.
Tensor permute_rows(const Tensor& x, const Tensor& to, const Tensor& back) {
  const Tensor y = unrecorded([&] { return gathered(x, to); });
  return record("permute_rows", {x}, y,
                [to = save(to), back = save(back)](Backward& pass, const Tensor& g) {
                  return Gradients{permute_rows(g, pass(back), pass(to))};
                });
}

// The scores of the mean queries [B, H, C, S_k], -inf past the lengths; for halves in float32.
Tensor cluster_scores(const Tensor& q, const Tensor& k, const QueryClusters& clusters, double scale,
                      const Options& options) {
  const int64_t batch = q.size(0), groups = k.size(1), rows = clusters.counts.size(2);
  const DType wide = is_half(q.dtype()) ? DType::float32 : q.dtype();
  const Tensor mean = mean_queries(q, clusters, options).to(wide) * scale;
  const Tensor scores = matmul(detail::grouped_heads(mean, groups), k.to(wide).unsqueeze(2).mT())
                            .view({batch, q.size(1), rows, k.size(2)});
  if (!options.key_lengths.defined()) return scores;
  const Tensor place = arange(0, k.size(2), 1, {.device = k.device()});
  return masked_fill(scores, ge(place, beside(options.key_lengths, 4)), -kInfinity);
}

// The top keys of each cluster, as rows of their own.
struct TopRows {
  Tensor k, v;     ///< [B, H, C, T, D], [B, H, C, T, D_v]
  Tensor visible;  ///< int64 [B, H, C]: how many are within the lengths; undefined without lengths
};

TopRows top_rows(const Tensor& k, const Tensor& v, const Tensor& keys, const Options& options) {
  const int64_t heads = k.size(1);
  const Tensor index = into_tables(keys, k.size(2), heads == 0 ? 1 : keys.size(1) / heads);
  TopRows rows{embedding(all_rows(k), index), embedding(all_rows(v), index), {}};
  if (options.key_lengths.defined()) {
    rows.visible = sum(lt(keys, beside(options.key_lengths, 4)), {3});
  }
  return rows;
}

// Each query's attention to the top keys of its cluster [B, H, N, D_v]. Queries are sorted by
// cluster, so that neighbours see the same range of keys.
Tensor top_attention(const Tensor& q, const QueryClusters& clusters, const TopRows& top,
                     const Options& options) {
  const int64_t batch = q.size(0), heads = q.size(1), count = top.k.size(3);
  const Tensor cluster = gather(clusters.index, 2, clusters.order);
  const Tensor first = cluster * count;
  const Tensor past = first + (top.visible.defined() ? gather(top.visible, 2, cluster)
                                                     : full({1}, count, first.options()));
  const auto flat = [&](const Tensor& x) {
    return x.reshape({batch, heads, x.size(2) * count, x.size(4)});
  };
  const Tensor seen =
      attention(permute_rows(q, clusters.order, clusters.rank), flat(top.k), flat(top.v),
                {.mask = AttentionMask::row_ranges(first.to(DType::int32), past.to(DType::int32)),
                 .scale = options.scale,
                 .dropout = options.dropout});
  return permute_rows(seen, clusters.rank, clusters.order);
}

}  // namespace

QueryClusters cluster_queries(const Tensor& q, const ClusterOptions& options,
                              const Tensor& lengths) {
  check_defined(kClustered, q);
  check_rank(kClustered, q, 4);
  const NoGradGuard no_grad;
  const Tensor planes = random_planes(options.bits, q.size(3), options.hash_bias, q.device());
  return hamming_kmeans(sign_hash(q, planes), options.clusters, options.iterations, options.bits,
                        lengths);
}

Tensor clustered_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                           const ClusterOptions& clusters, const Options& options) {
  if (Autocast cast(kClustered); cast) {
    return clustered_attention(cast(q), cast(k), cast(v), clusters, options);
  }
  checked_scale(q, k, v, options);
  return clustered_attention(q, k, v, cluster_queries(q, clusters, options.query_lengths), options);
}

Tensor clustered_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                           const QueryClusters& clusters, const Options& options) {
  if (Autocast cast(kClustered); cast) {
    return clustered_attention(cast(q), cast(k), cast(v), clusters, options);
  }
  checked_scale(q, k, v, options);
  check_clusters(q, clusters);
  const Tensor mean = mean_queries(q, clusters, options);
  return broadcast(attention(mean, within(options.key_lengths, k), within(options.key_lengths, v),
                             attention_options(options)),
                   clusters);
}

Tensor top_keys_of_clusters(const Tensor& q, const Tensor& k, const QueryClusters& clusters,
                            int64_t count, const Options& options) {
  const NoGradGuard no_grad;
  const double scale = checked_scale(q, k, k, options);
  check_clusters(q, clusters);
  if (count < 1) throw ValueError(kClustered, "a top_k of at least 1", std::to_string(count));
  const Tensor scores = cluster_scores(q, within(options.key_lengths, k), clusters, scale, options);
  return topk(scores, std::min(count, k.size(2))).indices;
}

Tensor improved_clustered_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const ClusterOptions& clusters, int64_t top_k,
                                    const Options& options) {
  if (Autocast cast(kClustered); cast) {
    return improved_clustered_attention(cast(q), cast(k), cast(v), clusters, top_k, options);
  }
  checked_scale(q, k, v, options);
  if (top_k < 1) throw ValueError(kClustered, "a top_k of at least 1", std::to_string(top_k));
  if (top_k >= k.size(2)) return attention(q, k, v, attention_options(options));
  const QueryClusters found = cluster_queries(q, clusters, options.query_lengths);
  return improved_clustered_attention(q, k, v, found,
                                      top_keys_of_clusters(q, k, found, top_k, options), options);
}

Tensor improved_clustered_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const QueryClusters& clusters, const Tensor& keys,
                                    const Options& options) {
  if (Autocast cast(kClustered); cast) {
    return improved_clustered_attention(cast(q), cast(k), cast(v), clusters, keys, options);
  }
  const double scale = checked_scale(q, k, v, options);
  check_clusters(q, clusters);
  check_index_tensor(kClustered, q, keys, "keys");
  check_rank(kClustered, keys, 4);
  const int64_t rows = clusters.counts.size(2), count = keys.size(3);
  check_shape(kClustered, keys, {q.size(0), q.size(1), rows, count});
  if (count == k.size(2)) return attention(q, k, v, attention_options(options));
  const Tensor visible_k = within(options.key_lengths, k),
               visible_v = within(options.key_lengths, v);
  const Tensor weights = softmax(cluster_scores(q, visible_k, clusters, scale, options));
  const Tensor of_top = gather(weights, 3, keys);
  const Tensor others = scatter_add(weights, 3, keys, neg(of_top));  // x - x is 0
  const Tensor rest = matmul(detail::grouped_heads(dropout(others, options.dropout), v.size(1)),
                             visible_v.to(weights.dtype()).unsqueeze(2))
                          .view({q.size(0), q.size(1), rows, v.size(3)});
  const Tensor top =
      top_attention(q, clusters, top_rows(visible_k, visible_v, keys, options), options);
  return top * broadcast(sum(of_top, {3}, true).to(q.dtype()), clusters) +
         broadcast(rest.to(q.dtype()), clusters);
}

}  // namespace sash
