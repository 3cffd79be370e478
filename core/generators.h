#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
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

/// The states of the generators of all devices.
struct RandomStates {
  RandomState others{};  ///< of each device that is not in `devices`
  std::vector<std::pair<Device, RandomState>> devices{};  ///< the CPU first, then cards by index
  friend bool operator==(const RandomStates&, const RandomStates&) = default;
};

namespace detail {

/// A generator for each device, in use or not. Thread-safe: seed and offset are read, written and
/// moved on together.
class SASH_API Generators {
 public:
  static constexpr int kMostCards = 64;

  constexpr Generators() = default;

  /// `DeviceError` for a device whose index no backend can have, here and below.
  RandomState state(Device device) const;
  void set_state(Device device, RandomState state);
  RandomStates states() const;
  void set_states(const RandomStates& states);
  /// Moves the device's generator on by `blocks`, and returns where it was. With `seed`, does
  /// nothing and returns nullopt if the generator has another one.
  std::optional<RandomState> reserve(Device device, uint64_t blocks,
                                     std::optional<uint64_t> seed = {});

 private:
  using Own = std::array<std::optional<RandomState>, 1 + kMostCards>;  ///< the CPU, then cards

  mutable std::mutex mutex_;
  RandomState others_{};  ///< of devices without an own state
  Own own_{};
};

/// The generators of the process.
SASH_API Generators& generators();

}  // namespace detail
}  // namespace sash
