#pragma once

#include <memory>

#include "../core/philox.h"
#include "../core/random_state.h"
#include "../core/ref.h"

namespace sash {

namespace detail {
struct GeneratorState;
}

/// Seeds the generators of all devices, and sets them to offset 0. Each device has a generator, so
/// draws on one card do not depend on other devices. Threads that draw on one device at the same
/// time get distinct numbers in no fixed order; a `GeneratorGuard` in each thread fixes the order.
SASH_API void manual_seed(uint64_t seed);

/// The state of a device's generator, whether the device is here or not.
SASH_API RandomState random_state(Device device = default_device());
/// `ValueError` while this thread records a graph, here and below; `DeviceError` for an index < 0.
SASH_API void set_random_state(RandomState state, Device device = default_device());
/// The states of all devices, for checkpoints. States of devices that are not here are kept too.
SASH_API RandomStates random_states();
SASH_API void set_random_states(const RandomStates& states);

/// A generator apart from the devices' generators. Draws from it do not depend on other draws, nor
/// on the device. A copy draws what the original would draw; replays of a graph that drew from the
/// original do not move the copy on. Not for several threads at once.
///
///     Generator shuffling(7);
///     const Tensor order = randperm(n, shuffling);
class SASH_API Generator {
 public:
  explicit Generator(uint64_t seed = 0) : Generator(RandomState{seed, 0}) {}
  explicit Generator(RandomState state);
  Generator(const Generator& other) : Generator(other.state()) {}
  Generator& operator=(const Generator& other);

  uint64_t seed() const { return state().seed; }
  /// To save; `set_state` goes back there.
  RandomState state() const;
  /// `ValueError` while this thread records a graph; so does assignment.
  void set_state(RandomState state);
  /// `next_philox` of this generator.
  PhiloxState next(Device device, int64_t count);

 private:
  friend class GeneratorGuard;
  std::shared_ptr<detail::GeneratorState> state_;
};

/// While it lives, everything that its thread draws without a `Generator` of its own comes from
/// `generator`, on any device: factories, dropout, initialisers, modules. Guards nest. A guard must
/// end in the thread that made it.
///
///     Generator generator(seed + rank);  // in each thread
///     const GeneratorGuard guard(generator);
class SASH_API GeneratorGuard {
 public:
  explicit GeneratorGuard(Generator& generator);
  ~GeneratorGuard();
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  const std::shared_ptr<detail::GeneratorState> state_;
  const std::shared_ptr<detail::GeneratorState>* const outer_;
};

/// Reserves the numbers of a kernel that makes `count` elements on `device`, and says where they
/// start. The same sequence of calls gives the same numbers on every device.
SASH_API PhiloxState next_philox(Device device, int64_t count);

namespace detail {

struct DrawsPlace;

/// While it lives, this thread's draws start at `place`, by default where the thread's generators
/// stand. These generators do not move.
class SASH_API PrivateDraws {
 public:
  PrivateDraws();
  explicit PrivateDraws(const DrawsPlace& place);
  ~PrivateDraws();

 private:
  struct State;
  Owned<State> state_;
};

}  // namespace detail

}  // namespace sash
