#pragma once

#include <vector>

#include "random.h"

/// What a thread draws from the process-wide generator, so that it can draw the same again whatever
/// other threads draw.
namespace sash::detail {

/// Where each draw starts, in turn.
using Draws = std::vector<RandomState>;

/// Notes this thread's draws while it lives.
class NotedDraws {
 public:
  explicit NotedDraws(Draws& draws);
  ~NotedDraws();
  NotedDraws(const NotedDraws&) = delete;
  NotedDraws& operator=(const NotedDraws&) = delete;
  /// Notes a draw here and in those around.
  void add(const RandomState& state);

 private:
  Draws& draws_;
  NotedDraws* const outer_;
};

/// Gives this thread the draws that were noted, while it lives. `AutogradError` naming `op` if it
/// asks for more.
class RepeatedDraws {
 public:
  RepeatedDraws(const char* op, const Draws& draws);
  ~RepeatedDraws();
  RepeatedDraws(const RepeatedDraws&) = delete;
  RepeatedDraws& operator=(const RepeatedDraws&) = delete;
  RandomState next();

 private:
  const char* const op_;
  const Draws& draws_;
  size_t used_ = 0;
  RepeatedDraws* const outer_;
};

}  // namespace sash::detail
