#pragma once

#include <type_traits>

#include "../hopper/pipeline.cuh"
#include "../hopper/wgmma.cuh"

/// What the sm_90a kernels of block-sparse products share: a ring of tiles in shared memory, which
/// one warp fills by TMA and four warps multiply by wgmma. Two blocks of threads share a
/// multiprocessor: one multiplies while the other waits or writes.
namespace sash::cuda::sparse {

#define SASH_8(i) "%" #i "0, %" #i "1, %" #i "2, %" #i "3, %" #i "4, %" #i "5, %" #i "6, %" #i "7"
#define SASH_10(i) SASH_8(i) ", %" #i "8, %" #i "9"
#define SASH_SUMS_8 SASH_8()
#define SASH_SUMS_16 SASH_10() ", %10, %11, %12, %13, %14, %15"
#define SASH_SUMS_60 \
  SASH_10() ", " SASH_10(1) ", " SASH_10(2) ", " SASH_10(3) ", " SASH_10(4) ", " SASH_10(5)
#define SASH_SUMS_64 SASH_SUMS_60 ", %60, %61, %62, %63"
#define SASH_SUMS_128                                                                        \
  SASH_SUMS_60 ", " SASH_10(6) ", " SASH_10(7) ", " SASH_10(8) ", " SASH_10(9) ", " SASH_10( \
      10) ", " SASH_10(11) ", " SASH_8(12)
#define SASH_BIND(i)                                                                    \
  "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]), \
      "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define SASH_BIND_8 SASH_BIND(0)
#define SASH_BIND_16 SASH_BIND_8, SASH_BIND(8)
#define SASH_BIND_64                                                                       \
  SASH_BIND_16, SASH_BIND(16), SASH_BIND(24), SASH_BIND(32), SASH_BIND(40), SASH_BIND(48), \
      SASH_BIND(56)
#define SASH_BIND_128                                                                      \
  SASH_BIND_64, SASH_BIND(64), SASH_BIND(72), SASH_BIND(80), SASH_BIND(88), SASH_BIND(96), \
      SASH_BIND(104), SASH_BIND(112), SASH_BIND(120)

/// sum[64][2 n] += a b over a depth of 16. `a_across`: a is [depth][64] in memory, not [64][depth];
/// `b_across`: b is [depth][2 n], not [2 n][depth].
#define SASH_MULTIPLY(T, type, n, columns, a_at, b_at, a_across_at, b_across_at)               \
  template <bool a_across, bool b_across>                                                      \
  __device__ void multiply_16(std::type_identity<T>, float(&sum)[n], uint64_t a, uint64_t b) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type          \
                 " {" SASH_SUMS_##n "}, %" a_at ", %" b_at ", 1, 1, 1, %" a_across_at          \
                                    ", %" b_across_at ";"                                      \
                 : SASH_BIND_##n                                                               \
                 : "l"(a), "l"(b), "n"(a_across ? 1 : 0), "n"(b_across ? 1 : 0));              \
  }
#define SASH_MULTIPLY_ALL(T, type)                          \
  SASH_MULTIPLY(T, type, 8, "16", "8", "9", "10", "11")     \
  SASH_MULTIPLY(T, type, 16, "32", "16", "17", "18", "19")  \
  SASH_MULTIPLY(T, type, 64, "128", "64", "65", "66", "67") \
  SASH_MULTIPLY(T, type, 128, "256", "128", "129", "130", "131")
SASH_MULTIPLY_ALL(__nv_bfloat16, "bf16")
SASH_MULTIPLY_ALL(__half, "f16")
#undef SASH_MULTIPLY_ALL
#undef SASH_MULTIPLY
#undef SASH_BIND_128
#undef SASH_BIND_64
#undef SASH_BIND_16
#undef SASH_BIND_8
#undef SASH_BIND
#undef SASH_SUMS_128
#undef SASH_SUMS_64
#undef SASH_SUMS_60
#undef SASH_SUMS_16
#undef SASH_SUMS_8
#undef SASH_10
#undef SASH_8

/// Stores a 16 x 16 tile of 2-byte elements transposed; `to` is this lane's row of it.
__device__ inline void store_transposed(uint32_t to, uint32_t x0, uint32_t x1, uint32_t x2,
                                        uint32_t x3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(x0), "r"(x1), "r"(x2), "r"(x3)
               : "memory");
}

/// [rows][width] of 2-byte elements as TMA writes them: slabs [rows][slab], one after the other,
/// swizzled over the bytes of a slab's row. Slabs have 64, 32 or 16 columns.
template <class T, int width, int rows,
          int slab = width<64 ? width : 64> struct alignas(1024) Tile {
  using Element = T;
  static constexpr int kSlab = slab, kRowBytes = 2 * slab;
  static constexpr uint32_t kSlabBytes = rows * kRowBytes, kBytes = 2 * width * rows;
  T element[width * rows];
};

/// A tile as an operand of wgmma.
template <class X>
class Operand {
 public:
  /// By all lanes of a warp.
  __device__ explicit Operand(const X& tile)
      : low_(hopper::uniform(hopper::shared_address(&tile) >> 4 | X::kSlabBytes >> 4 << 16)) {}

  __device__ uint64_t descriptor(uint32_t offset) const {
    constexpr uint32_t swizzle = X::kRowBytes == 128 ? 1 : X::kRowBytes == 64 ? 2 : 3;
    return uint64_t{swizzle << 30 | 8 * X::kRowBytes >> 4} << 32 | (low_ + (offset >> 4));
  }

 private:
  uint32_t low_;
};

/// Four warps multiply, one copies.
inline constexpr int kRingThreads = 160;

/// `stages` stages of one left and one right tile.
template <class L, class R, int stages>
struct Ring {
  using Left = L;
  using Right = R;
  using State = hopper::PipelineState<stages>;
  static constexpr uint32_t kStageBytes = Left::kBytes + Right::kBytes;

  Left left[stages];
  Right right[stages];
  hopper::Barrier full[stages], empty[stages];

  /// By all threads, once.
  __device__ void init() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < stages; ++i) {
        full[i].init(1);
        empty[i].init(4);
      }
      hopper::fence_barrier_init();
    }
    __syncthreads();
  }

  /// By the copying thread: waits for the stage, and expects `bytes`.
  __device__ hopper::Barrier& acquire(const State& at, uint32_t bytes = kStageBytes) {
    empty[at.stage()].wait(at.parity() ^ 1);
    full[at.stage()].arrive_and_expect_tx(bytes);
    return full[at.stage()];
  }
};

template <int parts, int n>
__device__ void fence_sums(float (&sum)[parts][n]) {
#pragma unroll
  for (int i = 0; i < parts; ++i) hopper::fence_operand(sum[i]);
}

/// sum += left right over the next `steps` stages, by the four warps: rows 64 i .. of the left tile
/// make sum[i]. `a_across`: left tiles are [depth][rows]; `b_across`: right ones [depth][columns].
template <int depth, bool a_across, bool b_across, class X, int parts, int n>
__device__ void multiply_stages(X& ring, typename X::State& at, int steps, float (&sum)[parts][n]) {
  using Left = typename X::Left;
  using Right = typename X::Right;
  constexpr uint32_t a_step = a_across ? 16 * Left::kRowBytes : 32;
  constexpr uint32_t b_step = b_across ? 16 * Right::kRowBytes : 32;
  constexpr uint32_t a_part = a_across ? 64 / Left::kSlab * Left::kSlabBytes : 64 * Left::kRowBytes;
  for (int step = 0; step < steps; ++step) {
    const Operand<Left> a(ring.left[at.stage()]);
    const Operand<Right> b(ring.right[at.stage()]);
    ring.full[at.stage()].wait(at.parity());
    fence_sums(sum);
    hopper::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < depth / 16; ++k) {
#pragma unroll
      for (int i = 0; i < parts; ++i) {
        multiply_16<a_across, b_across>(
            std::type_identity<typename Left::Element>{}, sum[i],
            a.descriptor(static_cast<uint32_t>(i) * a_part + static_cast<uint32_t>(k) * a_step),
            b.descriptor(static_cast<uint32_t>(k) * b_step));
      }
    }
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<0>();
    fence_sums(sum);
    ring.empty[at.stage()].arrive_as_one();
    at.advance();
  }
}

template <int parts, int n>
__device__ void clear(float (&sum)[parts][n]) {
#pragma unroll
  for (int i = 0; i < parts; ++i) {
#pragma unroll
    for (float& x : sum[i]) x = 0;
  }
}

/// Copies a box of `x` from (row, column) on to slab `slab` of the tile; zeros past the last row.
/// By one thread.
template <class X>
__device__ void copy_box(X& tile, int slab, const CUtensorMap& x, int row, int column,
                         hopper::Barrier& barrier) {
  const uint32_t to = hopper::shared_address(&tile) + static_cast<uint32_t>(slab) * X::kSlabBytes;
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&x), "r"(column), "r"(row), "r"(barrier.address())
      : "memory");
}

/// The four multiplying warps.
__device__ inline void sync_multipliers() { asm volatile("bar.sync 1, 128;" ::: "memory"); }

}  // namespace sash::cuda::sparse
