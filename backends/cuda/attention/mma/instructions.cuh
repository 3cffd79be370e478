#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "../common/lanes.cuh"

/// The tensor core instructions of sm_80, and which elements of their operands a lane has (PTX ISA,
/// "Matrix fragments for mma"). Below, g = lane / 4 and t = lane % 4.
///
/// Sums [16, 8] are in float32: c[0] and c[1] are elements (g, 2 t) and (g, 2 t + 1), c[2] and c[3]
/// are elements (g + 8, 2 t) and (g + 8, 2 t + 1). Left operands [16, kDepth] take four registers,
/// right operands [kDepth, 8] two. A row of kDepth elements has 32 bytes.
namespace sash::cuda::mma {

__device__ inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

/// Loads four matrices of 8 rows of 16 bytes. Lanes 8 i .. 8 i + 7 pass the addresses of the rows
/// of matrix i. x[i] gets word t of row g.
__device__ inline void load_matrices(uint32_t (&x)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address));
}

/// Loads four matrices of 2-byte elements, transposed: x[i] gets rows 2 t and 2 t + 1 of column g.
__device__ inline void load_transposed(uint32_t (&x)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address));
}

__device__ inline uint32_t load_word(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address));
  return x;
}

__device__ inline void load_words(uint32_t (&x)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}
__device__ inline void store_words(uint32_t address, const uint32_t (&x)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3])
               : "memory");
}

/// Starts a copy of 16 bytes from global to shared memory. Writes zeros unless `inside`.
__device__ inline void copy_async(uint32_t to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(inside ? 16 : 0)
               : "memory");
}

/// Ends a group of this thread's copies.
__device__ inline void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `pending` groups of this thread's copies are in flight.
template <int pending>
__device__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// Waits for this thread's copies.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// The elements that tensor cores multiply.
template <class T>
struct Operand;

/// float16 and bfloat16.
template <class T>
struct HalfOperand {
  static constexpr int kDepth = 16;

  static __device__ void round(uint32_t (&)[4]) {}

  /// Columns [16 k, 16 k + 16) of a row of sums, as a left operand.
  static __device__ void from_sums(uint32_t (&a)[4], const float (*sum)[4], int k) {
    const float(&low)[4] = sum[2 * k];
    const float(&high)[4] = sum[2 * k + 1];
    a[0] = Operand<T>::pack(low[0], low[1]);
    a[1] = Operand<T>::pack(low[2], low[3]);
    a[2] = Operand<T>::pack(high[0], high[1]);
    a[3] = Operand<T>::pack(high[2], high[3]);
  }
};

template <>
struct Operand<__nv_bfloat16> : HalfOperand<__nv_bfloat16> {
  static __device__ uint32_t pack(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
  static __device__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <>
struct Operand<__half> : HalfOperand<__half> {
  static __device__ uint32_t pack(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
  static __device__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

/// float32 rounded to TF32.
template <>
struct Operand<float> {
  static constexpr int kDepth = 8;

  static __device__ uint32_t round(float x) {
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
  }
  static __device__ void round(uint32_t (&x)[4]) {
#pragma unroll
    for (uint32_t& word : x) word = round(__uint_as_float(word));
  }

  /// Columns [8 k, 8 k + 8) of a row of sums, even columns first. Any order of the columns gives a
  /// correct product, and in this order no element has to change lanes.
  static __device__ void from_sums(uint32_t (&a)[4], const float (*sum)[4], int k) {
    a[0] = round(sum[k][0]);
    a[1] = round(sum[k][2]);
    a[2] = round(sum[k][1]);
    a[3] = round(sum[k][3]);
  }

  static __device__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

}  // namespace sash::cuda::mma
