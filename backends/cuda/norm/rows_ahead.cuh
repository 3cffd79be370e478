#pragma once

#include <algorithm>

#include <cuda_pipeline_primitives.h>

#include "rows.cuh"

/// Kernels over many rows that are read once. A block has a chunk of rows, and a thread one vector
/// of each row. While a block processes a row, it copies the next rows to shared memory.
namespace sash::cuda {

inline constexpr int kMostWarps = 8;  ///< warps of a block
inline constexpr int kRowsAhead = 3;  ///< with the row that is processed

/// How rows of n elements in vectors of V are divided. Depends on the shape only.
struct RowChunks {
  int threads;
  int64_t rows;  ///< rows of a chunk
  int64_t count;
  int64_t shared;  ///< bytes of shared memory of a block

  /// For the rows of `inputs` matrices. There are as many blocks as keep the memory of 132
  /// multiprocessors busy, and all of them run at once.
  RowChunks(int64_t all_rows, int64_t n, int V, int inputs) {
    constexpr int64_t kMultiprocessors = 132, kReading = 1920, kMostThreads = 1024, kFewest = 2;
    constexpr int64_t kShortest = 8;
    const int64_t warps = std::max<int64_t>(1, ceil_div(n / V, kWarp));
    threads = static_cast<int>(warps * kWarp);
    const int64_t blocks = std::max(kFewest, std::min(kReading / inputs, kMostThreads) / threads);
    const int64_t wanted = kMultiprocessors * blocks;
    rows = std::max(kShortest, ceil_div(all_rows, wanted));
    count = ceil_div(all_rows, rows);
    shared = int64_t{threads} * kRowsAhead * inputs * 16;
  }

  /// Whether the threads of a block suffice for a row of n elements.
  static bool take(int64_t n, int V) { return n <= int64_t{kMostWarps} * kWarp * V; }
};

/// The vectors of a thread in the rows of its block's chunk, for `inputs` matrices [rows, n]. A
/// null matrix is not read.
template <int V, class T, int inputs>
class RowsAhead {
  using Stored = Vector<T, V>;

 public:
  __device__ RowsAhead(const T* const (&from)[inputs], int64_t rows, int64_t n, int64_t chunk)
      : column_(static_cast<int>(threadIdx.x) * V),
        inside_(column_ < n),
        n_(n),
        begin_(blockIdx.x * chunk),
        end_(min(rows, begin_ + chunk)),
        to_read_(begin_) {
    extern __shared__ __align__(16) unsigned char memory[];
    slots_ = reinterpret_cast<Stored*>(memory) + threadIdx.x;
    for (int i = 0; i < inputs; ++i) from_[i] = from[i];
    for (int i = 0; i < kRowsAhead - 1; ++i) read();
  }

  __device__ int64_t begin() const { return begin_; }
  __device__ int64_t end() const { return end_; }
  __device__ int column() const { return column_; }
  /// Whether the thread has elements.
  __device__ bool inside() const { return inside_; }

  /// Waits for the next row. The first call waits for the first row.
  __device__ void advance() {
    read();
    __pipeline_wait_prior(kRowsAhead - 1);
    taken_ = written_ == kRowsAhead - 1 ? 0 : written_ + 1;
  }
  /// This thread's vector of the row in matrix `input`.
  __device__ Vector<compute_t<T>, V> operator[](int input) const {
    return widened(slots_[(taken_ * inputs + input) * static_cast<int>(blockDim.x)]);
  }

 private:
  __device__ void read() {
    written_ = written_ == kRowsAhead - 1 ? 0 : written_ + 1;
    if (inside_ && to_read_ < end_) {
      const int64_t first = to_read_ * n_ + column_;
#pragma unroll
      for (int i = 0; i < inputs; ++i) {
        Stored* const slot = slots_ + (written_ * inputs + i) * static_cast<int>(blockDim.x);
        if (from_[i]) __pipeline_memcpy_async(slot, from_[i] + first, sizeof(Stored));
      }
    }
    __pipeline_commit();
    ++to_read_;
  }

  Stored* slots_;  // [kRowsAhead, inputs, threads]
  const T* from_[inputs];
  int column_;
  bool inside_;
  int64_t n_, begin_, end_, to_read_;
  int written_ = kRowsAhead - 1, taken_ = 0;
};

/// Computes `count` sums over the threads of a block. All threads call this with the same variable
/// `turn`, which starts at 0.
template <class A, int count>
__device__ void sum_over_block(A (&sums)[count], int& turn) {
  __shared__ A parts[2][kMostWarps][count];
  const int warps = static_cast<int>(blockDim.x) / kWarp;
#pragma unroll
  for (A& sum : sums) sum = reduce_warp(sum, Plus{});
  if (warps == 1) return;
  auto& part = parts[turn];
  turn ^= 1;  // a warp may write the parts of the next call while others read these
  if (threadIdx.x % kWarp == 0) {
#pragma unroll
    for (int i = 0; i < count; ++i) part[threadIdx.x / kWarp][i] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < count; ++i) {
    sums[i] = part[0][i];
    for (int warp = 1; warp < warps; ++warp) sums[i] += part[warp][i];
  }
}

/// How many blocks of kMostWarps warps per multiprocessor leave enough registers for a row.
template <class T>
inline constexpr int kRowBlocks = sizeof(T) > 4 ? 2 : 3;

/// The forward pass of a norm f. Runs `kernel`, which reads two matrices ahead, if there are enough
/// rows to keep its blocks busy, else `over_rows`. `data` must have every address that `f` reads or
/// writes in vectors.
template <class T, class F>
void over_rows_ahead(const KernelContext& context, const F& f,
                     void (*kernel)(F, int64_t, int64_t, int64_t), int64_t rows, int64_t n,
                     std::initializer_list<const void*> data) {
  constexpr int64_t kMany = 4096;
  constexpr int V = 16 / sizeof(T);
  const bool many = rows >= kMany && n >= kWarp * V && RowChunks::take(n, V);
  if (!many || !rows_take_vectors<T>(n, data)) return over_rows<T>(context, f, rows, n, data);
  const RowChunks chunks(rows, n, V, 2);
  launch_kernel(context, chunks.count, chunks.threads, chunks.shared, kernel, f, rows, n,
                chunks.rows);
}

}  // namespace sash::cuda
