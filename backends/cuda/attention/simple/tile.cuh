#pragma once

#include <cuda_pipeline_primitives.h>

#include <type_traits>

#include "../../elementwise/strided.cuh"
#include "../common/rows.cuh"

/// The arithmetic of the attention kernels for float32 and float64: products of tiles.
///
/// A block of 128 threads takes tiles of kRows x kColumns scores, with the same rows in each step.
/// Its threads form a grid of kDown x kAcross: thread (ty, tx) has rows ty, ty + kDown, ... and
/// columns tx, tx + kAcross, ... of the scores, and the same rows of the output. A row belongs to
/// part of one warp: its maxima and sums need shuffles, and its weights go through shared memory,
/// without a barrier of the block.
///
/// Tiles in shared memory are [row][feature], with 16 bytes of padding a row, so that 16-byte reads
/// of 8 neighbouring rows have no bank conflicts; rows and features past the end are 0. Such a read
/// takes half the time if lanes 2 n and 2 n + 1, or n and n ^ 2, read the same address. So the
/// lowest bit of the lane is the lowest bit of ty, and the next bits of the lane are tx.
namespace sash::cuda::attn {

inline constexpr int kBlock = 128;

/// Starts a copy to shared memory, or clears it without reading `from`.
template <int bytes>
__device__ void copy_async(void* to, const void* from, bool copy) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int count = copy ? bytes : 0;
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(address), "l"(from), "r"(count)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(address), "l"(from), "n"(bytes), "r"(count)
                 : "memory");
  }
}

/// Tiles of rows_ x columns_ scores; heads of up to `width_` features.
template <class T, int width_, int rows_, int columns_>
struct Tile {
  using Element = T;
  static constexpr int kWidth = width_, kRows = rows_, kColumns = columns_;
  static constexpr int kAcross = kRows >= 64 || kColumns == 8 ? 8 : 16, kDown = kBlock / kAcross;
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kStride = kWidth + kVector;
  /// The size of a tile of the rows' features, and of the columns' features, in elements.
  static constexpr int kSize = kRows * kStride, kStepSize = kColumns * kStride;
  /// The row stride and the size of a tile of scores or weights, in elements.
  static constexpr int kSquareStride = kColumns + 2 * kVector;
  static constexpr int kSquareSize = kRows * kSquareStride;
  /// How many rows and columns of a tile of scores a thread has, and how many features of a row.
  static constexpr int kMyRows = kRows / kDown, kMyColumns = kColumns / kAcross;
  static_assert(kRows % kDown == 0 && kColumns % kAcross == 0);
  static constexpr int kMyFeatures = kWidth / kAcross;
  /// Features come in runs of kRun side by side.
  static constexpr int kRun = kMyFeatures < kVector ? kMyFeatures : kVector;

  using Scores = T[kMyRows][kMyColumns];
  using Sums = T[kMyRows][kMyFeatures];

  static __device__ int ty() {
    const int thread = static_cast<int>(threadIdx.x);
    return thread / (2 * kAcross) * 2 + thread % 2;
  }
  static __device__ int tx() { return static_cast<int>(threadIdx.x) / 2 % kAcross; }
  static __device__ int row(int i) { return ty() + kDown * i; }
  static __device__ int column(int j) { return tx() + kAcross * j; }
  static __device__ int feature(int run) { return (run * kAcross + tx()) * kRun; }
  /// Bit row(i) or column(j) of a word.
  static __device__ bool row_bit(uint64_t word, int i) { return word >> ty() >> kDown * i & 1; }
  static __device__ bool column_bit(uint64_t word, int j) {
    return word >> tx() >> kAcross * j & 1;
  }

  /// Starts to read rows [first, min(first + kRows, end)) of `x` to `to`. The whole block calls
  /// this.
  static __device__ void read_rows(const Rows<T>& x, int first, int end, T* to) {
    read<kRows>(x, first, end, to);
  }
  /// The same for the columns of the scores: kColumns rows of `x`.
  static __device__ void read_columns(const Rows<T>& x, int first, int end, T* to) {
    read<kColumns>(x, first, end, to);
  }
  /// Waits for the reads of this block, except for the last `pending` tiles.
  template <int pending>
  static __device__ void wait() {
    __pipeline_wait_prior(pending);
    __syncthreads();
  }

  /// sum[i][j] += a[row i] . b[row j]; the rows of b are the columns of the scores.
  static __device__ void multiply_rows(const T* a, const T* b, Scores& sum) {
    a += ty() * kStride;
    b += tx() * kStride;
#pragma unroll 4
    for (int d = 0; d < kWidth; d += kVector) {
      Vector<T, kVector> x[kMyRows];
#pragma unroll
      for (int i = 0; i < kMyRows; ++i) x[i] = vector<kVector>(a + i * kDown * kStride + d);
#pragma unroll
      for (int j = 0; j < kMyColumns; ++j) {
        const auto y = vector<kVector>(b + j * kAcross * kStride + d);
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
#pragma unroll
          for (int i = 0; i < kMyRows; ++i) sum[i][j] += x[i].element[e] * y.element[e];
        }
      }
    }
  }

  /// sum[i] += sum over j of weights[row i][j] x[j] for this thread's features. Before the call,
  /// the threads of a row have written its weights.
  static __device__ void multiply(const T* weights, const T* x, Sums& sum) {
    weights += ty() * kSquareStride;
#pragma unroll 2
    for (int j = 0; j < kColumns; j += kVector) {
      Vector<T, kVector> w[kMyRows];
#pragma unroll
      for (int i = 0; i < kMyRows; ++i) {
        w[i] = vector<kVector>(weights + i * kDown * kSquareStride + j);
      }
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
#pragma unroll
        for (int run = 0; run < kMyFeatures / kRun; ++run) {
          const auto y = vector<kRun>(x + (j + e) * kStride + feature(run));
#pragma unroll
          for (int f = 0; f < kRun; ++f) {
#pragma unroll
            for (int i = 0; i < kMyRows; ++i) {
              sum[i][run * kRun + f] += w[i].element[e] * y.element[f];
            }
          }
        }
      }
    }
  }

  /// Calls f(i, j) for each score of this thread. Both numbers are known at compile time.
  template <class F>
  static __device__ void for_each(F f) {
#pragma unroll
    for (int i = 0; i < kMyRows; ++i) {
#pragma unroll
      for (int j = 0; j < kMyColumns; ++j) f(i, j);
    }
  }

  /// Stores a thread's part of a tile of weights to shared memory.
  static __device__ void put(const Scores& x, T* to) {
    for_each([&](int i, int j) { to[row(i) * kSquareStride + column(j)] = x[i][j]; });
  }

  /// Reduces x over all threads of a row by f.
  template <class F>
  static __device__ T reduce_row(T x, F f) {
#pragma unroll
    for (int step = kAcross; step > 1; step /= 2) x = f(x, __shfl_xor_sync(~0u, x, step));
    return x;
  }

  /// Writes rows [first, min(first + kRows, end)) of `y`: the sums times one factor for each row.
  static __device__ void write(const Sums& sum, const T (&factor)[kMyRows], const Rows<T>& y,
                               int first, int end) {
#pragma unroll
    for (int i = 0; i < kMyRows; ++i) {
      if (first + row(i) >= end) continue;
      T* to = y.data + (first + row(i)) * y.row;
#pragma unroll
      for (int run = 0; run < kMyFeatures / kRun; ++run) {
        Vector<T, kRun> result;
#pragma unroll
        for (int f = 0; f < kRun; ++f) result.element[f] = sum[i][run * kRun + f] * factor[i];
        const int left = y.width - feature(run);
        if (y.vectors) {
          if (left > 0) *reinterpret_cast<Vector<T, kRun>*>(to + feature(run)) = result;
          continue;
        }
#pragma unroll
        for (int f = 0; f < kRun; ++f) {
          if (f < left) to[feature(run) + f] = result.element[f];
        }
      }
    }
  }

  /// The same with one factor for all rows.
  static __device__ void write(const Sums& sum, T factor, const Rows<T>& y, int first, int end) {
    T factors[kMyRows];
#pragma unroll
    for (T& f : factors) f = factor;
    write(sum, factors, y, first, end);
  }

 private:
  template <int n>
  static __device__ Vector<T, n> vector(const T* x) {
    return *reinterpret_cast<const Vector<T, n>*>(x);
  }

  template <int rows>
  static __device__ void read(const Rows<T>& x, int first, int end, T* to) {
    if (x.vectors) {
      copy_rows<rows, kVector>(x, first, end, to);
    } else {
      copy_rows<rows, 1>(x, first, end, to);
    }
    __pipeline_commit();
  }

  template <int rows, int wide>
  static __device__ void copy_rows(const Rows<T>& x, int first, int end, T* to) {
    // The block copies `down` rows at a time; a thread always has the same columns.
    constexpr int across = kWidth / wide < kBlock ? kWidth / wide : kBlock;
    constexpr int down = kBlock / across;
    static_assert(rows % down == 0);
    const int top = static_cast<int>(threadIdx.x) / across;
    for (int d = static_cast<int>(threadIdx.x) % across * wide; d < kWidth; d += across * wide) {
      const int inside = d < x.width ? end - first : 0;
      const T* from = x.data + (first + top) * x.row + d;
#pragma unroll 8
      for (int i = top; i < rows; i += down) {
        copy_async<wide* static_cast<int>(sizeof(T))>(to + i * kStride + d, from, i < inside);
        from += down * x.row;
      }
    }
  }
};

}  // namespace sash::cuda::attn
