#pragma once

#include "../common/fragments.cuh"
#include "../common/rows.cuh"
#include "instructions.cuh"

/// Tiles in shared memory, and products of tiles with sums in registers.
///
/// A warp has 16 kTiles whole rows of every product. So it scales accumulators by row, and uses
/// them as the left operand of the next product, without communication with other warps.
namespace sash::cuda::mma {

using namespace fragments;

/// The accumulators of a warp: tile i, columns [8 j, 8 j + 8).
template <int kTiles, int kColumns>
struct Sums {
  float of[kTiles][kColumns / 8][4];

  __device__ auto& operator[](int tile) { return of[tile]; }
  __device__ const auto& operator[](int tile) const { return of[tile]; }

  /// Calls f(sum, tile, j, e) for each accumulator. The numbers are known at compile time.
  template <class F>
  __device__ void for_each(F f) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) f(of[tile][j][e], tile, j, e);
      }
    }
  }
};

/// The row of one lane within the tiles of its block of threads: half 0 is row g of the tile, half
/// 1 is row g + 8.
template <int kTiles>
__device__ int row_of(int tile, int half) {
  return (warp() * kTiles + tile) * 16 + lane() / 4 + 8 * half;
}

/// [rows][kWidth] in shared memory, 128-byte aligned, swizzled: within kSpan 16-byte chunks of a
/// row, a chunk's number is xored with the row's, so that 8 neighbouring rows of a column of chunks
/// lie in different banks. Right operands in float32 are rounded to TF32 when a warp loads them, or
/// once for all warps by `round`. After `round`, products take the argument `rounded`.
template <class T, int kWidth>
struct Tile {
  static constexpr int kRowBytes = kWidth * static_cast<int>(sizeof(T));
  static constexpr int kPerChunk = 16 / static_cast<int>(sizeof(T));
  static constexpr int kChunks = kWidth / kPerChunk;
  static constexpr int kSpan = kRowBytes % 128 == 0 ? 8 : 4;
  static_assert(kRowBytes % 64 == 0);

  static __device__ uint32_t offset(int row, int chunk) {
    const int swap = kSpan == 8 ? row % 8 : row / 2 % 4;
    return static_cast<uint32_t>(row * kRowBytes + (chunk ^ swap) * 16);
  }

  /// The address at which a lane reads a left operand (`left`), a right operand whose columns are
  /// rows of the tile (`right`), or a right operand whose rows are rows of the tile (`right_rows`).
  /// `moved` returns the address of an operand that lies further down and across.
  static __device__ uint32_t left(uint32_t tile) { return tile + offset(lane() % 16, lane() / 16); }
  static __device__ uint32_t right(uint32_t tile) {
    return tile + offset(lane() % 8 + lane() / 16 * 8, lane() / 8 % 2);
  }
  static __device__ uint32_t right_rows(uint32_t tile) {
    if constexpr (sizeof(T) == 2) return left(tile);
    const int g = lane() / 4, t = lane() % 4;
    return tile + offset(2 * t, g / 4) + static_cast<uint32_t>(g % 4 * 4);
  }
  /// `down` is a multiple of 8, `chunks` is even.
  static __device__ uint32_t moved(uint32_t place, int down, int chunks) {
    return (place ^ static_cast<uint32_t>(chunks % kSpan * 16)) +
           static_cast<uint32_t>(chunks / kSpan * kSpan * 16 + down * kRowBytes);
  }

  /// Right operands for 16 columns from the kDepth rows at `place`.
  template <bool rounded = false>
  static __device__ void load_right_rows(uint32_t (&b)[4], uint32_t place) {
    if constexpr (sizeof(T) == 2) {
      load_transposed(b, place);
    } else {
      // The order of the rows is that of Operand<float>::from_sums.
      b[0] = load_word(place);
      b[1] = load_word((place ^ 16u) + kRowBytes);
      b[2] = load_word(place ^ 32u);
      b[3] = load_word((place ^ 48u) + kRowBytes);
      if constexpr (!rounded) Operand<T>::round(b);
    }
  }

  /// Starts to read rows [first, first + kRows) of `x` to `tile`. All kThreads threads of the block
  /// call this. Rows from `end` on, and features past the last, become 0.
  template <int kRows, int kThreads>
  static __device__ void read(uint32_t tile, const Rows<const T>& x, int first, int end) {
    if (!x.vectors) {
      const int rows = max(0, min(kRows, end - first));
      return read_elements<kRows, kThreads>(tile, x.data + first * x.row, x.row, rows, x.width);
    }
    constexpr int down = kThreads / kSpan;
    static_assert(down % 8 == 0 && kRows % down == 0);
    const int column = static_cast<int>(threadIdx.x) % kSpan;
    const int top = static_cast<int>(threadIdx.x) / kSpan;
    const T* from = x.data + (first + top) * x.row + column * kPerChunk;
    const uint32_t to = tile + offset(top, column);
#pragma unroll
    for (int i = 0; i < kRows; i += down) {
      const bool inside = first + top + i < end;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; chunk += kSpan) {
        copy_async(to + static_cast<uint32_t>(i * kRowBytes + chunk * 16), from + chunk * kPerChunk,
                   inside && (chunk + column) * kPerChunk < x.width);
      }
      from += down * x.row;
    }
  }

  /// Rounds the vectors that this thread has read by `read`, after they have arrived. All threads
  /// call this.
  template <int kRows, int kThreads>
  static __device__ void round(uint32_t tile, const Rows<const T>& x) {
    if constexpr (sizeof(T) == 4) {
      if (!x.vectors) __syncthreads();  // other threads have read elements that this thread rounds
      constexpr int down = kThreads / kSpan;
      const int column = static_cast<int>(threadIdx.x) % kSpan;
      const uint32_t mine = tile + offset(static_cast<int>(threadIdx.x) / kSpan, column);
#pragma unroll
      for (int i = 0; i < kRows; i += down) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; chunk += kSpan) {
          const uint32_t at = mine + static_cast<uint32_t>(i * kRowBytes + chunk * 16);
          uint32_t words[4];
          load_words(words, at);
          Operand<T>::round(words);
          store_words(at, words);
        }
      }
    }
  }

 private:
  /// Reads the first `rows` rows from `from` on. Not inlined, because it need not be fast.
  template <int kRows, int kThreads>
  static __device__ __noinline__ void read_elements(uint32_t tile, const T* from, int64_t step,
                                                    int rows, int width) {
    auto* to = static_cast<unsigned char*>(__cvta_shared_to_generic(tile));
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kWidth; i += kThreads) {
      const int row = i / kWidth, d = i % kWidth;
      const T element = row < rows && d < width ? from[row * step + d] : T(0.f);
      *reinterpret_cast<T*>(to + offset(row, d / kPerChunk) + d % kPerChunk * sizeof(T)) = element;
    }
  }
};

/// The rows of a tile that are the left operand of a warp. If kInRegisters, they are in registers.
template <class T, int kWidth, int kTiles, bool kInRegisters>
class Left {
 public:
  using Fragment = uint32_t[kTiles][4];
  static constexpr int kDepth = Operand<T>::kDepth;

  __device__ explicit Left(uint32_t tile)
      : place_(Tile<T, kWidth>::left(tile) +
               static_cast<uint32_t>(warp() * kTiles * 16 * Tile<T, kWidth>::kRowBytes)) {}

  /// Loads the operand to registers if kInRegisters. Called when the tile has arrived.
  __device__ void hold() {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int k = 0; k < kWidth / kDepth; ++k) load(loaded_[k], k);
    }
  }

  /// Columns [kDepth k, kDepth (k + 1)).
  __device__ void fragment(Fragment& a, int k) const {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[tile][i] = loaded_[k][tile][i];
      }
    } else {
      load(a, k);
    }
  }

 private:
  __device__ void load(Fragment& a, int k) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      load_matrices(a[tile], Tile<T, kWidth>::moved(place_, 16 * tile, 2 * k));
      Operand<T>::round(a[tile]);
    }
  }

  uint32_t place_;
  uint32_t loaded_[kInRegisters ? kWidth / kDepth : 1][kTiles][4];
};

/// sum[i, j] = left[i] . x[j] for the kColumns rows of the tile `x`.
template <int kColumns, bool rounded = false, class T, int kWidth, int kTiles, bool kInRegisters>
__device__ void multiply_rows(Sums<kTiles, kColumns>& sum,
                              const Left<T, kWidth, kTiles, kInRegisters>& left, uint32_t x) {
  using X = Tile<T, kWidth>;
  sum = {};
  const uint32_t place = X::right(x);
#pragma unroll
  for (int k = 0; k < kWidth / Operand<T>::kDepth; ++k) {
    uint32_t a[kTiles][4];
    left.fragment(a, k);
#pragma unroll
    for (int j = 0; j < kColumns; j += 16) {
      uint32_t b[4];
      load_matrices(b, X::moved(place, j, 2 * k));
      if constexpr (!rounded) Operand<T>::round(b);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        Operand<T>::multiply(sum[tile][j / 8], a[tile], b[0], b[1]);
        Operand<T>::multiply(sum[tile][j / 8 + 1], a[tile], b[2], b[3]);
      }
    }
  }
}

/// sum[i] += sum over j of weights[i, j] x[j], in features [first, first + kFeatures) of the tile
/// `x`; `first` is a multiple of 64.
template <class T, int kWidth, bool rounded = false, int kTiles, int kColumns, int kFeatures>
__device__ void multiply_add(Sums<kTiles, kFeatures>& sum, const Sums<kTiles, kColumns>& weights,
                             uint32_t x, int first = 0) {
  using X = Tile<T, kWidth>;
  constexpr int depth = Operand<T>::kDepth;
  const uint32_t place = X::right_rows(x) + static_cast<uint32_t>(first * sizeof(T));
#pragma unroll
  for (int k = 0; k < kColumns / depth; ++k) {
    uint32_t a[kTiles][4];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) Operand<T>::from_sums(a[tile], weights[tile], k);
#pragma unroll
    for (int f = 0; f < kFeatures; f += 16) {
      uint32_t b[4];
      X::template load_right_rows<rounded>(b, X::moved(place, k * depth, f / X::kPerChunk));
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        Operand<T>::multiply(sum[tile][f / 8], a[tile], b[0], b[1]);
        Operand<T>::multiply(sum[tile][f / 8 + 1], a[tile], b[2], b[3]);
      }
    }
  }
}

/// The epilogue: writes rows [first, end) of `y`, features [first_feature, first_feature +
/// kFeatures). The values are the accumulators times a factor for each row. They pass through this
/// warp's rows of `tile`, which nothing else may use.
template <class T, int kWidth, int kTiles, int kFeatures>
__device__ void write(const Sums<kTiles, kFeatures>& sum, const float (&factor)[kTiles][2],
                      unsigned char* tile, const Rows<T>& y, int first, int end,
                      int first_feature = 0) {
  using X = Tile<T, kWidth>;
  constexpr int chunks = kFeatures / X::kPerChunk;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kFeatures / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int d = 8 * j + lane() % 4 * 2;
        Vector<T, 2> pair;
        pair.element[0] = narrow<T>(sum[i][j][2 * half] * factor[i][half]);
        pair.element[1] = narrow<T>(sum[i][j][2 * half + 1] * factor[i][half]);
        *reinterpret_cast<Vector<T, 2>*>(tile +
                                         X::offset(row_of<kTiles>(i, half), d / X::kPerChunk) +
                                         d % X::kPerChunk * sizeof(T)) = pair;
      }
    }
  }
  __syncwarp();
#pragma unroll 4
  for (int i = lane(); i < 16 * kTiles * chunks; i += kWarp) {
    const int row = warp() * kTiles * 16 + i / chunks,
              d = first_feature + i % chunks * X::kPerChunk;
    if (first + row >= end || d >= y.width) continue;
    const auto part =
        *reinterpret_cast<const Vector<T, X::kPerChunk>*>(tile + X::offset(row, i % chunks));
    T* to = y.data + (first + row) * y.row + d;
    if (y.vectors) {
      *reinterpret_cast<Vector<T, X::kPerChunk>*>(to) = part;
    } else {
#pragma unroll
      for (int e = 0; e < X::kPerChunk; ++e) {
        if (d + e < y.width) to[e] = part.element[e];
      }
    }
  }
}

}  // namespace sash::cuda::mma
