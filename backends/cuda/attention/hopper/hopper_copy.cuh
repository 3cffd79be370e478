#pragma once

#include <cuda.h>

#include "hopper_barrier.cuh"

/// Copies from global to shared memory that one thread starts and a barrier awaits (PTX:
/// cp.async.bulk).
namespace sash::cuda::hopper {

/// Columns of a slab of 2-byte elements: 128 bytes where they divide the width, else 64.
constexpr int slab_of(int width) { return width % 64 == 0 ? 64 : 32; }

/// [rows][width] of 2-byte elements in shared memory, 1024-byte aligned, as products read it: slabs
/// [rows][kSlab], one after the other, whose 16-byte chunks are swapped within each row by an
/// exclusive or: in slabs of 128 bytes with the row's number modulo 8, in those of 64 bytes with
/// half that number, modulo 4.
template <class T, int width, int rows>
struct alignas(1024) Tile {
  using Element = T;
  static constexpr int kWidth = width, kRows = rows, kSlab = slab_of(width);
  static constexpr int kSlabs = width / kSlab, kRowBytes = 2 * kSlab, kSlabBytes = rows * kRowBytes;
  static constexpr uint32_t kBytes = kSlabs * kSlabBytes;
  static_assert(sizeof(T) == 2 && width % kSlab == 0 && rows % 8 == 0);

  T element[width * rows];

  __device__ uint32_t address() const { return shared_address(element); }

  /// Elements [8 chunk, 8 chunk + 8) of a row.
  __device__ uint4 read(int row, int chunk) const {
    constexpr int chunks = kSlab / 8;
    const int place = (chunk ^ row / (8 / chunks)) % chunks;
    const auto* slab =
        reinterpret_cast<const unsigned char*>(element) + chunk / chunks * kSlabBytes;
    return *reinterpret_cast<const uint4*>(slab + row * kRowBytes + place * 16);
  }
};

/// Rows [row, row + 64) of head (b, h), to rows [64 part, 64 part + 64) of `tile`; zeros for rows
/// and features past the end. The barrier's phase gets 128 width bytes. By one thread.
template <class T, int width, int rows>
__device__ void copy_rows(Tile<T, width, rows>& tile, int part, const CUtensorMap& x, int row,
                          int h, int b, Barrier& barrier) {
  using X = Tile<T, width, rows>;
#pragma unroll
  for (int slab = 0; slab < X::kSlabs; ++slab) {
    const uint32_t to =
        tile.address() + static_cast<uint32_t>(slab * X::kSlabBytes + part * 64 * X::kRowBytes);
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
        "l"(&x), "r"(slab * X::kSlab), "r"(row), "r"(h), "r"(b), "r"(barrier.address())
        : "memory");
  }
}

/// A row of floats, to 128-byte aligned memory. (Of copies without a tensor map, compute-sanitizer
/// does not know that a barrier orders them.)
__device__ inline void copy_row(void* to, const CUtensorMap& x, int row, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
      "l"(&x), "r"(0), "r"(row), "r"(barrier.address())
      : "memory");
}

/// Brings `bytes` from `from` on to the second-level cache, both multiples of 16.
__device__ inline void prefetch(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/// Fetches what describes a tensor, so that the first copy need not wait for it.
__device__ inline void prefetch(const CUtensorMap& x) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&x) : "memory");
}

}  // namespace sash::cuda::hopper
