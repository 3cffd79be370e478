#pragma once

#include "../../../tensor/tensor.h"

/// Clusters of queries (Vyas, Katharopoulos and Fleuret, "Fast transformers with clustered
/// attention", NeurIPS 2020): k-means under the Hamming distance of locality-sensitive hashes.
/// Nothing here is differentiable, and results have the same bits on every backend.
namespace sash {

/// `bits` random planes for `sign_hash`: float32 [bits, D + 1], D numbers of the normal and the
/// offset, which is 0 without `bias`. From the device's generator: each element is the sum of 12
/// uniform numbers less 6. This is close to a standard normal number, and the same on every device.
SASH_API Tensor random_planes(int64_t bits, int64_t depth, bool bias = true, Device device = kCPU);

/// Bit b of the hash of a row x [..., D] says on which side of plane b it lies: whether
/// x . planes[b, :D] + planes[b, D] > 0 (Charikar, "Similarity estimation techniques from rounding
/// algorithms", STOC 2002). planes is float32 [bits, D + 1], 1 to 64 of them; the hash is int64
/// [...]. Floating dtypes; float64 elements are rounded to float32 first.
SASH_API Tensor sign_hash(const Tensor& x, const Tensor& planes);

/// Which cluster each of N queries is in.
struct QueryClusters {
  Tensor index;   ///< int64 [B, H, N], in [0, C)
  Tensor counts;  ///< int64 [B, H, C]: how many members, queries past the lengths left out
  Tensor order;   ///< int64 [B, H, N]: the queries sorted by cluster, then by number
  Tensor rank;    ///< int64 [B, H, N]: where each query stands in `order`
};

/// k-means of the hashes int64 [B, H, N] of each head under the Hamming distance of their lowest
/// `bits` bits. Cluster c of C = min(clusters, N) starts at hash floor(c n / C) of the n hashes. In
/// each of `iterations` assignments a hash joins the nearest cluster; of clusters equally near, the
/// first. Then each cluster with members moves to the majority of their bits (0 for a tie). With
/// `lengths` (int32 [B], clamped to [0, N]), n is the length of the batch; hashes past the length
/// join clusters but do not move them.
///
/// `ValueError` unless clusters and iterations are at least 1 and bits in [1, 64]; `ShapeError`,
/// `DTypeError`, `DeviceError` unless the tensors fit.
SASH_API QueryClusters hamming_kmeans(const Tensor& hashes, int64_t clusters, int64_t iterations,
                                      int64_t bits, const Tensor& lengths = {});

}  // namespace sash
