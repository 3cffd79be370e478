#pragma once

#include <optional>

#include "clusters.h"

/// Attention that approximates softmax attention in less than quadratic time: similar queries share
/// work. q is [B, H, S_q, D], k [B, H_kv, S_k, D],
/// v [B, H_kv, S_k, D_v], the result [B, H, S_q, D_v]; H is a multiple of H_kv. Floating
/// dtypes. Gradients reach q, k and v, but not through the choice of clusters and keys. Each
/// function has a second form that takes the choice as an argument.
///
/// Throws `ShapeError`, `DTypeError`, `DeviceError` and `ValueError` as `attention` does.
namespace sash {

struct ClusterOptions {
  int64_t clusters = 100;   ///< C, at most S_q of them are used
  int64_t bits = 32;        ///< of a hash, 1 to 64
  int64_t iterations = 10;  ///< of k-means
  bool hash_bias = true;    ///< planes with offsets: distance, not only direction, counts
};

struct ClusteredAttentionOptions {
  std::optional<double> scale{};  ///< factor of the scores; 1 / sqrt(D) by default
  double dropout = 0;             ///< probability with which an attention weight is dropped
  Tensor key_lengths{};           ///< int32 [B]: keys from key_lengths[b] on are hidden
  /// int32 [B]: queries from query_lengths[b] on do not move the clusters; each gets the result of
  /// the nearest cluster.
  Tensor query_lengths{};
};

/// Clusters of the queries q [B, H, S_q, D]: `hamming_kmeans` of their `sign_hash`. Each call draws
/// new `random_planes`; `manual_seed` makes them repeatable.
SASH_API QueryClusters cluster_queries(const Tensor& q, const ClusterOptions& options = {},
                                       const Tensor& lengths = {});

/// Clustered attention (Vyas et al., 2020): the mean c of the queries of each cluster attends,
///
///     o_i = softmax(scale c k') v     for each query i of the cluster.
///
/// O(S_k C) time beside the k-means, O(S_q + S_k) memory.
SASH_API Tensor clustered_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const ClusterOptions& clusters,
                                    const ClusteredAttentionOptions& options = {});
SASH_API Tensor clustered_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const QueryClusters& clusters,
                                    const ClusteredAttentionOptions& options = {});

/// The min(count, S_k) keys with which the mean query of each cluster has the highest scores, in
/// descending order: int64 [B, H, C, count]. O(S_k C) time and memory.
SASH_API Tensor top_keys_of_clusters(const Tensor& q, const Tensor& k,
                                     const QueryClusters& clusters, int64_t count,
                                     const ClusteredAttentionOptions& options = {});

/// Improved clustered attention (Vyas et al., 2020): each query has its own scores for the top keys
/// T of its cluster. Together these keys get the weight m that they have for the mean query c:
///
///     o_i = m softmax_T(scale q_i k') v + sum over j not in T of softmax(scale c k')_j v_j.
///
/// `top_k` is at least 1. O(S_k C + S_q top_k) time and O(S_k C + S_q) memory. With top_k >= S_k it
/// is `attention`.
SASH_API Tensor improved_clustered_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                             const ClusterOptions& clusters, int64_t top_k,
                                             const ClusteredAttentionOptions& options = {});
/// Improved clustered attention with given clusters and their keys [B, H, C, T]. The keys of a row
/// are distinct; keys past the lengths come last.
SASH_API Tensor improved_clustered_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                             const QueryClusters& clusters, const Tensor& keys,
                                             const ClusteredAttentionOptions& options = {});

}  // namespace sash
