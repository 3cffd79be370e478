#include "../hopper/launch.cuh"
#include "by_key.cuh"
#include "selected.h"

/// The forward pass by key on tensor cores.
namespace sash::cuda::selected {
namespace {

using hopper::Operand;

constexpr int kCombineThreads = 256;

/// A group of warps. It forms the partial results of 64 rows of each tile, with
/// P = 2^(c s - base). The sums P V of a step run while the weights P of the next step are formed,
/// which may be the first of another tile.
template <class S>
class Group {
 public:
  using T = typename S::Element;

  __device__ Group(const ByKey<T>& x, ByKeyShared<S>& shared)
      : x_(x),
        c_(x.dims),
        shared_(shared),
        q_(shared.rows[0][hopper::group()]),
        k_(shared.k[0]),
        v_(shared.v[0]) {}

  __device__ void run() {
    if (!take_tile()) return;
    start_scores();
    form<false>(at_, true);
    while (true) {
      const typename S::State before = at_;
      at_.advance();
      ++step_;
      const bool fresh = step_ == steps_;
      if (fresh) {
        shared_.tiles.empty[at_tile_.stage()].arrive();
        at_tile_.advance();
        if (!take_tile()) {
          start_sums(before);
          float factor[2];
          finish_stats(factor);
          hopper::warpgroup_wait<0>();
          hopper::fence_operand(sum_);
          store_sums(factor);
          return;
        }
      }
      start_scores();
      start_sums(before);
      form<true>(before, fresh);
    }
  }

 private:
  static constexpr int kScores = S::kKeys / 2, kSums = S::kDepth / 2;
  /// A base may lag behind the largest score by so much: weights of up to 2^8 lose nothing.
  static constexpr float kLag = 8;

  /// Of a row; total: this thread's part.
  struct Stats {
    float highest, total;
  };

  __device__ const TileRows<S>& tile() const { return shared_.tile[at_tile_.stage()]; }
  /// The row of this thread's accumulators in the tile.
  static __device__ int row(int half) { return 64 * hopper::group() + hopper::row_of(half); }

  /// Waits for the tile; returns false after the last one.
  __device__ bool take_tile() {
    shared_.tiles.wait(at_tile_);
    if (__any_sync(~0u, tile().b < 0)) return false;
    const KeyRange keys = tile().keys();
    first_ = keys.first;
    steps_ = __reduce_max_sync(~0u, (keys.past - keys.first + S::kKeys - 1) / S::kKeys);
    step_ = 0;
    return true;
  }

  /// S = Q K'
  __device__ void start_scores() {
    shared_.k_ring.wait(at_);
    hopper::warpgroup_arrive();
    hopper::multiply_rows<typename S::Rows, typename S::Keys>(
        score_, q_.at(at_tile_.stage(), sizeof(shared_.rows[0])),
        k_.at(at_.stage(), sizeof(shared_.k[0])));
    hopper::warpgroup_commit();
  }

  /// O += P V
  __device__ void start_sums(const typename S::State& at) {
    shared_.v_ring.wait(at);
    hopper::fence_operand(sum_);
    hopper::warpgroup_arrive();
    hopper::multiply_add<typename S::Keys>(sum_, weight_, v_.at(at.stage(), sizeof(shared_.v[0])));
    hopper::warpgroup_commit();
  }

  /// Waits for the scores and forms weights. If `running`, it also waits for the sums of step
  /// `before`. If the step is `fresh`, the first of a tile, it stores these sums.
  template <bool running>
  __device__ void form(const typename S::State& before, bool fresh) {
    hopper::warpgroup_wait<running ? 1 : 0>();
    shared_.k_ring.release(at_);
    hopper::fence_operand(score_);
    if (c_.negative) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) score_[i] = -score_[i];
    }
    hide();
    float rescale[2], factor[2];
    Stats now[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rescale[half] = weigh(half, fresh ? Stats{-kInfinity, 0} : stats_[half], now[half]);
    }
    // ptxas does not move the next wait ahead of the branch.
    if (running && fresh) finish_stats(factor);
    stats_[0] = now[0];
    stats_[1] = now[1];
    hopper::fence_operand(score_);
    if constexpr (running) {
      hopper::warpgroup_wait<0>();
      hopper::fence_operand(sum_);
      shared_.v_ring.release(before);
    }
    if (fresh) {
      if constexpr (running) store_sums(factor);
#pragma unroll
      for (int i = 0; i < kSums; ++i) sum_[i] = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) place_[half] = tile().place[row(half)];
    } else if (__any_sync(~0u, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sum_[i] *= rescale[i / 2 % 2];
    }
    hopper::pack<T>(weight_, score_);
  }

  /// Makes the scores that rows do not see -infinity.
  __device__ void hide() {
    const int key = first_ + step_ * S::kKeys;
    const KeyRange common = tile().common[hopper::group()];
    if (!__any_sync(~0u, key < common.first || key + S::kKeys > common.past)) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyRange range = tile().range[row(half)];
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const int at = key + fragments::column_of(j, e);
          if (at < range.first || at >= range.past) score_[4 * j + e] = -kInfinity;
        }
      }
    }
  }

  /// Makes the scores of row `half` weights. Returns the factor of earlier sums.
  __device__ float weigh(int half, const Stats& before, Stats& now) {
    float highest = before.highest;
#pragma unroll
    for (int j = 2 * half; j < kScores; j += 4) {
      highest = max(highest, max(score_[j], score_[j + 1]));
    }
    highest = max_over_quad(highest);
    const bool grows = (highest - before.highest) * c_.size > kLag;
    if (!grows) highest = before.highest;
    const float shift = highest == -kInfinity ? 0.f : highest * c_.size;
    const float rescale =
        grows ? fragments::exp2_approx(fmaf(before.highest, c_.size, -shift)) : 1.f;
    float added = 0;
#pragma unroll
    for (int j = 2 * half; j < kScores; j += 4) {
      score_[j] = fragments::exp2_approx(fmaf(score_[j], c_.size, -shift));
      score_[j + 1] = fragments::exp2_approx(fmaf(score_[j + 1], c_.size, -shift));
      added += score_[j] + score_[j + 1];
    }
    now = {highest, fmaf(before.total, rescale, added)};
    return rescale;
  }

  /// Writes the statistics of a tile. Returns the factors of its sums.
  __device__ void finish_stats(float (&factor)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = sum_over_quad(stats_[half].total);
      factor[half] = total == 0 ? 0 : 1 / total;
      if (lane() % 4 == 0 && place_[half] >= 0) {
        x_.stats[place_[half]] = {stats_[half].highest * c_.size, total};
      }
    }
  }
  __device__ void store_sums(const float (&factor)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (place_[half] < 0) continue;
      write_part(x_.sums + int64_t{place_[half]} * S::kDepth, sum_, half, factor[half]);
    }
  }

  const ByKey<T>& x_;
  const Exponent c_;
  ByKeyShared<S>& shared_;
  const Operand q_, k_, v_;
  typename S::State at_;
  PipelineState<kTiles> at_tile_;
  int first_, steps_, step_, place_[2];  ///< place_: of the rows of the sums
  Stats stats_[2];
  float score_[kScores], sum_[kSums];
  uint32_t weight_[kScores / 2];
};

template <class S, class T>
__global__ void __launch_bounds__(S::kThreads, 1)
    forward_kernel(const __grid_constant__ ByKey<T> x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& shared = *reinterpret_cast<ByKeyShared<S>*>(raw);
  if (threadIdx.x == 0) {
    shared.tiles.init(128 * S::kGroups + 1, 32 * S::kGroups);  // the copying thread, too
    shared.k_ring.init(4 * S::kGroups);
    shared.v_ring.init(4 * S::kGroups);
    hopper::fence_barrier_init();
  }
  __syncthreads();
  if (hopper::group() < S::kGroups) {
    hopper::warpgroup_reg_alloc<S::kConsumerRegisters>();
    Group<S>(x, shared).run();
  } else {
    hopper::warpgroup_reg_dealloc<S::kProducerRegisters>();
    const int number = warp() - 4 * S::kGroups;
    if (number < S::kGroups) gather_tiles<S>(x, shared, number);
    if (number == S::kGroups) copy_keys<S>(x, shared);
  }
#endif
}

/// Adds the partial results of each row of q: a thread for 8 elements.
template <class T, int depth>
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const __grid_constant__ ByKey<T> x) {
  constexpr int lanes = depth / 8;
  const Dims& dims = x.dims;
  const ResultAt at(dims, x.segment, 1, lanes);
  if (at.query < 0) return;
  const float2* const stats = x.stats + at.first;
  const auto* const parts = reinterpret_cast<const uint4*>(x.sums) + at.first * lanes + at.lane;
  float highest = -kInfinity, total = 0;
#pragma unroll 4
  for (int i = 0; i < dims.entries; ++i) {
    const float2 own = stats[i * dims.group];
    highest = max(highest, own.y == 0 ? -kInfinity : own.x);
  }
  PartSum<T> sum;
#pragma unroll 8
  for (int i = 0; i < dims.entries; ++i) {
    const float2 own = stats[i * dims.group];
    uint4 part{};
    if (own.y != 0) part = __ldcs(parts + int64_t{i} * dims.group * lanes);
    const float weight = own.y == 0 ? 0 : own.y * fragments::exp2_approx(own.x - highest);
    total += weight;
    sum.add(part, weight);
  }
  const Rows<T> out = x.out.at(at.b, at.head);
  sum.write(out.data + at.query * out.row, at.lane, total == 0 ? 0 : 1 / total);
  if (at.lane > 0) return;
  x.lse[dims.row_of(at.b, at.head) + at.query] =
      total == 0 ? kInfinity : fragments::kLn2 * (highest + log2f(total));
}

/// Forms the partial results and combines them, segment after segment.
template <class T, int depth>
void run(const KernelContext& context, ByKey<T> call) {
  using S =
      std::conditional_t<depth == 64, ByKeyShape<T, 64, 3, 128, 5>, ByKeyShape<T, 128, 2, 128, 2>>;
  static_assert(sizeof(ByKeyShared<S>) <= hopper::kSharedBytes);
  const Dims& dims = call.dims;
  const ListMemory lists(context, dims, S::kRows / dims.group);
  call.lists = lists.lists();
  const int64_t each = int64_t{dims.calls()} * dims.entries * dims.group;  // results of a row
  const int64_t bytes = depth * 2 + int64_t{sizeof(float2)};
  const std::vector<Segment> all = segments(dims, each * bytes);
  const int64_t results = (all[0].past - all[0].first) * each;
  const Workspace memory(context, results * bytes);
  call.sums = memory.ptr<T>();
  call.stats = reinterpret_cast<float2*>(call.sums + results * depth);
  for (const Segment& segment : all) {
    call.segment = segment;
    SASH_CUDA_CHECK(cudaMemsetAsync(call.stats, 0, static_cast<size_t>(results) * sizeof(float2),
                                    stream_of(context)));
    const int64_t tiles = segment.most_chunks(call.lists) * dims.calls();
    launch<forward_kernel<S, T>>(context,
                                 std::min<int64_t>(hopper::multiprocessors(context), tiles),
                                 S::kThreads, static_cast<int>(sizeof(ByKeyShared<S>)), call);
    const int64_t rows = (segment.past - segment.first) * dims.calls() * dims.group;
    launch_tiles(context, ceil_div(rows * depth / 8, kCombineThreads), kCombineThreads, 0,
                 combine_kernel<T, depth>, call);
  }
}

}  // namespace

void forward_by_key(const KernelContext& context, const AttentionInputs& x,
                    const SelectedAttentionParams& params, View out, View lse) {
  const auto run_as = [&]<class T>(TypeTag<T>) {
    const ByKey<T> call{.dims = Dims(x, params),
                        .lists = {},
                        .segment = {},
                        .k = tensor_map(x.k, 64),
                        .v = tensor_map(x.v, 64),
                        .q = rows_of<const T>(x.q),
                        .out = rows_of<T>(out),
                        .lse = lse.ptr<float>(),
                        .sums = nullptr,
                        .stats = nullptr};
    call.dims.depth == 64 ? run<T, 64>(context, call) : run<T, 128>(context, call);
  };
  if (x.q.dtype == DType::bfloat16) {
    run_as(TypeTag<__nv_bfloat16>());
  } else {
    run_as(TypeTag<__half>());
  }
}

}  // namespace sash::cuda::selected
