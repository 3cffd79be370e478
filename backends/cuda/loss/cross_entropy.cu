#include "../../../ops/kernels/loss.h"

#include <cmath>

#include "../norm/rows.cuh"
#include "../runtime/index_flag.h"

namespace sash::cuda {
namespace {

using Rule = kernels::CrossEntropyRule;

template <class T>
struct Forward {
  using A = compute_t<T>;
  const T* logits;
  const int64_t* targets;
  A* losses;
  A* stats;
  int64_t ignore_index;
  A smoothing;
  IndexFlag* flag;

  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    const T* const x = logits + row * n;
    const Row<Team, V, T> values(x, n);
    const auto whole = partition_of(values, n);
    const A log_sum = std::log(whole.sum);
    A shifted = 0;
    if (smoothing != 0) {
      over_row<Team, V>(n, [&](int k, int64_t at) {
        const auto v = values(k, at);
#pragma unroll
        for (int i = 0; i < V; ++i) shifted += v.element[i] - whole.max;
      });
      shifted = Team::reduce(shifted, Plus{});
    }
    if (Team::rank() != 0) return;
    stats[2 * row] = whole.max;
    stats[2 * row + 1] = log_sum;
    losses[row] = loss(x, row, n, whole.max, log_sum, shifted);
  }

 private:
  /// The loss of a row: 0 if it is ignored; NaN, with a report, if its target is not in [0, n).
  __device__ A loss(const T* x, int64_t row, int64_t n, A max, A log_sum, A shifted) const {
    const int64_t target = targets[row];
    if (target == ignore_index) return 0;
    if (!in_range(flag, IndexOp::cross_entropy, target, n, row)) return kNaN<A>;
    const A nll = log_sum - (widen(x[target]) - max);
    if (smoothing == 0) return nll;
    return (1 - smoothing) * nll + smoothing * (log_sum - shifted / static_cast<A>(n));
  }
};

/// count = the number of targets that are not ignored. Runs as one block.
template <class A>
__global__ void __launch_bounds__(kThreads)
    count_targets(const int64_t* targets, int64_t rows, int64_t ignore_index, A* count) {
  int64_t mine = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < rows; i += kThreads) mine += targets[i] != ignore_index;
  const int64_t all = BlockTeam::reduce(mine, Plus{});
  if (threadIdx.x == 0) *count = static_cast<A>(all);
}

template <class T>
struct Backward {
  using A = compute_t<T>;
  const T* logits;
  const int64_t* targets;
  const A* stats;
  const T* g;
  int64_t g_step;
  const A* count;
  T* dlogits;
  int64_t ignore_index;
  A smoothing;

  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    const int64_t target = targets[row];
    const bool ignored = target == ignore_index;
    const A max = stats[2 * row], log_sum = stats[2 * row + 1];
    const A scale = widen(g[row * g_step]) / (count ? *count : A(1));
    const A everywhere = smoothing / static_cast<A>(n), there = (1 - smoothing) * scale;
    over_row<Team, V>(n, [&](int, int64_t at) {
      auto out = read<V>(logits + row * n + at);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        A& e = out.element[i];
        e = (std::exp((e - max) - log_sum) - everywhere) * scale;
        if (at + i == target) e -= there;
        if (ignored) e = 0;
      }
      write<V>(dlogits + row * n + at, out);
    });
  }
};

void cross_entropy_forward(KernelContext& context, const TensorView& logits,
                           const TensorView& targets, const TensorView& losses,
                           const TensorView& stats, const TensorView& count, const Rule& rule) {
  dispatch_any_floating(logits.dtype, "cross_entropy", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    using A = compute_t<T>;
    const int64_t rows = logits.shape[0];
    const Forward<T> forward{logits.ptr<T>(),
                             targets.ptr<int64_t>(),
                             losses.ptr<A>(),
                             stats.ptr<A>(),
                             rule.ignore_index,
                             static_cast<A>(rule.smoothing),
                             index_flag(context.device.index)};
    over_rows<T>(context, forward, rows, logits.shape[1], {logits.data});
    const CardGuard guard(context.device.index);
    count_targets<<<1, kThreads, 0, static_cast<cudaStream_t>(context.stream.handle)>>>(
        targets.ptr<int64_t>(), rows, rule.ignore_index, count.ptr<A>());
    SASH_CUDA_CHECK(cudaGetLastError());
  });
}

void cross_entropy_backward(KernelContext& context, const TensorView& logits,
                            const TensorView& targets, const TensorView& stats, const TensorView& g,
                            const TensorView& count, const TensorView& dlogits, const Rule& rule) {
  dispatch_any_floating(logits.dtype, "cross_entropy", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    using A = compute_t<T>;
    const Backward<T> backward{
        logits.ptr<T>(),  targets.ptr<int64_t>(), stats.ptr<A>(),
        g.ptr<T>(),       g.numel() == 1 ? 0 : 1, count.ptr<A>(),
        dlogits.ptr<T>(), rule.ignore_index,      static_cast<A>(rule.smoothing)};
    over_rows<T>(context, backward, logits.shape[0], logits.shape[1], {logits.data, dlogits.data});
  });
}

}  // namespace

void register_cross_entropy() {
  kernels::cross_entropy_forward.set(DeviceType::cuda, cross_entropy_forward);
  kernels::cross_entropy_backward.set(DeviceType::cuda, cross_entropy_backward);
}

}  // namespace sash::cuda
