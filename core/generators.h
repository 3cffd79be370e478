#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "export.h"
#include "locks.h"

namespace sash {

/// A generator's place in its stream; saved by checkpoints.
struct RandomState {
  uint64_t seed = 0;
  uint64_t offset = 0;
  friend bool operator==(const RandomState&, const RandomState&) = default;
};

/// The states of the generators of all devices, whether they are here or not.
struct RandomStates {
  RandomState others{};  ///< of each device that is not in `devices`
  std::vector<std::pair<Device, RandomState>> devices{};  ///< the CPU first, then cards by index
  SASH_API RandomState of(Device device) const;
  friend bool operator==(const RandomStates&, const RandomStates&) = default;
};

namespace detail {

/// A generator for each device. Thread-safe: a state is read, written and moved on as one.
class SASH_API Generators {
 public:
  RandomState state(Device device) const;
  /// `DeviceError` for a negative index.
  void set_state(Device device, RandomState state);
  RandomStates states() const;
  void set_states(const RandomStates& states);
  /// Moves the device's generator on by `blocks`, and returns where it was. With `seed`, does
  /// nothing and returns nullopt if the generator has another one.
  std::optional<RandomState> reserve(Device device, uint64_t blocks,
                                     std::optional<uint64_t> seed = {});

 private:
  RandomState& own(Device device);

  mutable SmallMutex mutex_;
  RandomStates states_;
};

/// The generators of the process.
SASH_API Generators& generators();

}  // namespace detail
}  // namespace sash
