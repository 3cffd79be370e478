#include "../../../ops/kernels/clusters.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../shape/in_float.h"

namespace sash::cpu {
namespace {

constexpr int64_t kMostBits = 64;

void sign_hash(KernelContext&, const TensorView& x, const TensorView& planes,
               const TensorView& hash) {
  const int64_t depth = x.shape[1], bits = planes.shape[1];
  const float* const plane = planes.ptr<const float>();
  dispatch_floating(x.dtype, "sign_hash", [&]<class T>(TypeTag<T>) {
    parallel_for(x.shape[0], std::max<int64_t>(1, 16384 / (bits * (depth + 1))),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t n = begin; n < end; ++n) {
                     double side[kMostBits] = {};
                     for (int64_t d = 0; d <= depth; ++d) {
                       const double value = d < depth ? static_cast<double>(static_cast<float>(
                                                            x.ptr<const T>()[n * depth + d]))
                                                      : 1.0;
                       for (int64_t b = 0; b < bits; ++b) {
                         side[b] += value * static_cast<double>(plane[d * bits + b]);
                       }
                     }
                     uint64_t word = 0;
                     for (int64_t b = 0; b < bits; ++b) {
                       word |= static_cast<uint64_t>(side[b] > 0) << b;
                     }
                     hash.ptr<int64_t>()[n] = static_cast<int64_t>(word);
                   }
                 });
  });
}

// One group of hashes.
struct Group {
  const int64_t* hashes;
  int64_t* clusters;
  int64_t* counts;
  int64_t length;   // hashes
  int64_t counted;  // of them, those that move centroids
  int64_t count;    // clusters
  int64_t bits;
  uint64_t mask;

  uint64_t hash(int64_t l) const { return static_cast<uint64_t>(hashes[l]) & mask; }

  void start(uint64_t* centroids) const {
    for (int64_t c = 0; c < count; ++c) centroids[c] = hash(c * counted / count);
  }
  void assign(const uint64_t* centroids, int64_t begin, int64_t end) const {
    for (int64_t l = begin; l < end; ++l) {
      const uint64_t word = hash(l);
      int least = kMostBits + 1;
      for (int64_t c = 0; c < count; ++c) {
        const int distance = std::popcount(word ^ centroids[c]);
        if (distance < least) least = distance, clusters[l] = c;
      }
    }
  }
  void count_members() const {
    std::fill_n(counts, count, int64_t{0});
    for (int64_t l = 0; l < counted; ++l) ++counts[clusters[l]];
  }
  void move(uint64_t* centroids, std::vector<int64_t>& ones) const {
    ones.assign(static_cast<size_t>(count * bits), 0);
    for (int64_t l = 0; l < counted; ++l) {
      int64_t* const of = ones.data() + clusters[l] * bits;
      const uint64_t word = hash(l);
      for (int64_t b = 0; b < bits; ++b) of[b] += static_cast<int64_t>(word >> b & 1);
    }
    count_members();
    for (int64_t c = 0; c < count; ++c) {
      if (counts[c] == 0) continue;
      centroids[c] = 0;
      for (int64_t b = 0; b < bits; ++b) {
        const bool most = 2 * ones[static_cast<size_t>(c * bits + b)] > counts[c];
        centroids[c] |= static_cast<uint64_t>(most) << b;
      }
    }
  }
  void sort(int64_t* order, int64_t* rank) const {
    std::vector<int64_t> next(static_cast<size_t>(count + 1), 0);
    for (int64_t l = 0; l < length; ++l) ++next[static_cast<size_t>(clusters[l] + 1)];
    for (size_t c = 1; c < next.size(); ++c) next[c] += next[c - 1];
    for (int64_t l = 0; l < length; ++l) {
      rank[l] = next[static_cast<size_t>(clusters[l])]++;
      order[rank[l]] = l;
    }
  }
};

void hamming_kmeans(KernelContext&, const kernels::HammingKmeansParams& params,
                    const TensorView& hashes, const TensorView& clusters, const TensorView& counts,
                    const TensorView& order, const TensorView& rank) {
  const int64_t groups = hashes.shape[0], length = hashes.shape[1], count = counts.shape[1];
  const int64_t per_batch =
      params.lengths ? groups / std::max<int64_t>(1, params.lengths->numel()) : 1;
  const auto group = [&](int64_t g) {
    int64_t counted = length;
    if (params.lengths) {
      counted = std::clamp<int64_t>(params.lengths->ptr<int32_t>()[g / per_batch], 0, length);
    }
    return Group{hashes.ptr<int64_t>() + g * length,
                 clusters.ptr<int64_t>() + g * length,
                 counts.ptr<int64_t>() + g * count,
                 length,
                 counted,
                 count,
                 params.bits,
                 ~uint64_t{0} >> (kMostBits - params.bits)};
  };
  if (length == 0) {
    std::fill_n(counts.ptr<int64_t>(), counts.numel(), int64_t{0});
    return;
  }
  std::vector<uint64_t> centroids(static_cast<size_t>(groups * count));
  const auto centroids_of = [&](int64_t g) { return centroids.data() + g * count; };
  parallel_for(groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) group(g).start(centroids_of(g));
  });
  // Tasks are parts of groups, since there may be fewer groups than threads.
  const int64_t part = std::clamp<int64_t>(65536 / count, 1, length);
  const int64_t parts = (length + part - 1) / part;
  for (int64_t i = 0; i < params.iterations; ++i) {
    parallel_for(groups * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t g = task / parts, first = task % parts * part;
        group(g).assign(centroids_of(g), first, std::min(first + part, length));
      }
    });
    const bool last = i + 1 == params.iterations;
    parallel_for(groups, 1, [&](int64_t begin, int64_t end) {
      std::vector<int64_t> ones;
      for (int64_t g = begin; g < end; ++g) {
        if (!last) {
          group(g).move(centroids_of(g), ones);
          continue;
        }
        group(g).count_members();
        group(g).sort(order.ptr<int64_t>() + g * length, rank.ptr<int64_t>() + g * length);
      }
    });
  }
}

// A task has a range of columns of one group and visits all its rows in order.
void cluster_sums(KernelContext&, const TensorView& x, const TensorView& clusters,
                  const TensorView&, const TensorView& sums) {
  constexpr int64_t kColumns = 32;
  const int64_t length = x.shape[1], width = x.shape[2], count = sums.shape[1];
  const int64_t parts = (width + kColumns - 1) / kColumns;
  dispatch_floating(x.dtype, "cluster_sums", [&]<class T>(TypeTag<T>) {
    parallel_for(x.shape[0] * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t group = task / parts, first = task % parts * kColumns;
        const int64_t columns = std::min(kColumns, width - first);
        T* const to = sums.ptr<T>() + group * count * width + first;
        const T* const from = x.ptr<T>() + group * length * width + first;
        const int64_t* const cluster = clusters.ptr<int64_t>() + group * length;
        for (int64_t c = 0; c < count; ++c) std::fill_n(to + c * width, columns, T(0));
        for (int64_t l = 0; l < length; ++l) {
          T* const sum = to + cluster[l] * width;
          for (int64_t d = 0; d < columns; ++d) sum[d] += from[l * width + d];
        }
      }
    });
  });
}

}  // namespace

void register_clusters() {
  kernels::sign_hash.set(DeviceType::cpu, in_float<sign_hash>);
  kernels::hamming_kmeans.set(DeviceType::cpu, hamming_kmeans);
  kernels::cluster_sums.set(DeviceType::cpu, in_float<cluster_sums, 3>);
}

}  // namespace sash::cpu
