#include "generators.h"

#include <string>

#include "error.h"

namespace sash::detail {
namespace {

constinit Generators of_process;

size_t place_of(Device device) {
  const int last = device.is_cpu() ? 0 : Generators::kMostCards - 1;
  if (device.index < 0 || device.index > last) {
    throw DeviceError(name(device.type), "an index in [0, " + std::to_string(last + 1) + ")",
                      std::to_string(device.index));
  }
  return static_cast<size_t>(device.is_cpu() ? 0 : 1 + device.index);
}

}  // namespace

RandomState Generators::state(Device device) const {
  const size_t place = place_of(device);
  const std::lock_guard lock(mutex_);
  return own_[place].value_or(others_);
}

void Generators::set_state(Device device, RandomState state) {
  const size_t place = place_of(device);
  const std::lock_guard lock(mutex_);
  own_[place] = state;
}

RandomStates Generators::states() const {
  const std::lock_guard lock(mutex_);
  RandomStates all{.others = others_};
  for (size_t i = 0; i < own_.size(); ++i) {
    const Device device = i == 0 ? kCPU : Device{DeviceType::cuda, static_cast<int>(i) - 1};
    if (own_[i]) all.devices.emplace_back(device, *own_[i]);
  }
  return all;
}

void Generators::set_states(const RandomStates& states) {
  Own own{};
  for (const auto& [device, state] : states.devices) own[place_of(device)] = state;
  const std::lock_guard lock(mutex_);
  others_ = states.others;
  own_ = own;
}

std::optional<RandomState> Generators::reserve(Device device, uint64_t blocks,
                                               std::optional<uint64_t> seed) {
  const size_t place = place_of(device);
  const std::lock_guard lock(mutex_);
  const RandomState start = own_[place].value_or(others_);
  if (seed && start.seed != *seed) return std::nullopt;
  own_[place] = {start.seed, start.offset + blocks};
  return start;
}

Generators& generators() { return of_process; }

}  // namespace sash::detail
