#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "copy.cuh"

/// Products of 64 rows by a warpgroup (PTX: wgmma), with accumulators in registers.
///
/// Of a product [64][n] a thread has sum[4 j + e], 0 <= e < 4: row 16 w + g + 8 (e / 2), column
/// 8 j + 2 t + e % 2, where w is its warp in the group, g = lane / 4, t = lane % 4.
///
/// Products are asynchronous. `warpgroup_arrive` starts a batch of products, `warpgroup_commit`
/// ends it. Until `warpgroup_wait` returns, the batch uses its accumulators, its left operands in
/// registers, and its tiles. Call `fence_operand` before the first use of accumulators, and after
/// arithmetic that may run at the same time as products. ptxas moves a wait ahead of arithmetic
/// that does not depend on it, but not ahead of a vote.
namespace sash::cuda::hopper {

__device__ inline void warpgroup_arrive() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void warpgroup_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most the latest `pending` batches are running.
template <int pending>
__device__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// Keeps the compiler from moving reads and writes of `sum` across the call.
template <int n>
__device__ void fence_operand(float (&sum)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

/// Lane 0's x, in a register that the compiler knows to be uniform.
__device__ inline uint32_t uniform(uint32_t x) { return __shfl_sync(~0u, x, 0); }

/// A tile as an operand of a product, stored as the low half of its matrix descriptor. Tiles are
/// K-major, [64 or n][depth], or MN-major, [depth][64 or n].
class Operand {
 public:
  /// All lanes of a warp call this. Only MN-major products use the distance of slabs.
  template <class T, int width, int rows, int slab>
  __device__ explicit Operand(const Tile<T, width, rows, slab>& tile)
      : low_(uniform(low_of(tile))) {}

  /// The same without a shuffle, for a tile whose place in shared memory the compiler knows to be
  /// uniform. It is formed anew at each use: no register holds it between iterations of a loop.
  template <class T, int width, int rows, int slab>
  __device__ static Operand fresh(const Tile<T, width, rows, slab>& tile) {
    uint32_t low = low_of(tile);
    asm volatile("" : "+r"(low));
    return Operand(low);
  }

  /// The operand that starts `bytes` bytes later.
  __device__ Operand operator+(uint32_t bytes) const { return Operand(low_ + (bytes >> 4)); }
  /// The same operand in stage `stage` of a ring whose stages are `bytes` bytes apart. With `at`,
  /// the compiler knows that the operand is uniform. It depends on the kernel which of the two
  /// functions is a few per cent faster.
  __device__ Operand ahead(int stage, uint32_t bytes) const {
    return Operand(low_ + static_cast<uint32_t>(stage) * (bytes >> 4));
  }
  __device__ Operand at(int stage, uint32_t bytes) const {
    return Operand(uniform(ahead(stage, bytes).low_));
  }

  /// The matrix descriptor for a tile of type X: the swizzle, and the distance of groups of 8 rows.
  template <class X>
  __device__ uint64_t descriptor() const {
    constexpr uint32_t groups = 8 * X::kRowBytes;
    constexpr uint32_t swizzle = X::kRowBytes == 128 ? 1 : X::kRowBytes == 64 ? 2 : 3;
    return uint64_t{swizzle << 30 | groups >> 4} << 32 | low_;
  }

 private:
  __device__ explicit Operand(uint32_t low) : low_(low) {}

  template <class T, int width, int rows, int slab>
  __device__ static uint32_t low_of(const Tile<T, width, rows, slab>& tile) {
    return tile.address() >> 4 | Tile<T, width, rows, slab>::kSlabBytes >> 4 << 16;
  }

  uint32_t low_;
};

#define SASH_SUMS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SASH_SUMS_16 SASH_SUMS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SASH_SUMS_32 \
  SASH_SUMS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SASH_SUMS_48 \
  SASH_SUMS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SASH_SUMS_64 \
  SASH_SUMS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SASH_SUMS_128                                                                          \
  SASH_SUMS_64                                                                                 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, "    \
  "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, " \
  "%99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, "  \
  "%114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SASH_BIND(i)                                                                    \
  "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]), \
      "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define SASH_BIND_8 SASH_BIND(0)
#define SASH_BIND_16 SASH_BIND_8, SASH_BIND(8)
#define SASH_BIND_32 SASH_BIND_16, SASH_BIND(16), SASH_BIND(24)
#define SASH_BIND_48 SASH_BIND_32, SASH_BIND(32), SASH_BIND(40)
#define SASH_BIND_64 SASH_BIND_48, SASH_BIND(48), SASH_BIND(56)
#define SASH_BIND_128                                                                      \
  SASH_BIND_64, SASH_BIND(64), SASH_BIND(72), SASH_BIND(80), SASH_BIND(88), SASH_BIND(96), \
      SASH_BIND(104), SASH_BIND(112), SASH_BIND(120)

/// sum[64][2 n] (+)= a b over a depth of 16, for tiles. K-major operands are [64 or 2 n][depth];
/// `a_across`, `b_across`: MN-major ones, [depth][64 or 2 n].
#define SASH_MULTIPLY_TILES(T, type, n, columns, a_at, b_at, add_at, a_across_at, b_across_at) \
  template <bool a_across, bool b_across>                                                      \
  __device__ void multiply_16(std::type_identity<T>, float(&sum)[n], uint64_t a, uint64_t b,   \
                              bool add) {                                                      \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" add_at                               \
                 ", 0;\n"                                                                      \
                 "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type          \
                 " {" SASH_SUMS_##n "}, %" a_at ", %" b_at ", add, 1, 1, %" a_across_at        \
                                    ", %" b_across_at ";\n}"                                   \
                 : SASH_BIND_##n                                                               \
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(a_across ? 1 : 0),          \
                   "n"(b_across ? 1 : 0));                                                     \
  }

/// The same with `a` in registers.
#define SASH_MULTIPLY_ROWS(T, type, n, columns, a0, a1, a2, a3, b_at, add_at, b_across_at)         \
  template <bool b_across = true>                                                                  \
  __device__ void multiply_16(std::type_identity<T>, float(&sum)[n], const uint32_t* a,            \
                              uint64_t b, bool add) {                                              \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" add_at                                   \
                 ", 0;\n"                                                                          \
                 "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type              \
                 " {" SASH_SUMS_##n "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b_at              \
                                    ", add, 1, 1, %" b_across_at ";\n}"                            \
                 : SASH_BIND_##n                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), \
                   "n"(b_across ? 1 : 0));                                                         \
  }

#define SASH_MULTIPLY(T, type)                                                     \
  SASH_MULTIPLY_TILES(T, type, 8, "16", "8", "9", "10", "11", "12")                \
  SASH_MULTIPLY_TILES(T, type, 16, "32", "16", "17", "18", "19", "20")             \
  SASH_MULTIPLY_TILES(T, type, 32, "64", "32", "33", "34", "35", "36")             \
  SASH_MULTIPLY_TILES(T, type, 64, "128", "64", "65", "66", "67", "68")            \
  SASH_MULTIPLY_TILES(T, type, 128, "256", "128", "129", "130", "131", "132")      \
  SASH_MULTIPLY_ROWS(T, type, 16, "32", "16", "17", "18", "19", "20", "21", "22")  \
  SASH_MULTIPLY_ROWS(T, type, 32, "64", "32", "33", "34", "35", "36", "37", "38")  \
  SASH_MULTIPLY_ROWS(T, type, 48, "96", "48", "49", "50", "51", "52", "53", "54")  \
  SASH_MULTIPLY_ROWS(T, type, 64, "128", "64", "65", "66", "67", "68", "69", "70") \
  SASH_MULTIPLY_ROWS(T, type, 128, "256", "128", "129", "130", "131", "132", "133", "134")

namespace detail {
SASH_MULTIPLY(__nv_bfloat16, "bf16")
SASH_MULTIPLY(__half, "f16")
}  // namespace detail

#undef SASH_MULTIPLY
#undef SASH_MULTIPLY_ROWS
#undef SASH_MULTIPLY_TILES
#undef SASH_BIND_128
#undef SASH_BIND_64
#undef SASH_BIND_48
#undef SASH_BIND_32
#undef SASH_BIND_16
#undef SASH_BIND_8
#undef SASH_BIND
#undef SASH_SUMS_128
#undef SASH_SUMS_64
#undef SASH_SUMS_48
#undef SASH_SUMS_32
#undef SASH_SUMS_16
#undef SASH_SUMS_8

/// Bytes from columns [0, ...) to [16 k, ...) of a tile.
template <class X>
__device__ constexpr uint32_t column_step(int k) {
  constexpr int steps = X::kSlab / 16;
  return static_cast<uint32_t>(k / steps * X::kSlabBytes + k % steps * 32);
}

/// sum[i, j] = a[i] . b[j], or += (`add`), for 64 rows of a tile of type A and the 2 n rows of a
/// tile of type B.
template <class A, class B, bool add = false, int n>
__device__ void multiply_rows(float (&sum)[n], Operand a, Operand b) {
  static_assert(2 * n == B::kRows && A::kWidth == B::kWidth);
#pragma unroll
  for (int k = 0; k < A::kWidth / 16; ++k) {
    detail::multiply_16<false, false>(std::type_identity<typename A::Element>{}, sum,
                                      (a + column_step<A>(k)).template descriptor<A>(),
                                      (b + column_step<B>(k)).template descriptor<B>(),
                                      add || k > 0);
  }
}

/// sum[i] += sum over j of weights[i, j] b[j] for the rows of a tile of type B. The weights of 64
/// rows are packed in the order of accumulators.
template <class B, int words, int n>
__device__ void multiply_add(float (&sum)[n], const uint32_t (&weights)[words], Operand b) {
  static_assert(4 * words == B::kRows && 2 * n == B::kWidth);
#pragma unroll
  for (int k = 0; k < B::kRows / 16; ++k) {
    detail::multiply_16(std::type_identity<typename B::Element>{}, sum, weights + 4 * k,
                        (b + static_cast<uint32_t>(k * 16 * B::kRowBytes)).template descriptor<B>(),
                        true);
  }
}

/// The same with weights in a tile of type A; = instead of += unless `add`.
template <class A, class B, bool add = true, int n>
__device__ void multiply_add(float (&sum)[n], Operand weights, Operand b) {
  static_assert(A::kWidth == B::kRows && 2 * n == B::kWidth);
#pragma unroll
  for (int k = 0; k < B::kRows / 16; ++k) {
    detail::multiply_16<false, true>(
        std::type_identity<typename B::Element>{}, sum,
        (weights + column_step<A>(k)).template descriptor<A>(),
        (b + static_cast<uint32_t>(k * 16 * B::kRowBytes)).template descriptor<B>(), add || k > 0);
  }
}

/// sum[i, j] = sum over k of a[k, i] b[k, j], or += (`add`), for the rows k of tiles of types A and
/// B. 64 columns of each tile take part, from the start of its operand on.
template <class A, class B, bool add>
__device__ void multiply_transposed(float (&sum)[32], Operand a, Operand b) {
  static_assert(A::kRows == B::kRows && A::kSlab == 64 && B::kSlab == 64);
#pragma unroll
  for (int k = 0; k < A::kRows / 16; ++k) {
    detail::multiply_16<true, true>(
        std::type_identity<typename A::Element>{}, sum,
        (a + static_cast<uint32_t>(k * 16 * A::kRowBytes)).template descriptor<A>(),
        (b + static_cast<uint32_t>(k * 16 * B::kRowBytes)).template descriptor<B>(), add || k > 0);
  }
}

/// Two floats as one word of `T`, the first in the low half.
__device__ inline uint32_t pack(std::type_identity<__nv_bfloat16>, float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ inline uint32_t pack(std::type_identity<__half>, float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

__device__ inline float2 unpack(std::type_identity<__nv_bfloat16>, uint32_t word) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u)};
}
__device__ inline float2 unpack(std::type_identity<__half>, uint32_t word) {
  return __half22float2(reinterpret_cast<const __half2&>(word));
}

/// Stores four 8 x 8 matrices of 2-byte elements, each transposed or not; `to` is this lane's row.
template <bool transposed>
__device__ void store_matrices(uint32_t to, uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3) {
  if constexpr (transposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(x0), "r"(x1), "r"(x2), "r"(x3)
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(x0), "r"(x1), "r"(x2), "r"(x3)
                 : "memory");
  }
}

/// Accumulators as the left operand of the next product.
template <class T, int n>
__device__ void pack(uint32_t (&words)[n / 2], const float (&sum)[n]) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) {
    words[i] = pack(std::type_identity<T>{}, sum[2 * i], sum[2 * i + 1]);
  }
}

}  // namespace sash::cuda::hopper
