#pragma once

#include <cstdint>
#include <optional>

#include "locks.h"
#include "random_state.h"

namespace sash::detail {

/// A generator for each device. Thread-safe: seed and offset are read and written together.
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

}  // namespace sash::detail
