#pragma once

#include <cmath>

#include "../../core/philox.h"

namespace sash::kernels {

/// Which weights of attention dropout keeps, on every backend and for any thread layout.
///
/// p is rounded to T / 4096. Each weight has a number R of 12 random bits and is kept iff R >= T.
/// The words of `word` have a bit for each of 32 neighbouring keys: bit i of all R is in lane i % 4
/// of the Philox block i / 4 of the word.
///
/// Two neighbouring words share block 0. Its bits decide only where the other 8 bits of R equal the
/// bits of T, in 1 of 256 weights, and so in 1 of 65,536 pairs of weights that share bits. Each
/// weight keeps its exact probability; the weights of such a pair correlate by 4e-5 for p = 0.1.
class AttentionDropout {
 public:
  static constexpr int kKeys = 32;  ///< of a word
  static constexpr int kBits = 12, kBlocks = kBits / 4;
  static constexpr int kBlocksOfPair = 2 * kBlocks - 1;  ///< of two words

  explicit AttentionDropout(double p)
      : dropped_(static_cast<uint32_t>(std::lround(p * (1 << kBits)))) {}

  /// The probability that a weight is dropped: T / 4096.
  double p() const { return static_cast<double>(dropped_) / (1 << kBits); }
  /// The factor of the weights that are kept: 1 / (1 - p), and 0 for p = 1.
  double factor() const { return p() < 1 ? 1 / (1 - p()) : 0; }

  /// The number of words of a row of `keys` weights.
  SASH_HOST_DEVICE static constexpr int64_t words(int64_t keys) {
    return (keys + kKeys - 1) / kKeys;
  }
  /// How many numbers of the generator `rows` rows of weights take: their counters differ from
  /// other calls' by `start`.
  static constexpr int64_t draws(int64_t rows) { return 4 * (1 + (rows >> 32)); }

  /// The number, among the Philox blocks of a row, of block `block` of word `at`.
  SASH_HOST_DEVICE static constexpr uint32_t index(int64_t at, int block) {
    return static_cast<uint32_t>(at / 2 * kBlocksOfPair + (block > 0 ? at % 2 * 2 + block : 0));
  }
  /// The Philox counter of block `index` of row `row`. The number of the block and the number of
  /// the row are in words that the first two rounds do not mix, so that kernels compute these
  /// rounds once for a row, and once for a block.
  SASH_HOST_DEVICE static PhiloxBlock counter(uint64_t start, int64_t row, uint32_t index) {
    return {{index, static_cast<uint32_t>(start) + static_cast<uint32_t>(row >> 32),
             static_cast<uint32_t>(row), static_cast<uint32_t>(start >> 32)}};
  }

  /// Word `at` of row `row`. Bit j: whether key j of the word is kept.
  SASH_HOST_DEVICE uint32_t word(uint64_t seed, uint64_t start, int64_t row, int64_t at) const {
    uint32_t kept = first();
    for (int block = 0; block < kBlocks; ++block) {
      if (skips(block)) continue;
      const PhiloxBlock random = philox<kRounds>(seed, counter(start, row, index(at, block)));
      for (int i = 0; i < 4; ++i) kept = compare(kept, random.lane[i], zero(4 * block + i));
    }
    return kept;
  }

  /// The number of rounds from which Philox4x32 passes BigCrush (Salmon et al., SC 2011).
  static constexpr int kRounds = 7;
  /// Whether all bits of T in `block` and in the blocks before it are 0. Then the same bits of R
  /// decide nothing.
  SASH_HOST_DEVICE bool skips(int block) const { return dropped_ % (16u << 4 * block) == 0; }
  /// The word before any bit is compared: for p = 1, no key is kept.
  SASH_HOST_DEVICE uint32_t first() const { return dropped_ >> kBits ? 0 : ~uint32_t{0}; }
  /// All ones if `bit` of T is 0, else 0.
  SASH_HOST_DEVICE uint32_t zero(int bit) const { return (dropped_ >> bit & 1) - 1; }
  /// From R >= T in the bits below one bit to the same with this bit, of which `random` is R's and
  /// `zero` T's.
  SASH_HOST_DEVICE static uint32_t compare(uint32_t kept, uint32_t random, uint32_t zero) {
    return (kept & random) | (zero & (kept | random));
  }

 private:
  uint32_t dropped_;  // T
};

}  // namespace sash::kernels
