#pragma once

#include <cuda.h>

#include "barrier.cuh"

/// TMA copies from global to shared memory, which complete on a barrier (PTX:
/// cp.async.bulk.tensor).
namespace sash::cuda::hopper {

/// The columns of a slab of 2-byte elements: the largest of 64, 32 and 16 that divides the width.
constexpr int slab_of(int width) { return width % 64 == 0 ? 64 : width % 32 == 0 ? 32 : 16; }

/// [rows][width] of 2-byte elements in shared memory, in the layout of TMA and wgmma: slabs
/// [rows][kSlab], one after the other. Within a row, the number of a 16-byte chunk is xored with
/// row % 8 in slabs of 128 bytes, with row / 2 % 4 in slabs of 64 bytes, with row / 4 % 2 in slabs
/// of 32 bytes.
template <class T, int width, int rows, int slab_ = slab_of(width)>
struct alignas(1024) Tile {
  using Element = T;
  static constexpr int kWidth = width, kRows = rows, kSlab = slab_;
  static constexpr int kSlabs = width / kSlab, kRowBytes = 2 * kSlab, kSlabBytes = rows * kRowBytes;
  static constexpr uint32_t kBytes = kSlabs * kSlabBytes;
  static_assert(sizeof(T) == 2 && width % kSlab == 0 && rows % 8 == 0);

  T element[width * rows];

  __device__ uint32_t address() const { return shared_address(element); }

  /// Elements [8 chunk, 8 chunk + 8) of a row.
  __device__ uint4& at(int row, int chunk) {
    constexpr int chunks = kSlab / 8;
    const int place = (chunk ^ row / (8 / chunks)) % chunks;
    auto* const slab = reinterpret_cast<unsigned char*>(element) + chunk / chunks * kSlabBytes;
    return *reinterpret_cast<uint4*>(slab + row * kRowBytes + place * 16);
  }
  __device__ uint4 read(int row, int chunk) const {
    return const_cast<Tile*>(this)->at(row, chunk);
  }
};

/// Copies rows [row, row + 64) of head (b, h) to rows [64 part, 64 part + 64) of `tile`: 128 width
/// bytes from feature `first` on, with zeros for rows and features outside of the tensor. The map
/// may have boxes of `box` rows instead of 64, or of one row of `box` heads. One thread calls this.
template <int box = 64, class T, int width, int rows>
__device__ void copy_rows(Tile<T, width, rows>& tile, int part, const CUtensorMap& x, int row,
                          int h, int b, Barrier& barrier, int first = 0) {
  using X = Tile<T, width, rows>;
#pragma unroll
  for (int slab = 0; slab < X::kSlabs; ++slab) {
    const uint32_t to =
        tile.address() + static_cast<uint32_t>(slab * X::kSlabBytes + part * box * X::kRowBytes);
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
        "l"(&x), "r"(first + slab * X::kSlab), "r"(row), "r"(h), "r"(b), "r"(barrier.address())
        : "memory");
  }
}

/// Copies a box of the matrix `x`, which starts at (row, column), to slab `slab` of the tile, with
/// zeros past the last row. One thread calls this.
template <class X>
__device__ void copy_box(X& tile, int slab, const CUtensorMap& x, int row, int column,
                         Barrier& barrier) {
  const uint32_t to = tile.address() + static_cast<uint32_t>(slab * X::kSlabBytes);
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&x), "r"(column), "r"(row), "r"(barrier.address())
      : "memory");
}

/// Copies a row of floats, or the rows of the map's box, to 128-byte aligned memory. It uses a
/// tensor map, because compute-sanitizer does not see that barriers order copies without a tensor
/// map.
__device__ inline void copy_row(void* to, const CUtensorMap& x, int row, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
      "l"(&x), "r"(0), "r"(row), "r"(barrier.address())
      : "memory");
}

/// Fetches `bytes` of global memory into the L2 cache. The address is 16-byte aligned.
__device__ inline void prefetch_l2(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/// Copies from shared to global memory (`bulk_store`), or adds floats there (`bulk_add`). Addresses
/// are 16-byte aligned. `bulk_commit` ends a group of copies. The thread's groups may read shared
/// memory until `bulk_wait_read` returns, and may write global memory until `bulk_wait` returns.
/// One thread calls these functions.
__device__ inline void bulk_store(void* to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_add(float4* to, const void* from, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(shared_address(from)), "r"(bytes)
      : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ inline void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// Prefetches a tensor map.
__device__ inline void prefetch(const CUtensorMap& x) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&x) : "memory");
}

}  // namespace sash::cuda::hopper
