#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include <sash/core/backend.h>

/// Whether there is no card, which skips a test; with `SASH_REQUIRE_CUDA`, fails it.
inline bool cuda_missing() {
  std::string reason;
  if (sash::try_backend(sash::DeviceType::cuda, &reason)) return false;
  if (std::getenv("SASH_REQUIRE_CUDA")) FAIL(reason);
  MESSAGE("skipped: ", reason);
  return true;
}

/// Whether to be short, as memory checkers need: fewer steps, none of what only many steps show.
inline bool short_tests() { return std::getenv("SASH_SHORT_TESTS") != nullptr; }
