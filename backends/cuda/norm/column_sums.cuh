#pragma once

#include "../runtime/dependent_launch.cuh"
#include "rows.cuh"

/// Sums of the columns of matrices, in two launches: a block sums a chunk of rows, then
/// `add_chunks` adds the chunks in order. The chunks depend on the shape only.
namespace sash::cuda {

/// The addresses of up to three rows of n sums. Null for sums that are not needed.
template <class T>
struct ColumnSums {
  T* of[3] = {};
};

inline constexpr int kAddingWarps = 16, kAddedColumns = 8;  // kAddedColumns float32 are 32 bytes

/// y.of[k][n] = the sums of partial [chunks, outputs, n] over the chunks, for k = blockIdx.y. A
/// block has kAddedColumns columns. Its threads take the chunks in turn.
template <class A, class T>
__global__ void __launch_bounds__(kAddingWarps* kWarp)
    add_chunks(const A* partial, int64_t chunks, int64_t outputs, int64_t n, ColumnSums<T> y) {
  constexpr int rows = kAddingWarps * kWarp / kAddedColumns;
  __shared__ A parts[kAddingWarps][kAddedColumns];
  wait_for_previous_kernel();
  T* const out = y.of[blockIdx.y];
  if (!out) return;
  const int column = static_cast<int>(threadIdx.x) % kAddedColumns;
  const int64_t at = int64_t{blockIdx.x} * kAddedColumns + column;
  A total = 0;
  if (at < n) {
#pragma unroll 16
    for (int64_t c = threadIdx.x / kAddedColumns; c < chunks; c += rows) {
      total += partial[(c * outputs + blockIdx.y) * n + at];
    }
  }
#pragma unroll
  for (int step = kAddedColumns; step < kWarp; step *= 2) total += shuffle_xor(total, step);
  if (threadIdx.x % kWarp < kAddedColumns) parts[threadIdx.x / kWarp][column] = total;
  __syncthreads();
  if (threadIdx.x >= kAddedColumns || at >= n) return;
  total = parts[0][column];
  for (int w = 1; w < kAddingWarps; ++w) total += parts[w][column];
  out[at] = static_cast<T>(total);
}

template <class A, class T>
void launch_add_chunks(const KernelContext& context, const A* partial, int64_t chunks, int outputs,
                       int64_t n, const ColumnSums<T>& y) {
  const LaunchGrid grid(ceil_div(n, kAddedColumns), int64_t{outputs});
  launch_dependent(context, {.grid = grid, .threads = kAddingWarps * kWarp}, add_chunks<A, T>,
                   partial, chunks, outputs, n, y);
}

/// How many blocks per multiprocessor leave enough registers for two rows that are read ahead.
template <class A>
inline constexpr int kSumBlocks = sizeof(A) > 4 ? 2 : 3;

/// A block takes kWarp V columns of one chunk of rows. Its warps take the rows in turn. It writes
/// the chunk's sums to partial [chunks, F::kOutputs, n].
template <int V, class F>
__global__ void __launch_bounds__(kThreads, kSumBlocks<typename F::A>)
    sum_chunks_of_rows(const F f, typename F::A* partial, int64_t rows, int64_t n, int64_t chunk) {
  using A = typename F::A;
  constexpr int kOutputs = F::kOutputs, kSums = kOutputs * V;
  __shared__ A sums[kWarps][kSums][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t first = int64_t{blockIdx.x} * kWarp * V, at = first + lane * V;
  const int64_t begin = blockIdx.y * chunk, end = min(rows, begin + chunk);
  A sum[kSums] = {};
  // `count` rows are read before the first is used.
  const auto take = [&]<int count>(std::integral_constant<int, count>, int64_t row) {
    decltype(f.template load<V>(0, 0)) loaded[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      loaded[i] = f.template load<V>((row + i * kWarps) * n + at, row + i * kWarps);
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const auto x = f.template use<V>(loaded[i], (row + i * kWarps) * n + at);
#pragma unroll
      for (int k = 0; k < kSums; ++k) sum[k] += static_cast<A>(x.element[k]);
    }
  };
  if (at < n) {
    constexpr int kAhead = F::kAhead;
    int64_t row = begin + warp;
    for (; row + (kAhead - 1) * kWarps < end; row += kAhead * kWarps) {
      take(std::integral_constant<int, kAhead>(), row);
    }
    for (; row < end; row += kWarps) take(std::integral_constant<int, 1>(), row);
  }
#pragma unroll
  for (int k = 0; k < kSums; ++k) sums[warp][k][lane] = sum[k];
  __syncthreads();
  for (int s = static_cast<int>(threadIdx.x); s < kWarp * kSums; s += kThreads) {
    const int output = s / (kWarp * V), column = s % (kWarp * V);
    A total = 0;
    for (int w = 0; w < kWarps; ++w) total += sums[w][output * V + column % V][column / V];
    if (first + column < n) partial[(blockIdx.y * kOutputs + output) * n + first + column] = total;
  }
}

/// y [n] = the sums of a few rows. A thread adds up V columns.
template <int V, class F, class T>
__global__ void __launch_bounds__(kThreads) sum_few_rows(const F f, int64_t rows, int64_t n, T* y) {
  using A = typename F::A;
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (at >= n) return;
  A sum[V] = {};
#pragma unroll 8
  for (int64_t row = 0; row < rows; ++row) {
    const auto x = f.template use<V>(f.template load<V>(row * n + at, row), row * n + at);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] += static_cast<A>(x.element[k]);
  }
  Vector<T, V> out;
#pragma unroll
  for (int k = 0; k < V; ++k) out.element[k] = static_cast<T>(sum[k]);
  store_whole(y + at, out);
}

/// y [n] = the sums over the rows of a matrix [rows, n] of the device type `T`: of
/// `f.use<V>(f.load<V>(i, row), i)`, V elements from the i-th on. Sums are of type `F::A`. A warp
/// reads `F::kAhead` rows ahead. `F::kOutputs` is 1. `data` are the addresses that f reads or
/// writes.
template <class T, class F>
void sum_columns(const KernelContext& context, const F& f, int64_t rows, int64_t n, T* y,
                 std::initializer_list<const void*> data) {
  using A = typename F::A;
  constexpr int64_t kShortest = 32, kLongest = 128, kWanted = 512, kMostChunks = 65535;
  constexpr int64_t kFew = 64, kManyColumns = 4096;
  if (n == 0) return;
  const bool vectors = rows_take_vectors<T>(n, data) && rows_take_vectors<T>(n, {y});
  with_vector_width<16 / sizeof(T)>(vectors, [&]<int V>(std::integral_constant<int, V>) {
    if (rows <= kFew && n >= kManyColumns) {
      return launch_kernel(context, blocks_for(n / V), kThreads, 0, sum_few_rows<V, F, T>, f, rows,
                           n, y);
    }
    const int64_t groups = ceil_div(n, kWarp * V);
    const int64_t chunk = std::max(std::clamp(rows * groups / kWanted, kShortest, kLongest),
                                   ceil_div(rows, kMostChunks));
    const int64_t chunks = ceil_div(rows, chunk);
    const Workspace partial(context, chunks * n * int64_t{sizeof(A)});
    if (chunks > 0) {
      launch_kernel(context, {groups, chunks}, kThreads, 0, sum_chunks_of_rows<V, F>, f,
                    partial.ptr<A>(), rows, n, chunk);
    }
    launch_add_chunks(context, partial.ptr<A>(), chunks, 1, n, ColumnSums<T>{{y}});
  });
}

}  // namespace sash::cuda
