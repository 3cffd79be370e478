#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "export.h"

namespace sash {

/// A generator's place in its stream; saved by checkpoints.
struct RandomState {
  uint64_t seed = 0;
  uint64_t offset = 0;
  friend bool operator==(const RandomState&, const RandomState&) = default;
};

/// The states of the generators of all devices, also of devices that this machine does not have.
struct RandomStates {
  RandomState others{};  ///< of each device that is not in `devices`
  std::vector<std::pair<Device, RandomState>> devices{};  ///< the CPU first, then cards by index
  SASH_API RandomState of(Device device) const;
  friend bool operator==(const RandomStates&, const RandomStates&) = default;
};

}  // namespace sash
