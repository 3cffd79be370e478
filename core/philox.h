#pragma once

#include <cstdint>

#include "export.h"

namespace sash {

/// Where a random kernel starts in the stream of its generator. Element i of the output (row-major
/// index) uses lane i % 4 of the block at counter `*base + offset + i / 4`, on every backend and
/// for any thread layout. `base` points to device memory: a captured step draws new numbers when
/// this one word is increased.
struct PhiloxState {
  uint64_t seed = 0;
  const uint64_t* base = nullptr;
  uint64_t offset = 0;
};

/// Four independent uniform 32-bit numbers.
struct PhiloxBlock {
  uint32_t lane[4];
};

/// The lower and the upper 32 bits of a * b.
SASH_HOST_DEVICE inline void multiply_wide(uint32_t a, uint32_t b, uint32_t& low, uint32_t& high) {
#ifdef __CUDA_ARCH__
  // nvcc 13 compiles the product below to multiplications of 64 bits by 64 bits.
  asm("{ .reg .u64 p; mul.wide.u32 p, %2, %3; mov.b64 {%0, %1}, p; }"
      : "=r"(low), "=r"(high)
      : "r"(a), "r"(b));
#else
  const uint64_t product = uint64_t{a} * b;
  low = static_cast<uint32_t>(product);
  high = static_cast<uint32_t>(product >> 32);
#endif
}

inline constexpr uint32_t kPhiloxFactor0 = 0xD2511F53u, kPhiloxFactor1 = 0xCD9E8D57u;

/// A round of Philox4x32 with the round's two keys.
SASH_HOST_DEVICE inline void philox_round(PhiloxBlock& c, uint32_t key0, uint32_t key1) {
  uint32_t low0, high0, low1, high1;
  multiply_wide(kPhiloxFactor0, c.lane[0], low0, high0);
  multiply_wide(kPhiloxFactor1, c.lane[2], low1, high1);
  c = {{high1 ^ c.lane[1] ^ key0, low1, high0 ^ c.lane[3] ^ key1, low0}};
}

/// What is added to the two keys after each round.
inline constexpr uint32_t kPhiloxKeyStep0 = 0x9E3779B9u, kPhiloxKeyStep1 = 0xBB67AE85u;

/// Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) of a counter
/// of 128 bits.
template <int rounds>
SASH_HOST_DEVICE PhiloxBlock philox(uint64_t seed, PhiloxBlock block) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < rounds; ++round) {
    philox_round(block, key0, key1);
    key0 += kPhiloxKeyStep0;
    key1 += kPhiloxKeyStep1;
  }
  return block;
}

/// Philox4x32 of 10 rounds.
SASH_HOST_DEVICE inline PhiloxBlock philox(uint64_t seed, uint64_t counter) {
  return philox<10>(seed,
                    {{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}});
}

/// Uniform in [0, 1), a multiple of 2^-24 in float32 and of 2^-32 in float64.
template <class T>
SASH_HOST_DEVICE T uniform_from_bits(uint32_t bits) {
  if constexpr (sizeof(T) == 8) return static_cast<T>(bits) * static_cast<T>(0x1p-32);
  return static_cast<T>(bits >> 8) * static_cast<T>(0x1p-24);
}

/// Dropout keeps an element iff its 32 bits are at least this: P(keep) = 1 - p to within 2^-32.
SASH_HOST_DEVICE inline uint32_t dropout_threshold(double p) {
  const double scaled = p * 4294967296.0;
  return scaled >= 4294967295.0 ? 4294967295u : static_cast<uint32_t>(scaled);
}

}  // namespace sash
