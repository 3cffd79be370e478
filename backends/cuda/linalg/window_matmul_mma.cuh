#pragma once

#include "../attention/common/limits.h"
#include "../attention/mma/tile.cuh"
#include "../shape/readable.h"
#include "window_matmul.h"

/// What the windowed products on tensor cores share. A block has four warps, each of which computes
/// a quarter of a tile of 64 x 64, 32 rows of 32 columns. Blocks of 128 rows would read the other
/// operand half as often, but are slower, because fewer blocks run at once and hide each other's
/// waits.
namespace sash::cuda::window {

using mma::copy_async;
using mma::shared_address;

inline constexpr int kTile = 64, kPart = 32;
inline constexpr int kBlock = (kTile / kPart) * (kTile / kPart) * kWarp;
inline constexpr int kStages = 3;  ///< of the ring of tiles

template <class T>
using Square = mma::Tile<T, kTile>;
inline constexpr int kSquareBytes = kTile * kTile * 2;

/// The first row and column of this warp's part of a tile.
__device__ inline int part_row() { return warp() / 2 * kPart; }
__device__ inline int part_column() { return warp() % 2 * kPart; }

/// The copies of a step are a group. `wait` leaves up to `kStages - 2` groups in flight.
__device__ inline void wait_for_group() { mma::wait_for_groups<kStages - 2>(); }

/// Copies the first `bytes` of 16 bytes, and zeros for the others. Fetches the 256 bytes around to
/// the L2 cache, because the next tile continues there.
__device__ inline void copy_async_part(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}

__device__ inline int visible_keys(const WindowDims& p, int b) {
  return p.lengths ? max(0, min(p.lengths[b], p.m)) : p.m;
}

/// Starts to read columns [column, column + 64) of rows [first, first + 64) of `x`. Rows outside
/// [0, end) and columns outside [0, width) become 0.
template <class T>
__device__ void read_square(uint32_t tile, const Rows<const T>& x, int first, int end, int column) {
  using X = Square<T>;
  if (x.vectors) {
    const int chunk = static_cast<int>(threadIdx.x) % 8, top = static_cast<int>(threadIdx.x) / 8;
    const int d = column + chunk * 8;
    const bool wanted = d >= 0 && d < x.width;
#pragma unroll
    for (int i = 0; i < kTile; i += kBlock / 8) {
      const int row = first + top + i;
      copy_async(tile + X::offset(top + i, chunk), x.data + row * x.row + d,
                 wanted && row >= 0 && row < end);
    }
    return;
  }
  auto* const to = static_cast<unsigned char*>(__cvta_shared_to_generic(tile));
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile; i += kBlock) {
    const int row = first + i / kTile, d = column + i % kTile;
    const bool inside = row >= 0 && row < end && d < x.width;
    *reinterpret_cast<T*>(to + X::offset(i / kTile, i % kTile / 8) + i % 8 * 2) =
        inside ? x.data[row * x.row + d] : T(0.f);
  }
}

/// The sums of a warp: element e of of[i][j] is row 16 i + g + 8 (e / 2), column 8 j + 2 t + e % 2
/// of the warp's part.
struct PartSums {
  float of[2][4][4];
};

template <class T>
__device__ void multiply(PartSums& sum, const uint32_t (&a)[2][4], const uint32_t (&b)[4], int j) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    mma::Operand<T>::multiply(sum.of[i][j], a[i], b[0], b[1]);
    mma::Operand<T>::multiply(sum.of[i][j + 1], a[i], b[2], b[3]);
  }
}

/// A part [32][32] in shared memory, which passes from registers to rows in global memory.
template <class T>
struct Staged {
  static constexpr int kPitch = kPart + 8;  // rows of a column lie in different banks
  static constexpr int kBytes = kPart * kPitch * 2;

  /// `part` is memory that only this warp uses.
  static __device__ void put(T* part, const PartSums& sum) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = 16 * i + lane() / 4 + 8 * half, column = 8 * j + lane() % 4 * 2;
          *reinterpret_cast<uint32_t*>(part + row * kPitch + column) =
              mma::Operand<T>::pack(sum.of[i][j][2 * half], sum.of[i][j][2 * half + 1]);
        }
      }
    }
    __syncwarp();
  }

  /// Calls f(row, column, vector) for each vector of kWidth elements. A warp visits whole rows in
  /// turn.
  template <int kWidth, class F>
  static __device__ void for_each(const T* part, const F& f) {
    constexpr int across = kPart / kWidth;
#pragma unroll 4
    for (int i = lane(); i < kPart * across; i += kWarp) {
      const int row = i / across, column = i % across * kWidth;
      f(row, column, *reinterpret_cast<const Vector<T, kWidth>*>(part + row * kPitch + column));
    }
  }
};

inline bool has_unit_rows(View x) { return x.shape[3] == 1 || x.strides[3] == 1; }

/// Whether x [B, H, M, N] is stored as [B, H, N, M], with keys that can be read 16 bytes at a time
/// from key -left on.
inline bool has_key_columns(View x, const kernels::WindowParams& window) {
  return x.shape[3] > 1 && x.strides[2] == 1 && x.strides[3] > 1 && !window.lengths &&
         (window.left | x.shape[2] | x.strides[0] | x.strides[1] | x.strides[3]) % 8 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

/// Views an operand that is `keys_down` as rows [B, H, N, M].
template <class T>
Rows<const T> key_columns(View x) {
  return {x.ptr<const T>(),
          x.strides[0],
          x.strides[1],
          x.strides[3],
          static_cast<int>(x.shape[2]),
          true};
}

}  // namespace sash::cuda::window
