#include "../../../ops/kernels/loss.h"

#include <cuda_pipeline_primitives.h>
#include <cmath>

#include "../elementwise/compute.cuh"
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

void cross_entropy_forward(KernelContext& context, View logits, View targets, View weight,
                           View losses, View stats, View totals, const Rule& rule) {
  dispatch_device_floating(logits.dtype, "cross_entropy", [&]<class T>(TypeTag<T>) {
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
    launch_kernel(context, 1, kThreads, 0, sum_weights<A>, targets.ptr<int64_t>(), rows,
                  weight.ptr<A>(), logits.shape[1], rule.ignore_index, totals.ptr<A>());
    over_rows<T>(context, forward, rows, logits.shape[1], {logits.data});
  });
}

void cross_entropy_backward(KernelContext& context, View logits, View targets, View weight,
                            View stats, View g, View totals, View dlogits, const Rule& rule) {
  dispatch_device_floating(logits.dtype, "cross_entropy", [&]<class T>(TypeTag<T>) {
    using A = compute_t<T>;
    const Backward<T> backward{
        logits.ptr<T>(),   targets.ptr<int64_t>(),         weight.ptr<A>(), stats.ptr<A>(),
        g.ptr<T>(),        g.numel() == 1 ? 0 : 1,         totals.ptr<A>(), dlogits.ptr<T>(),
        rule.ignore_index, static_cast<A>(rule.smoothing), rule.mean};
    over_rows<T>(context, backward, logits.shape[0], logits.shape[1], {logits.data, dlogits.data});
  });
}

/// Losses and gradients in one pass. A few lanes, or a warp, hold a short row in registers. A block
/// holds a long one in shared memory if that is large enough, and else reads it twice.
template <class T>
struct InPlace {
  using A = compute_t<T>;
  T* logits;
  const int64_t* targets;
  A* losses;
  int64_t ignore_index;
  A smoothing;
  int64_t first;
  IndexFlag* flag;

  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    replace<Team, V>(Row<Team, V, T>(logits + row * n, n), row, n);
  }

  /// Of a row with the given values, which other threads of the team may hold.
  template <class Team, int V, class Values>
  __device__ void replace(const Values& values, int64_t row, int64_t n) const {
    T* const y = logits + row * n;
    const int64_t target = targets[row];
    if (target == ignore_index || static_cast<uint64_t>(target) >= static_cast<uint64_t>(n)) {
      return replace_without_target<Team, V>(target, row, n);
    }
    const A chosen = widen(y[target]);  // read before anything is written
    const Partition<A> whole = partition_of_values<Team, V, T>(values, n);
    const A max = whole.max, log_sum = std::log(whole.sum), scale = 1 / whole.sum;
    const A everywhere = smoothing / static_cast<A>(n);
    A loss = log_sum - (chosen - max);
    if (smoothing != 0) {
      const A total = sum_of<Team, V>(values, n, [](A v) { return v; });
      loss = (1 - smoothing) * loss + smoothing * (log_sum + max - total / static_cast<A>(n));
    }
    if (Team::rank() == 0) losses[row] = loss;
    over_row<Team, V>(n, [&](int k, int64_t at) {
      auto v = values(k, at);
#pragma unroll
      for (auto& e : v.element) e = exp_of_difference<T>(e, max) * scale - everywhere;
      if (static_cast<uint64_t>(target - at) < V) {
#pragma unroll
        for (int i = 0; i < V; ++i) v.element[i] -= at + i == target ? 1 - smoothing : A(0);
      }
      write<V>(y + at, v);
    });
  }

 private:
  /// Zeros of an ignored row; NaN and a report where the target is no class.
  template <class Team, int V>
  __device__ void replace_without_target(int64_t target, int64_t row, int64_t n) const {
    const bool ignored = target == ignore_index;
    Vector<A, V> all;
#pragma unroll
    for (auto& e : all.element) e = ignored ? A(0) : kNaN<A>;
    over_row<Team, V>(n, [&](int, int64_t at) { write<V>(logits + row * n + at, all); });
    if (Team::rank() != 0) return;
    losses[row] = all.element[0];
    if (!ignored) report(flag, IndexOp::cross_entropy, target, n, first + row);
  }
};

constexpr int kRowThreads = 512;
using RowBlock = WholeBlock<kRowThreads>;

/// A row in shared memory: each thread copies the vectors that it will read.
template <int V, class T>
class SharedRow {
 public:
  __device__ SharedRow(const T* from, T* to, int64_t n) : row_(to) {
    over_row<RowBlock, V>(n, [&](int, int64_t at) {
      if constexpr (V > 1) {
        __pipeline_memcpy_async(to + at, from + at, sizeof(Vector<T, V>));
      } else {
        to[at] = from[at];
      }
    });
    __pipeline_commit();
    __pipeline_wait_prior(0);
  }
  __device__ auto operator()(int, int64_t at) const { return read<V>(row_ + at); }

 private:
  const T* row_;
};

template <bool kept, int V, class T>
__global__ void __launch_bounds__(kRowThreads, 2) replace_long_rows(const InPlace<T> x, int64_t n) {
  const int64_t row = blockIdx.x;
  if constexpr (kept) {
    extern __shared__ __align__(16) unsigned char memory[];
    const SharedRow<V, T> values(x.logits + row * n, reinterpret_cast<T*>(memory), n);
    x.template replace<RowBlock, V>(values, row, n);
  } else {
    x.template run<RowBlock, V>(row, n);
  }
}

template <int V, class T>
void launch_long(const KernelContext& context, const InPlace<T>& x, int64_t rows, int64_t n) {
  const int64_t bytes = n * int64_t{sizeof(T)};
  constexpr int64_t kStatic = 1024;  // for reductions
  const int most = card_attribute(context.device.index, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (bytes + kStatic <= most) {
    const auto kernel = replace_long_rows<true, V, T>;
    SASH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(most - kStatic)));
    launch_kernel(context, rows, kRowThreads, bytes, kernel, x, n);
  } else {
    launch_kernel(context, rows, kRowThreads, 0, replace_long_rows<false, V, T>, x, n);
  }
}

void cross_entropy_in_place(KernelContext& context, View logits, View targets, View losses,
                            const Rule& rule, int64_t first) {
  const int64_t rows = logits.shape[0], n = logits.shape[1];
  if (rows == 0) return;
  const CardGuard guard(context.device.index);
  dispatch_device_floating(logits.dtype, "linear_cross_entropy", [&]<class T>(TypeTag<T>) {
    using A = compute_t<T>;
    const InPlace<T> x{logits.ptr<T>(),
                       targets.ptr<int64_t>(),
                       losses.ptr<A>(),
                       rule.ignore_index,
                       static_cast<A>(rule.smoothing),
                       first,
                       index_flag(context.device.index)};
    if (n <= kLongestHeld) return over_rows<T>(context, x, rows, n, {logits.data});
    with_vector_width<16 / sizeof(T)>(
        rows_take_vectors<T>(n, {logits.data}),
        [&]<int V>(std::integral_constant<int, V>) { launch_long<V>(context, x, rows, n); });
  });
}

struct Product {
  __device__ auto operator()(auto x, auto factor) const { return x * factor; }
};

void scale_gradient(KernelContext& context, View x, View factor, View y) {
  dispatch_any_floating(y.dtype, "linear_cross_entropy", [&]<class Y>(TypeTag<Y>) {
    using Wide = compute_t<device_t<Y>>;
    if (x.dtype == y.dtype) return compute<Y, Y, Wide>(context, Product(), y, x, factor);
    compute<Y, Wide, Wide>(context, Product(), y, x, factor);
  });
}

}  // namespace

void register_cross_entropy() {
  kernels::cross_entropy_forward.set(DeviceType::cuda, cross_entropy_forward);
  kernels::cross_entropy_backward.set(DeviceType::cuda, cross_entropy_backward);
}

void register_cross_entropy_in_place() {
  kernels::cross_entropy_in_place.set(DeviceType::cuda, cross_entropy_in_place);
}

void register_scale_gradient() { kernels::scale_gradient.set(DeviceType::cuda, scale_gradient); }

}  // namespace sash::cuda
