#include <cmath>

#include "../../../ops/kernels/loss.h"
#include "../elementwise/flat.cuh"
#include "../norm/rows.cuh"
#include "../runtime/index_flag.h"

/// Losses and gradients in one pass: a block has a row, which it keeps in shared memory if that is
/// large enough, and else reads three times.
namespace sash::cuda {
namespace {

using Rule = kernels::CrossEntropyRule;

constexpr int kRowThreads = 512, kRowWarps = kRowThreads / kWarp;

/// Over the block, in a fixed order; all threads get it.
template <class A, class F>
__device__ A reduce_block(A x, F f) {
  __shared__ A part[kRowWarps];
  x = reduce_warp(x, f);
  __syncthreads();  // all threads have read the parts of the previous call
  if (threadIdx.x % kWarp == 0) part[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = part[0];
#pragma unroll
  for (int w = 1; w < kRowWarps; ++w) x = f(x, part[w]);
  return x;
}

template <class T>
struct InPlace {
  using A = compute_t<T>;
  T* logits;
  const int64_t* targets;
  A* losses;
  int64_t n;
  int64_t ignore_index;
  A smoothing;
  int64_t first;
  IndexFlag* flag;
};

/// Calls f(i, V elements from column i on) for this thread's parts of the row.
template <int V, class T, class F>
__device__ void over_vectors(const T* row, int64_t n, F&& f) {
#pragma unroll 4
  for (int64_t i = int64_t{threadIdx.x} * V; i < n; i += kRowThreads * V) f(i, read<V>(row + i));
}

/// Of halves, by the fast instruction: its error is far below their rounding.
template <class T>
__device__ compute_t<T> exp_of(compute_t<T> x) {
  if constexpr (kIsHalf<T>) {
    return __expf(x);
  } else {
    return std::exp(x);
  }
}

template <bool kept, int V, class T>
__global__ void __launch_bounds__(kRowThreads) replace_rows(const InPlace<T> x) {
  using A = compute_t<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const row = x.logits + blockIdx.x * x.n;
  T* const held = kept ? reinterpret_cast<T*>(memory) : row;
  const int64_t target = x.targets[blockIdx.x];
  A& loss = x.losses[blockIdx.x];
  const bool ignored = target == x.ignore_index;
  const bool valid = static_cast<uint64_t>(target) < static_cast<uint64_t>(x.n);
  if (ignored || !valid) {
    Vector<A, V> all;
#pragma unroll
    for (auto& e : all.element) e = ignored ? A(0) : kNaN<A>;
    for (int64_t i = int64_t{threadIdx.x} * V; i < x.n; i += kRowThreads * V)
      write<V>(row + i, all);
    if (threadIdx.x != 0) return;
    loss = all.element[0];
    if (!ignored) report(x.flag, IndexOp::cross_entropy, target, x.n, x.first + blockIdx.x);
    return;
  }
  const A chosen = widen(row[target]);  // read before anything is written
  A max = -kInfinity<A>, total = 0, sum = 0;
  over_vectors<V>(row, x.n, [&](int64_t i, const auto& v) {
#pragma unroll
    for (int k = 0; k < V; ++k) {
      max = Larger{}(max, v.element[k]);
      total += v.element[k];
    }
    if constexpr (kept) write<V>(held + i, v);
  });
  max = finite_max(reduce_block(max, Larger{}));
  over_vectors<V>(held, x.n, [&](int64_t, const auto& v) {
#pragma unroll
    for (int k = 0; k < V; ++k) sum += exp_of<T>(v.element[k] - max);
  });
  sum = reduce_block(sum, Plus{});
  if (x.smoothing != 0) total = reduce_block(total, Plus{});
  const A log_sum = std::log(sum), scale = 1 / sum, n = static_cast<A>(x.n);
  const A everywhere = x.smoothing / n;
  if (threadIdx.x == 0) {
    const A nll = log_sum - (chosen - max);
    loss = x.smoothing == 0 ? nll
                            : (1 - x.smoothing) * nll + x.smoothing * (log_sum + max - total / n);
  }
  over_vectors<V>(held, x.n, [&](int64_t i, auto v) {
#pragma unroll
    for (int k = 0; k < V; ++k) {
      v.element[k] = exp_of<T>(v.element[k] - max) * scale - everywhere;
      if (i + k == target) v.element[k] -= 1 - x.smoothing;
    }
    write<V>(row + i, v);
  });
}

template <int V, class T>
void launch(const KernelContext& context, const InPlace<T>& x, int64_t rows) {
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const auto blocks = static_cast<unsigned>(rows);
  const int64_t bytes = x.n * static_cast<int64_t>(sizeof(T));
  constexpr int64_t kStatic = 1024;  // for reductions
  int most = 0;
  SASH_CUDA_CHECK(
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, context.device.index));
  if (bytes + kStatic <= most) {
    const auto kernel = replace_rows<true, V, T>;
    SASH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(most - kStatic)));
    kernel<<<blocks, kRowThreads, static_cast<size_t>(bytes), stream>>>(x);
  } else {
    replace_rows<false, V><<<blocks, kRowThreads, 0, stream>>>(x);
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
                       n,
                       rule.ignore_index,
                       static_cast<A>(rule.smoothing),
                       first,
                       index_flag(context.device.index)};
    if (rows_take_vectors<T>(n, {logits.data})) {
      launch<16 / sizeof(T)>(context, x, rows);
    } else {
      launch<1>(context, x, rows);
    }
  });
}

}  // namespace

void register_cross_entropy_in_place() {
  kernels::cross_entropy_in_place.set(DeviceType::cuda, cross_entropy_in_place);
}

}  // namespace sash::cuda
