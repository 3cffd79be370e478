#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/// Consecutive Philox blocks in vector registers. A register holds one 32-bit lane of several
/// blocks, each in the low half of a 64-bit word, because the vector multiplication reads these
/// halves. The high halves hold remains of earlier products.
namespace sash::cpu {

#if defined(__AVX512F__)
inline constexpr int kWordsPerRegister = 8;
#elif defined(__AVX2__)
inline constexpr int kWordsPerRegister = 4;
#else
inline constexpr int kWordsPerRegister = 2;
#endif
using Words [[gnu::vector_size(8 * kWordsPerRegister)]] = uint64_t;

/// The 64-bit products of the low halves of `a` with `factor`.
inline Words multiply_low(Words a, uint32_t factor) {
  [[maybe_unused]] const auto wide = static_cast<long long>(factor);
#if defined(__AVX512F__)
  // g++ 12 warns about the form without a mask.
  return reinterpret_cast<Words>(
      _mm512_maskz_mul_epu32(0xFF, reinterpret_cast<__m512i>(a), _mm512_set1_epi64(wide)));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(wide)));
#elif defined(__SSE2__)
  return reinterpret_cast<Words>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), _mm_set1_epi64x(wide)));
#else
  return (a & 0xFFFFFFFFu) * factor;
#endif
}

/// a[0], b[0], a[1], b[1], ...: the first half in `first`, the rest in `second`.
inline void interleave(Words a, Words b, Words& first, Words& second) {
#if defined(__AVX512F__)
  first = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  second = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#elif defined(__AVX2__)
  first = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  second = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#else
  first = __builtin_shufflevector(a, b, 0, 2);
  second = __builtin_shufflevector(a, b, 1, 3);
#endif
}

/// Blocks drawn together: two registers of each lane, whose chains of products overlap.
inline constexpr int kPhiloxBlocks = 2 * kWordsPerRegister;

/// bits[4 i + l] = lane l of `philox(seed, counter + i)` for i < kPhiloxBlocks.
inline void philox_blocks(uint64_t seed, uint64_t counter, uint32_t* bits) {
  constexpr int kGroups = 2;
  constexpr uint64_t low = 0xFFFFFFFFu;
  Words c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
  Words count;
  for (int i = 0; i < kWordsPerRegister; ++i) count[i] = static_cast<uint64_t>(i);
  for (int g = 0; g < kGroups; ++g) {
    c0[g] = count + (counter + static_cast<uint64_t>(g * kWordsPerRegister));
    c1[g] = c0[g] >> 32;
    c2[g] = c3[g] = Words{};
  }
  uint64_t k0 = seed & low, k1 = seed >> 32;
  for (int round = 0; round < 10; ++round) {
    for (int g = 0; g < kGroups; ++g) {
      const Words p0 = multiply_low(c0[g], 0xD2511F53u), p1 = multiply_low(c2[g], 0xCD9E8D57u);
      c0[g] = (p1 >> 32) ^ c1[g] ^ k0;
      c1[g] = p1;
      c2[g] = (p0 >> 32) ^ c3[g] ^ k1;
      c3[g] = p0;
    }
    k0 += 0x9E3779B9u;  // a carry into the high half is never read
    k1 += 0xBB67AE85u;
  }
  for (int g = 0; g < kGroups; ++g) {
    Words out[2];
    interleave((c0[g] & low) | (c1[g] << 32), (c2[g] & low) | (c3[g] << 32), out[0], out[1]);
    std::memcpy(bits + g * 4 * kWordsPerRegister, out, sizeof(out));
  }
}

}  // namespace sash::cpu
