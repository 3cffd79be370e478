#pragma once

#include "../attention/mma/tile.cuh"
#include "rows.cuh"

/// Tiles and products of linear attention on tensor cores. T is the dtype of the call. U is the
/// type of operands: bfloat16 for bfloat16, TF32 for float16.
///
/// A block of threads takes rows in steps of 64. Tiles have kWidth features, with zeros behind the
/// last feature of the operand.
namespace sash::cuda::linear {

using namespace mma;

inline constexpr int kStep = 64;

template <class T>
using operand_type = std::conditional_t<std::is_same_v<T, __half>, float, T>;

__device__ inline float phi_approx(float x) { return x > 0 ? x + 1 : exp2_approx(x * kLog2E); }

/// Eight neighbouring elements of a row.
using Eight = float[8];

template <class U, int kWidth>
__device__ void store_eight(unsigned char* tile, int row, int column, const Eight& x) {
  using X = Tile<U, kWidth>;
#pragma unroll
  for (int part = 0; part < 8 / X::kPerChunk; ++part) {
    Vector<U, X::kPerChunk> chunk;
#pragma unroll
    for (int e = 0; e < X::kPerChunk; ++e) {
      chunk.element[e] = narrow<U>(x[part * X::kPerChunk + e]);
    }
    *reinterpret_cast<Vector<U, X::kPerChunk>*>(
        tile + X::offset(row, column / X::kPerChunk + part)) = chunk;
  }
}

/// The eight elements in the type of the tile.
template <class U>
__device__ void round_to(Eight& x) {
  if constexpr (sizeof(U) == 2) {
#pragma unroll
    for (float& e : x) e = widen(narrow<U>(e));
  }
}

/// A thread's share of a tile: eight columns, from `column()` on, of every kDown-th row.
template <int kWidth, int kThreads>
struct Share {
  static constexpr int kAcross = kWidth / 8, kDown = kThreads / kAcross;
  static constexpr int kRows = kStep / kDown;  // rows of a thread

  static __device__ int column() { return static_cast<int>(threadIdx.x) % kAcross * 8; }
  static __device__ int row(int i) { return static_cast<int>(threadIdx.x) / kAcross + i * kDown; }
};

/// Brings 64 rows to a tile in two calls, with other work between them. `start` begins to read the
/// rows: directly to the tile if the tile has their type, else to registers. `finish`, which is
/// called after `wait_for_copies`, turns them into the contents of the tile. Each thread finishes
/// the elements that it started.
template <class T, class U, int kWidth, int kThreads>
class Reader {
 public:
  using S = Share<kWidth, kThreads>;
  using X = Tile<U, kWidth>;
  static constexpr bool kDirect = std::is_same_v<T, U>;

  /// Starts to read rows [first, first + 64) of x. Rows from `end` on become 0.
  __device__ void start(unsigned char* tile, const Rows<const T>& x, int first, int end) {
    rows_ = end - first;
    width_ = x.width;
#pragma unroll
    for (int i = 0; i < S::kRows; ++i) {
      const T* const from = x.data + (first + S::row(i)) * x.row + S::column();
      if constexpr (kDirect) {
        copy_async(shared_address(tile) + X::offset(S::row(i), S::column() / 8), from, inside(i));
      } else {
        raw_[i] = inside(i) ? *reinterpret_cast<const uint4*>(from) : uint4{};
      }
    }
  }

  /// Finishes the rows unchanged.
  __device__ void finish(unsigned char* tile) const {
    if constexpr (!kDirect) {
      finish(tile, [](int, const Eight&) {});
    }
  }

  /// Calls f(row, features) for each eight features of a row, which are 0 outside of x, and stores
  /// what f makes of them.
  template <class F>
  __device__ void finish_features(unsigned char* tile, const F& f) const {
    finish(tile, [&](int row, Eight& values) {
      const bool here = row < rows_ && S::column() < width_;
#pragma unroll
      for (float& e : values) e = here ? phi_approx(e) : 0.f;
      f(row, values);
    });
  }
  __device__ void finish_features(unsigned char* tile) const {
    finish_features(tile, [](int, const Eight&) {});
  }

 private:
  __device__ bool inside(int i) const { return S::row(i) < rows_ && S::column() < width_; }

  template <class F>
  __device__ void finish(unsigned char* tile, const F& f) const {
#pragma unroll
    for (int i = 0; i < S::kRows; ++i) {
      uint4 x;
      if constexpr (kDirect) {
        x = *reinterpret_cast<const uint4*>(tile + X::offset(S::row(i), S::column() / 8));
      } else {
        x = raw_[i];
        // The compiler would widen them, to twice the registers, when they are loaded.
        asm volatile("" : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w));
      }
      const auto& elements = reinterpret_cast<const Vector<T, 8>&>(x);
      Eight values;
#pragma unroll
      for (int e = 0; e < 8; ++e) values[e] = widen(elements.element[e]);
      f(S::row(i), values);
      store_eight<U, kWidth>(tile, S::row(i), S::column(), values);
    }
  }

  uint4 raw_[kDirect ? 1 : S::kRows];
  int rows_ = 0, width_ = 0;
};

/// Starts to copy a contiguous state [kWidth][kWidth] of U to a tile.
template <class U, int kWidth, int kThreads>
__device__ void read_state(uint32_t tile, const U* state) {
  using X = Tile<U, kWidth>;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < kWidth * X::kChunks; i += kThreads) {
    copy_async(tile + X::offset(i / X::kChunks, i % X::kChunks), state + i * X::kPerChunk, true);
  }
}

/// sum[i] += sum over d of left[i, d] x[d], for the kWidth rows and columns of the tile `x`.
template <class U, int kWidth, int kTiles, bool kInRegisters>
__device__ void multiply_state(Sums<kTiles, kWidth>& sum,
                               const Left<U, kWidth, kTiles, kInRegisters>& left, uint32_t x) {
  using X = Tile<U, kWidth>;
  constexpr int depth = Operand<U>::kDepth;
  uint32_t place = X::left(x);
  if constexpr (sizeof(U) == 4) {
    const int g = lane() / 4, t = lane() % 4;
    place = x + X::offset(t, g / 4) + static_cast<uint32_t>(g % 4 * 4);
  }
#pragma unroll
  for (int k = 0; k < kWidth / depth; ++k) {
    uint32_t a[kTiles][4];
    left.fragment(a, k);
#pragma unroll
    for (int f = 0; f < kWidth; f += 16) {
      uint32_t b[4];
      const uint32_t at = X::moved(place, k * depth, f / X::kPerChunk);
      if constexpr (sizeof(U) == 2) {
        load_transposed(b, at);
      } else {
        static_assert(X::kSpan == 8);
        constexpr uint32_t down = 4 * X::kRowBytes;  // 4 rows: bit 2 of the chunk's number
        b[0] = load_word(at);
        b[1] = load_word((at ^ 64u) + down);
        b[2] = load_word(at ^ 32u);
        b[3] = load_word((at ^ 96u) + down);
        Operand<U>::round(b);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        Operand<U>::multiply(sum[tile][f / 8], a[tile], b[0], b[1]);
        Operand<U>::multiply(sum[tile][f / 8 + 1], a[tile], b[2], b[3]);
      }
    }
  }
}

/// sum[d] += sum over the 64 rows i of x[i, d] y[i], for the 16 features d of this warp, from 16
/// warp() on.
template <class U, int kWidth>
__device__ void multiply_columns(Sums<1, kWidth>& sum, uint32_t x, uint32_t y) {
  using X = Tile<U, kWidth>;
  constexpr int depth = Operand<U>::kDepth;
  const uint32_t left = X::moved(X::right_rows(x), 0, warp() * 16 / X::kPerChunk);
  const uint32_t right = X::right_rows(y);
#pragma unroll 1  // addresses of all steps would take registers
  for (int k = 0; k < kStep / depth; ++k) {
    uint32_t raw[4];
    X::load_right_rows(raw, X::moved(left, k * depth, 0));
    const uint32_t a[4] = {raw[0], raw[2], raw[1], raw[3]};
#pragma unroll
    for (int f = 0; f < kWidth; f += 16) {
      uint32_t b[4];
      X::load_right_rows(b, X::moved(right, k * depth, f / X::kPerChunk));
      Operand<U>::multiply(sum[0][f / 8], a, b[0], b[1]);
      Operand<U>::multiply(sum[0][f / 8 + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace sash::cuda::linear
