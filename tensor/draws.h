#pragma once

#include <vector>

#include "random.h"

/// What a thread draws from the process-wide generator, so that it can draw the same again whatever
/// other threads draw.
namespace sash::detail {

/// Where each draw starts, in turn.
using Draws = std::vector<RandomState>;

/// Lets this thread draw from `start` on instead of the process-wide generator, which stays where
/// it is, while it lives.
class OwnDraws {
 public:
  explicit OwnDraws(RandomState start);
  ~OwnDraws();
  OwnDraws(const OwnDraws&) = delete;
  OwnDraws& operator=(const OwnDraws&) = delete;
  RandomState next(int64_t count);

 private:
  RandomState state_;
  OwnDraws* const outer_;
};

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
/// asks for more. They are not noted again by those around.
class RepeatedDraws {
 public:
  RepeatedDraws(const char* op, const Draws& draws);
  ~RepeatedDraws();
  RepeatedDraws(const RepeatedDraws&) = delete;
  RepeatedDraws& operator=(const RepeatedDraws&) = delete;
  RandomState next();
  /// `AutogradError` if some are left.
  void check_all_used() const;

 private:
  const char* const op_;
  const Draws& draws_;
  size_t used_ = 0;
  RepeatedDraws* const outer_;
  NotedDraws* const noted_;
};

}  // namespace sash::detail
