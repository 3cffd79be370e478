#pragma once

#include "../core/backend/device.h"
#include "../core/philox.h"

namespace sash {

/// Seeds the process-wide generator and rewinds it.
SASH_API void manual_seed(uint64_t seed);

/// The generator's place in its stream; saved by checkpoints.
struct RandomState {
  uint64_t seed = 0;
  uint64_t offset = 0;
  friend bool operator==(const RandomState&, const RandomState&) = default;
};
SASH_API RandomState random_state();
SASH_API void set_random_state(RandomState state);

/// Reserves the numbers of a kernel that makes `count` elements on `device`, and says where they
/// start. The same sequence of calls gives the same numbers on every device.
SASH_API PhiloxState next_philox(Device device, int64_t count);

}  // namespace sash
