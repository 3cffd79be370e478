#pragma once

#include <cstdint>

#include "../../../core/philox.h"

namespace sash::cpu {

/// `philox<rounds>` of the counters lane[0..3][i], in place. Each round runs over the whole batch,
/// so that the compiler vectorises it.
template <int kBatch, int rounds>
void philox_batch(uint64_t seed, uint32_t (*lane)[kBatch]) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < kBatch; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * lane[0][i];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * lane[2][i];
      lane[0][i] = static_cast<uint32_t>(p1 >> 32) ^ lane[1][i] ^ k0;
      lane[1][i] = static_cast<uint32_t>(p1);
      lane[2][i] = static_cast<uint32_t>(p0 >> 32) ^ lane[3][i] ^ k1;
      lane[3][i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

}  // namespace sash::cpu
