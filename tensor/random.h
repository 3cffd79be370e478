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

/// A generator of one's own, beside the process-wide one: a use that has one draws the same numbers
/// whatever others draw. A copy draws what the original would. Not for several threads at once.
///
///     Generator shuffling(7);
///     const Tensor order = randperm(n, shuffling);
class SASH_API Generator {
 public:
  explicit Generator(uint64_t seed = 0) : state_{seed, 0} {}
  explicit Generator(RandomState state) : state_(state) {}

  uint64_t seed() const { return state_.seed; }
  /// To save; `set_state` goes back there.
  RandomState state() const { return state_; }
  void set_state(RandomState state) { state_ = state; }
  /// `next_philox` of this generator.
  PhiloxState next(Device device, int64_t count);

 private:
  RandomState state_;
};

/// Reserves the numbers of a kernel that makes `count` elements on `device`, and says where they
/// start. The same sequence of calls gives the same numbers on every device.
SASH_API PhiloxState next_philox(Device device, int64_t count);

}  // namespace sash
