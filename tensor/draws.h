#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "../core/generators.h"
#include "random.h"

/// Where a thread's random numbers come from: the thread can draw the same numbers again, whatever
/// other threads draw.
namespace sash::detail {

/// The state of a `Generator`. Each replay of a graph that drew from it moves it on.
struct GeneratorState {
  RandomState state;
  uint64_t recording = 0;  ///< the recording in which it was made, or 0
};

/// Where a draw starts.
struct Draw {
  RandomState state;
  const GeneratorState* generator = nullptr;  ///< null: drawn from the device's generator
  uint64_t recording = 0;                     ///< the recording in which it was drawn, or 0
};
using Draws = std::vector<Draw>;

/// The generator of this thread's `GeneratorGuard`; null without one.
SASH_API const GeneratorState* guarded_generator();
/// The generators that this thread draws from: the process's generators, or an `OwnGenerators`.
SASH_API Generators& thread_generators();

/// While it lives, this thread draws from its own generators, which start at `start`. The process's
/// generators do not move.
class SASH_API OwnGenerators {
 public:
  explicit OwnGenerators(const RandomStates& start);
  ~OwnGenerators();
  RandomStates states() const { return states_.states(); }

 private:
  Generators states_;
  Generators* const outer_;
};

/// Where this thread's draws stand.
struct DrawsPlace {
  RandomStates states{};
  std::optional<RandomState> guarded{};  ///< of the `GeneratorGuard`, if there is one
};
SASH_API DrawsPlace place_of_draws();
/// Moves the generator of this thread's guard, or else the device's generator, back to `place`.
SASH_API void go_back(const DrawsPlace& place, Device device);

/// Records this thread's draws while it lives.
class SASH_API NotedDraws {
 public:
  explicit NotedDraws(Draws& draws);
  ~NotedDraws();
  NotedDraws(const NotedDraws&) = delete;
  NotedDraws& operator=(const NotedDraws&) = delete;
  /// Records a draw in this scope and in every enclosing scope.
  void add(const Draw& draw);

 private:
  Draws& draws_;
  NotedDraws* const outer_;
};

/// While it lives, this thread's draws are the recorded `draws` again. They are not recorded again
/// in enclosing scopes. `AutogradError` naming `op` if the thread draws more often, or if a graph
/// is recorded now and was not at the first draws, or the reverse.
class SASH_API RepeatedDraws {
 public:
  RepeatedDraws(const char* op, const Draws& draws);
  ~RepeatedDraws();
  RepeatedDraws(const RepeatedDraws&) = delete;
  RepeatedDraws& operator=(const RepeatedDraws&) = delete;
  Draw next();
  /// `AutogradError` if some are left.
  void check_all_used() const;

 private:
  const char* const op_;
  const Draws& draws_;
  size_t used_ = 0;
  RepeatedDraws* const outer_;
  NotedDraws* const noted_;
};

/// The number of this thread's recording; 0 without one.
SASH_API uint64_t recording_number();
/// Call before a draw from `generator`: replays will move it on. `ValueError` for one that was made
/// in the recording.
SASH_API void note_generator(const std::shared_ptr<GeneratorState>& generator);
/// The place of random numbers in a replay; outside recordings `base` and the draw's own offset.
SASH_API PhiloxState place_in_graph(Device device, const uint64_t* base, const Draw& draw);

}  // namespace sash::detail
