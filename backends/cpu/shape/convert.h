#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../../../core/half.h"

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

/// Converts contiguous halves to float32 and back, rounded to nearest even. The loops are not
/// inlined, to keep the library small.
namespace sash::cpu {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;

/// The type in which elements of T are computed: float32 for halves, else T.
template <class T>
using compute_t = std::conditional_t<kIsHalf<T>, float, T>;

/// x as `To`; halves by way of float32.
template <class To, class From>
To converted(From x) {
  return static_cast<To>(static_cast<compute_t<To>>(static_cast<compute_t<From>>(x)));
}

namespace detail {

inline void widen_16(const float16* x, float* y) {
#if defined(__AVX512F__)
  _mm512_storeu_ps(y, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))));
#elif defined(__F16C__)
  for (int i = 0; i < 16; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(half));
  }
#else
  for (int i = 0; i < 16; ++i) y[i] = static_cast<float>(x[i]);
#endif
}

inline void narrow_16(const float* x, float16* y) {
#if defined(__AVX512F__)
  const __m256i half = _mm512_cvtps_ph(_mm512_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), half);
#elif defined(__F16C__)
  for (int i = 0; i < 16; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), half);
  }
#else
  for (int i = 0; i < 16; ++i) y[i] = float16(x[i]);
#endif
}

}  // namespace detail

[[gnu::noinline]] inline void widen(const float16* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) detail::widen_16(x + i, y + i);
  if (i == n) return;
  float16 from[16] = {};
  float to[16];
  std::copy_n(x + i, n - i, from);
  detail::widen_16(from, to);
  std::copy_n(to, n - i, y + i);
}

[[gnu::noinline]] inline void narrow(const float* x, int64_t n, float16* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) detail::narrow_16(x + i, y + i);
  if (i == n) return;
  float from[16] = {};
  float16 to[16];
  std::copy_n(x + i, n - i, from);
  detail::narrow_16(from, to);
  std::copy_n(to, n - i, y + i);
}

/// Loads as many halves as `Packet` has floats, and widens them.
template <class Packet, class Half>
Packet widened(const Half* x) {
  [[maybe_unused]] constexpr bool kFloat16 = std::is_same_v<Half, float16>;
#if defined(__AVX512F__)
  if constexpr (sizeof(Packet) == 64) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    if constexpr (kFloat16) return _mm512_cvtph_ps(bits);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
#endif
#if defined(__AVX2__) && defined(__F16C__)
  if constexpr (sizeof(Packet) == 32) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
    if constexpr (kFloat16) return _mm256_cvtph_ps(bits);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
#endif
  constexpr int kCount = sizeof(Packet) / sizeof(float);
  float values[kCount];
  for (int i = 0; i < kCount; ++i) values[i] = static_cast<float>(x[i]);
  return std::bit_cast<Packet>(values);
}

/// Rounds a vector of floats to halves, and stores these.
template <class Packet, class Half>
void narrow_to(Half* y, const Packet& x) {
  [[maybe_unused]] constexpr bool kFloat16 = std::is_same_v<Half, float16>;
#if defined(__AVX512F__)
  if constexpr (sizeof(Packet) == 64) {
    __m256i half;
    if constexpr (kFloat16) {
      half = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    } else {
      const __m512i bits = _mm512_castps_si512(x), high = _mm512_srli_epi32(bits, 16);
      const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
      const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
      const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, up), 16);
      const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
      half =
          _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40)));
    }
    return _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), half);
  }
#endif
#if defined(__AVX2__) && defined(__F16C__)
  if constexpr (sizeof(Packet) == 32) {
    __m128i half;
    if constexpr (kFloat16) {
      half = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    } else {
      const __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
      const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
      const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
      const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
      const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
      const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
      const __m256i all = _mm256_blendv_epi8(rounded, quiet, nan);
      half = _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    }
    return _mm_storeu_si128(reinterpret_cast<__m128i*>(y), half);
  }
#endif
  constexpr int kCount = sizeof(Packet) / sizeof(float);
  const auto values = std::bit_cast<std::array<float, kCount>>(x);
  for (int i = 0; i < kCount; ++i) y[i] = Half(values[static_cast<size_t>(i)]);
}

// Compilers vectorise these loops, because they have no branch.

[[gnu::noinline]] inline void widen(const bfloat16* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i]);
}

[[gnu::noinline]] inline void narrow(const float* x, int64_t n, bfloat16* y) {
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    y[i].bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
}

}  // namespace sash::cpu
