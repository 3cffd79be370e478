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
  const A* weight;  ///< or null
  A* losses;
  A* stats;
  const A* totals;
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
        for (int i = 0; i < V; ++i) {
          const A d = v.element[i] - whole.max;
          shifted += weight ? d * weight[at + i] : d;
        }
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
    const A nll = (weight ? weight[target] : A(1)) * (log_sum - (widen(x[target]) - max));
    if (smoothing == 0) return nll;
    return (1 - smoothing) * nll + smoothing * (totals[1] * log_sum - shifted) / static_cast<A>(n);
  }
};

/// totals = the sum of the weights of targets that are not ignored, and of all classes. Runs as one
/// block.
template <class A>
__global__ void __launch_bounds__(kThreads)
    sum_weights(const int64_t* targets, int64_t rows, const A* weight, int64_t classes,
                int64_t ignore_index, A* totals) {
  int64_t count = 0;
  double counted = 0, all = 0;
  if (weight) {
    for (int64_t i = threadIdx.x; i < rows; i += kThreads) {
      const int64_t target = targets[i];
      const bool known = target != ignore_index && target >= 0 && target < classes;
      if (known) counted += static_cast<double>(weight[target]);
    }
    for (int64_t i = threadIdx.x; i < classes; i += kThreads) all += static_cast<double>(weight[i]);
    counted = BlockTeam::reduce(counted, Plus{});
    all = BlockTeam::reduce(all, Plus{});
  } else {
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < rows; i += kThreads) count += targets[i] != ignore_index;
    counted = static_cast<double>(BlockTeam::reduce(count, Plus{}));
    all = static_cast<double>(classes);
  }
  if (threadIdx.x != 0) return;
  totals[0] = static_cast<A>(counted);
  totals[1] = static_cast<A>(all);
}

template <class T>
struct Backward {
  using A = compute_t<T>;
  const T* logits;
  const int64_t* targets;
  const A* weight;  ///< or null
  const A* stats;
  const T* g;
  int64_t g_step;
  const A* totals;
  T* dlogits;
  int64_t ignore_index;
  A smoothing;
  bool mean;

  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    const int64_t target = targets[row];
    const bool ignored = target == ignore_index || target < 0 || target >= n;
    const A max = stats[2 * row], log_sum = stats[2 * row + 1];
    const A scale = widen(g[row * g_step]) / (mean ? totals[0] : A(1));
    const A share = smoothing / static_cast<A>(n);
    const A there = (1 - smoothing) * (weight && !ignored ? weight[target] : A(1));
    const A everywhere = weight ? there + share * totals[1] : A(1);
    over_row<Team, V>(n, [&](int, int64_t at) {
      auto out = read<V>(logits + row * n + at);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        A& e = out.element[i];
        const A smooth = weight ? share * weight[at + i] : share;
        e = (std::exp((e - max) - log_sum) * everywhere - smooth) * scale;
        if (at + i == target) e -= there * scale;
        if (ignored) e = 0;
      }
      write<V>(dlogits + row * n + at, out);
    });
  }
};

void cross_entropy_forward(KernelContext& context, const TensorView& logits,
                           const TensorView& targets, const TensorView& weight,
                           const TensorView& losses, const TensorView& stats,
                           const TensorView& totals, const Rule& rule) {
  dispatch_any_floating(logits.dtype, "cross_entropy", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    using A = compute_t<T>;
    const int64_t rows = logits.shape[0];
    const Forward<T> forward{logits.ptr<T>(),
                             targets.ptr<int64_t>(),
                             weight.ptr<A>(),
                             losses.ptr<A>(),
                             stats.ptr<A>(),
                             totals.ptr<A>(),
                             rule.ignore_index,
                             static_cast<A>(rule.smoothing),
                             index_flag(context.device.index)};
    const CardGuard guard(context.device.index);
    sum_weights<<<1, kThreads, 0, static_cast<cudaStream_t>(context.stream.handle)>>>(
        targets.ptr<int64_t>(), rows, weight.ptr<A>(), logits.shape[1], rule.ignore_index,
        totals.ptr<A>());
    SASH_CUDA_CHECK(cudaGetLastError());
    over_rows<T>(context, forward, rows, logits.shape[1], {logits.data});
  });
}

void cross_entropy_backward(KernelContext& context, const TensorView& logits,
                            const TensorView& targets, const TensorView& weight,
                            const TensorView& stats, const TensorView& g, const TensorView& totals,
                            const TensorView& dlogits, const Rule& rule) {
  dispatch_any_floating(logits.dtype, "cross_entropy", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    using A = compute_t<T>;
    const Backward<T> backward{
        logits.ptr<T>(),   targets.ptr<int64_t>(),         weight.ptr<A>(), stats.ptr<A>(),
        g.ptr<T>(),        g.numel() == 1 ? 0 : 1,         totals.ptr<A>(), dlogits.ptr<T>(),
        rule.ignore_index, static_cast<A>(rule.smoothing), rule.mean};
    over_rows<T>(context, backward, logits.shape[0], logits.shape[1], {logits.data, dlogits.data});
  });
}

}  // namespace

void register_cross_entropy() {
  kernels::cross_entropy_forward.set(DeviceType::cuda, cross_entropy_forward);
  kernels::cross_entropy_backward.set(DeviceType::cuda, cross_entropy_backward);
}

}  // namespace sash::cuda
