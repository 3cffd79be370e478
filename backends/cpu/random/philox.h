#pragma once

#include <cstdint>

#include "../../../core/philox.h"

namespace sash::cpu {

/// lane[l][i] = lane l of `philox(seed, counter[i])`. Each round runs over the whole batch, so that
/// the compiler vectorises it.
template <int kBatch>
void philox_batch(uint64_t seed, const uint64_t* counter, uint32_t (*lane)[kBatch]) {
  for (int i = 0; i < kBatch; ++i) {
    lane[0][i] = static_cast<uint32_t>(counter[i]);
    lane[1][i] = static_cast<uint32_t>(counter[i] >> 32);
    lane[2][i] = lane[3][i] = 0;
  }
  for (uint32_t round = 0; round < 10; ++round) {
    for (int i = 0; i < kBatch; ++i) {
      philox_round(seed, round, lane[0][i], lane[1][i], lane[2][i], lane[3][i]);
    }
  }
}

}  // namespace sash::cpu
