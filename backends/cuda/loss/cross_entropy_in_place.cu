#include <cuda_pipeline_primitives.h>

#include "../../../ops/kernels/loss.h"
#include "../norm/rows.cuh"
#include "../runtime/index_flag.h"

/// Losses and gradients in one pass. A few lanes, or a warp, hold a short row in registers. A block
/// holds a long one in shared memory if that is large enough, and else reads it twice.
namespace sash::cuda {
namespace {

using Rule = kernels::CrossEntropyRule;

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
      A total = 0;
      over_row<Team, V>(n, [&](int k, int64_t at) {
        const auto v = values(k, at);
#pragma unroll
        for (int i = 0; i < V; ++i) total += v.element[i];
      });
      total = Team::reduce(total, Plus{});
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
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const auto blocks = static_cast<unsigned>(rows);
  const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
  constexpr int64_t kStatic = 1024;  // for reductions
  int most = 0;
  SASH_CUDA_CHECK(
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, context.device.index));
  if (bytes + kStatic <= most) {
    const auto kernel = replace_long_rows<true, V, T>;
    SASH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(most - kStatic)));
    kernel<<<blocks, kRowThreads, static_cast<size_t>(bytes), stream>>>(x, n);
  } else {
    replace_long_rows<false, V><<<blocks, kRowThreads, 0, stream>>>(x, n);
  }
  SASH_CUDA_CHECK(cudaGetLastError());
}

void cross_entropy_in_place(KernelContext& context, const TensorView& logits,
                            const TensorView& targets, const TensorView& losses, const Rule& rule,
                            int64_t first) {
  const int64_t rows = logits.shape[0], n = logits.shape[1];
  if (rows == 0) return;
  const CardGuard guard(context.device.index);
  dispatch_any_floating(logits.dtype, "linear_cross_entropy", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    using A = compute_t<T>;
    const InPlace<T> x{logits.ptr<T>(),
                       targets.ptr<int64_t>(),
                       losses.ptr<A>(),
                       rule.ignore_index,
                       static_cast<A>(rule.smoothing),
                       first,
                       index_flag(context.device.index)};
    if (n <= kLongestHeld) return over_rows<T>(context, x, rows, n, {logits.data});
    if (rows_take_vectors<T>(n, {logits.data})) {
      launch_long<16 / sizeof(T)>(context, x, rows, n);
    } else {
      launch_long<1>(context, x, rows, n);
    }
  });
}

}  // namespace

void register_cross_entropy_in_place() {
  kernels::cross_entropy_in_place.set(DeviceType::cuda, cross_entropy_in_place);
}

}  // namespace sash::cuda
