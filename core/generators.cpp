#include "generators.h"

#include <algorithm>
#include <mutex>
#include <string>

#include "error.h"
#include "runtime.h"

namespace sash {

RandomState RandomStates::of(Device device) const {
  for (const auto& [known, state] : devices) {
    if (known == device) return state;
  }
  return others;
}

namespace detail {

RandomState& Generators::own(Device device) {
  if (device.index < 0) {
    throw DeviceError("generator", "a device of index 0 or above", std::to_string(device.index));
  }
  auto& all = states_.devices;
  const auto at = std::find_if(all.begin(), all.end(), [&](const auto& entry) {
    return std::pair(entry.first.type, entry.first.index) >= std::pair(device.type, device.index);
  });
  if (at != all.end() && at->first == device) return at->second;
  return all.insert(at, {device, states_.others})->second;
}

RandomState Generators::state(Device device) const {
  const std::lock_guard lock(mutex_);
  return states_.of(device);
}

void Generators::set_state(Device device, RandomState state) {
  const std::lock_guard lock(mutex_);
  own(device) = state;
}

RandomStates Generators::states() const {
  const std::lock_guard lock(mutex_);
  return states_;
}

void Generators::set_states(const RandomStates& states) {
  const std::lock_guard lock(mutex_);
  states_ = states;
}

std::optional<RandomState> Generators::reserve(Device device, uint64_t blocks,
                                               std::optional<uint64_t> seed) {
  const std::lock_guard lock(mutex_);
  RandomState& state = own(device);
  if (seed && state.seed != *seed) return std::nullopt;
  const RandomState start = state;
  state.offset += blocks;
  return start;
}

Generators& generators() { return runtime().generators; }

}  // namespace detail
}  // namespace sash
