#include "../../../ops/kernels/clusters.h"

#include "../index/sorted_sums.cuh"
#include "../runtime/index_flag.h"

namespace sash::cuda {
namespace {

constexpr int kRowsPerWarp = 4;

/// A lane has bits `lane` and, if kWords is 2, `lane` + 32 of the hashes of kRowsPerWarp rows.
template <int kWords, class T>
__global__ void __launch_bounds__(kThreads)
    sign_hash_kernel(const T* x, const float* planes, int64_t* hash, int64_t count, int64_t depth,
                     int bits) {
  const int64_t first = WarpTeam::row() * kRowsPerWarp;
  if (first >= count) return;
  const int lane = WarpTeam::rank();
  double side[kWords][kRowsPerWarp] = {};
  const auto plane = [&](int64_t d, int word) {
    const int bit = word * kWarp + lane;
    return bit < bits ? planes[d * bits + bit] : 0.f;
  };
  for (int64_t start = 0; start < depth; start += kWarp) {
    const int64_t mine = start + lane;
    float values[kRowsPerWarp];
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const bool inside = mine < depth && first + r < count;
      values[r] = inside ? static_cast<float>(widen(x[(first + r) * depth + mine])) : 0.f;
    }
    const int steps = static_cast<int>(min(int64_t{kWarp}, depth - start));
    for (int d = 0; d < steps; ++d) {
      double normal[kWords];
#pragma unroll
      for (int word = 0; word < kWords; ++word) normal[word] = plane(start + d, word);
#pragma unroll
      for (int r = 0; r < kRowsPerWarp; ++r) {
        const double value = __shfl_sync(kAllLanes, values[r], d);
#pragma unroll
        for (int word = 0; word < kWords; ++word) side[word][r] += value * normal[word];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsPerWarp; ++r) {
    uint64_t bits_of_row = 0;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const double distance = side[word][r] + static_cast<double>(plane(depth, word));
      bits_of_row |= static_cast<uint64_t>(__ballot_sync(kAllLanes, distance > 0)) << (32 * word);
    }
    if (lane == 0 && first + r < count) hash[first + r] = static_cast<int64_t>(bits_of_row);
  }
}

void sign_hash(KernelContext& context, View x, View planes, View hash) {
  const int64_t count = x.shape[0], depth = x.shape[1];
  const auto bits = static_cast<int>(planes.shape[1]);
  if (count == 0) return;
  dispatch_device_floating(x.dtype, "sign_hash", [&]<class T>(TypeTag<T>) {
    const auto kernel = bits <= kWarp ? sign_hash_kernel<1, T> : sign_hash_kernel<2, T>;
    launch_kernel(context, blocks_for(ceil_div(count, kRowsPerWarp) * kWarp), kThreads, 0, kernel,
                  x.ptr<T>(), planes.ptr<float>(), hash.ptr<int64_t>(), count, depth, bits);
  });
}

/// Hashes of a block, and centroids that it holds at a time.
constexpr int kHashes = 2 * kThreads;
constexpr int kTile = 1024;
/// Up to this many counters, a block counts in shared memory, else directly in global memory.
constexpr int64_t kSharedCounters = 9216;

/// One assignment is one kernel. Blocks of a group make the new centroids, each for itself, from
/// the counters of the assignment before. All counters are integers, so their atomic sums have one
/// value.
struct Groups {
  const int64_t* hashes;
  int64_t* clusters;
  const int32_t* lengths;  ///< null: all hashes count
  int64_t per_batch;       ///< groups that share a length
  int64_t count;           ///< of groups
  int64_t length;
  int64_t centroid_count;
  int bits;
  uint64_t* centroids[2];  ///< [G, C] of this assignment and the one before, in turn
  /// [G, C, bits + 1], in turn those that an assignment adds to, those of the one before, and those
  /// it clears for the next: for each bit the members that have it, then all members.
  int32_t* counters[3];

  __device__ int64_t counted(int64_t group) const {
    if (!lengths) return length;
    const int64_t given = lengths[group / per_batch];
    return max(int64_t{0}, min(given, length));
  }
  __device__ uint64_t hash(int64_t group, int64_t place) const {
    const uint64_t mask = ~uint64_t{0} >> (64 - bits);
    return static_cast<uint64_t>(hashes[group * length + place]) & mask;
  }
  int64_t counters_per_group() const { return centroid_count * (bits + 1); }
};

__global__ void __launch_bounds__(kThreads) start_centroids(const Groups groups) {
  const int64_t at = thread_index();
  if (at >= groups.count * groups.centroid_count) return;
  const int64_t group = at / groups.centroid_count, c = at - group * groups.centroid_count;
  groups.centroids[1][at] = groups.hash(group, c * groups.counted(group) / groups.centroid_count);
}

/// Centroid c of a group for assignment number `step`; a whole warp calls it.
__device__ uint64_t centroid(const Groups& groups, int64_t group, int64_t c, int64_t step) {
  const uint64_t before = groups.centroids[(step + 1) % 2][group * groups.centroid_count + c];
  if (step == 0) return before;
  const int stride = groups.bits + 1;
  const int32_t* const ones =
      groups.counters[(step + 2) % 3] + (group * groups.centroid_count + c) * stride;
  const int32_t members = ones[groups.bits];
  if (members == 0) return before;
  uint64_t word = 0;
  for (int first = 0; first < groups.bits; first += kWarp) {
    const int bit = first + WarpTeam::rank();
    const bool most = bit < groups.bits && 2 * int64_t{ones[bit]} > members;
    word |= static_cast<uint64_t>(__ballot_sync(kAllLanes, most)) << first;
  }
  return word;
}

__device__ int distance(uint32_t a, uint32_t b) { return __popc(a ^ b); }
__device__ int distance(uint64_t a, uint64_t b) { return __popcll(a ^ b); }

/// A block has kHashes hashes of group blockIdx.x. `in_shared` says whether counters are in shared
/// memory. The last assignment counts members only.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    assign_kernel(const __grid_constant__ Groups groups, int64_t step, bool last, bool in_shared) {
  extern __shared__ int32_t shared_counters[];
  __shared__ Word tile[kTile];
  const int64_t group = blockIdx.x, first = int64_t{blockIdx.y} * kHashes;
  const int64_t counters = groups.centroid_count * (groups.bits + 1);
  const int thread = static_cast<int>(threadIdx.x), lane = WarpTeam::rank();
  int32_t* const global = groups.counters[step % 3] + group * counters;
  int32_t* const next = groups.counters[(step + 1) % 3] + group * counters;
  for (int64_t i = int64_t{blockIdx.y} * kThreads + thread; i < counters;
       i += int64_t{gridDim.y} * kThreads) {
    next[i] = 0;
  }
  if (in_shared) {
    for (int64_t i = thread; i < counters; i += kThreads) shared_counters[i] = 0;
  }
  Word hash[kHashes / kThreads];
  int least[kHashes / kThreads];
  int64_t nearest[kHashes / kThreads];
#pragma unroll
  for (int k = 0; k < kHashes / kThreads; ++k) {
    const int64_t place = first + k * kThreads + thread;
    hash[k] = place < groups.length ? static_cast<Word>(groups.hash(group, place)) : Word(0);
    least[k] = 65;
    nearest[k] = 0;
  }
  for (int64_t start = 0; start < groups.centroid_count; start += kTile) {
    const int here = static_cast<int>(min(int64_t{kTile}, groups.centroid_count - start));
    __syncthreads();  // all threads have read the tile before
    for (int c = thread / kWarp; c < here; c += kWarps) {
      const uint64_t word = centroid(groups, group, start + c, step);
      if (lane != 0) continue;
      tile[c] = static_cast<Word>(word);
      if (blockIdx.y == 0) {
        groups.centroids[step % 2][group * groups.centroid_count + start + c] = word;
      }
    }
    __syncthreads();
    for (int c = 0; c < here; ++c) {
      const Word word = tile[c];
#pragma unroll
      for (int k = 0; k < kHashes / kThreads; ++k) {
        const int d = distance(hash[k], word);
        if (d < least[k]) least[k] = d, nearest[k] = start + c;
      }
    }
  }
  const int64_t counted = groups.counted(group);
#pragma unroll
  for (int k = 0; k < kHashes / kThreads; ++k) {
    const int64_t place = first + k * kThreads + thread;
    if (place >= groups.length) continue;
    groups.clusters[group * groups.length + place] = nearest[k];
    if (place >= counted) continue;
    int32_t* const mine = (in_shared ? shared_counters : global) + nearest[k] * (groups.bits + 1);
    atomicAdd(mine + groups.bits, 1);
    if (last) continue;
    // Lanes begin at different bits: fewer of them add to one counter at a time.
    int bit = lane % groups.bits;
    for (int i = 0; i < groups.bits; ++i) {
      if (hash[k] >> bit & 1) atomicAdd(mine + bit, 1);
      if (++bit == groups.bits) bit = 0;
    }
  }
  if (!in_shared) return;
  __syncthreads();
  for (int64_t i = thread; i < counters; i += kThreads) {
    if (shared_counters[i] != 0) atomicAdd(global + i, shared_counters[i]);
  }
}

/// The members of each cluster, and the keys that sort a group's places by cluster.
__global__ void __launch_bounds__(kThreads)
    read_counters(const Groups groups, const int32_t* counters, int64_t* counts) {
  const int64_t at = thread_index();
  if (at >= groups.count * groups.centroid_count) return;
  counts[at] = counters[at * (groups.bits + 1) + groups.bits];
}

__global__ void __launch_bounds__(kThreads)
    make_keys(const Groups groups, uint64_t* keys, int64_t* places) {
  const int64_t at = thread_index();
  if (at >= groups.count * groups.length) return;
  const int64_t group = at / groups.length;
  keys[at] = static_cast<uint64_t>(group * groups.centroid_count + groups.clusters[at]);
  places[at] = at;
}

__global__ void __launch_bounds__(kThreads)
    write_order(const Groups groups, const int64_t* places, int64_t* order, int64_t* rank) {
  const int64_t at = thread_index();
  if (at >= groups.count * groups.length) return;
  const int64_t start = at / groups.length * groups.length;
  order[at] = places[at] - start;
  rank[places[at]] = at - start;
}

void hamming_kmeans(KernelContext& context, const kernels::HammingKmeansParams& params, View hashes,
                    View clusters, View counts, View order, View rank) {
  const CardGuard guard(context.device.index);
  Groups groups{.hashes = hashes.ptr<int64_t>(),
                .clusters = clusters.ptr<int64_t>(),
                .lengths = params.lengths ? params.lengths->ptr<int32_t>() : nullptr,
                .per_batch = 1,
                .count = hashes.shape[0],
                .length = hashes.shape[1],
                .centroid_count = counts.shape[1],
                .bits = static_cast<int>(params.bits),
                .centroids = {},
                .counters = {}};
  if (counts.numel() == 0) return;
  if (groups.length == 0) {
    SASH_CUDA_CHECK(cudaMemsetAsync(
        counts.data, 0, static_cast<size_t>(counts.numel()) * sizeof(int64_t), stream_of(context)));
    return;
  }
  if (params.lengths) groups.per_batch = groups.count / params.lengths->numel();
  const int64_t all = counts.numel(), counters = all * (groups.bits + 1);
  const Workspace centroids(context, 2 * all * int64_t{sizeof(uint64_t)});
  const Workspace counting(context, 3 * counters * int64_t{sizeof(int32_t)});
  for (int i = 0; i < 2; ++i) groups.centroids[i] = centroids.ptr<uint64_t>() + i * all;
  for (int i = 0; i < 3; ++i) groups.counters[i] = counting.ptr<int32_t>() + i * counters;
  SASH_CUDA_CHECK(cudaMemsetAsync(
      groups.counters[0], 0, static_cast<size_t>(counters) * sizeof(int32_t), stream_of(context)));
  launch_kernel(context, blocks_for(all), kThreads, 0, start_centroids, groups);
  const bool in_shared = groups.counters_per_group() <= kSharedCounters;
  const int64_t shared = in_shared ? groups.counters_per_group() * int64_t{sizeof(int32_t)} : 0;
  const auto kernel = groups.bits <= 32 ? assign_kernel<uint32_t> : assign_kernel<uint64_t>;
  for (int64_t step = 0; step < params.iterations; ++step) {
    launch_kernel(context, {groups.count, ceil_div(groups.length, kHashes)}, kThreads, shared,
                  kernel, groups, step, step + 1 == params.iterations, in_shared);
  }
  launch_kernel(context, blocks_for(all), kThreads, 0, read_counters, groups,
                groups.counters[(params.iterations - 1) % 3], counts.ptr<int64_t>());
  const int64_t places = groups.count * groups.length;
  SortedKeys sorted(context, places);
  launch_kernel(context, blocks_for(places), kThreads, 0, make_keys, groups, sorted.keys(),
                sorted.places());
  sorted.sort(static_cast<uint64_t>(all));
  launch_kernel(context, blocks_for(places), kThreads, 0, write_order, groups, sorted.places(),
                order.ptr<int64_t>(), rank.ptr<int64_t>());
}

/// The keys and places of all rows in the order of their clusters. A row that is not in [0, length)
/// or whose cluster is not in [0, centroids) is reported and gets the largest key.
__global__ void __launch_bounds__(kThreads)
    make_sum_keys(int64_t count, int64_t length, int64_t centroids, const int64_t* clusters,
                  const int64_t* order, uint64_t* keys, int64_t* places, IndexFlag* flag) {
  const int64_t at = thread_index();
  if (at >= count) return;
  const int64_t group = at / length, start = group * length;
  const bool inside = in_range(flag, IndexOp::gather, order[at], length, at);
  const int64_t place = inside ? start + order[at] : at;
  const bool valid = in_range(flag, IndexOp::gather, clusters[place], centroids, place) && inside;
  keys[at] = valid ? static_cast<uint64_t>(group * centroids + clusters[place]) : ~uint64_t{0};
  places[at] = place;
}

void cluster_sums(KernelContext& context, View x, View clusters, View order, View sums) {
  const int64_t length = x.shape[1], width = x.shape[2], count = x.shape[0] * length;
  if (sums.numel() == 0) return;
  const SortedKeys rows(context, count);  // in order already
  if (count > 0) {
    launch_kernel(context, blocks_for(count), kThreads, 0, make_sum_keys, count, length,
                  sums.shape[1], clusters.ptr<int64_t>(), order.ptr<int64_t>(), rows.keys(),
                  rows.places(), index_flag(context.device.index));
  }
  dispatch_device_floating(x.dtype, "cluster_sums", [&]<class T>(TypeTag<T>) {
    sum_by_key(context, rows, MatrixRows<T>{x.ptr<T>(), width}, {x.data}, sums.ptr<T>(),
               sums.shape[0] * sums.shape[1], width);
  });
}

}  // namespace

void register_clusters() {
  kernels::sign_hash.set(DeviceType::cuda, sign_hash);
  kernels::hamming_kmeans.set(DeviceType::cuda, hamming_kmeans);
  kernels::cluster_sums.set(DeviceType::cuda, cluster_sums);
}

}  // namespace sash::cuda
