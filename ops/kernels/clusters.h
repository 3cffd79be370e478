#pragma once

#include "../../core/backend/kernel.h"
#include "../../core/backend/tensor_view.h"

/// Clusters of vectors by the signs of random projections. All views are contiguous. Results have
/// the same bits on every backend.
namespace sash::kernels {

/// Bit b of hash[n] (int64 [N]) = whether x[n] . planes[:D, b] + planes[D, b] > 0. x is [N, D],
/// floating, its elements rounded to float32; planes is float32 [D + 1, bits], bits <= 64. The
/// products are exact in float64, and are added in the order of D, the offset last.
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& planes,
                            const TensorView& hash)>
    sign_hash;

struct HammingKmeansParams {
  int64_t bits = 64;        ///< how many bits count, from the lowest on
  int64_t iterations = 10;  ///< assignments, at least 1; centroids move between them
  /// int32 [B]: of the L hashes of group g, the first lengths[g / (G / B)] move centroids and are
  /// counted; null for all. Values outside [0, L] are clamped.
  const TensorView* lengths = nullptr;
};

/// k-means of G groups of hashes int64 [G, L] under the Hamming distance. Centroid c of C starts as
/// hash floor(c n / C) of the group's n; it moves to the majority of its members' bits, to 0 where
/// they are equal, and stays without members. A hash joins the nearest centroid, the lowest of
/// several. Writes the cluster of each hash (int64 [G, L]), the members of each cluster (int64
/// [G, C]), the places of a group sorted by cluster, then by place (`order`, int64 [G, L]), and the
/// inverse of that (`rank`, int64 [G, L]).
extern SASH_API Kernel<void(KernelContext&, const HammingKmeansParams&, const TensorView& hashes,
                            const TensorView& clusters, const TensorView& counts,
                            const TensorView& order, const TensorView& rank)>
    hamming_kmeans;

/// sums[g, c] = sum of the rows x[g, l] with clusters[g, l] == c, in the order of l. x is [G, L, D]
/// and sums [G, C, D], of one floating dtype, halves summed in float32; clusters and `order` are
/// those of `hamming_kmeans`.
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& clusters,
                            const TensorView& order, const TensorView& sums)>
    cluster_sums;

}  // namespace sash::kernels
