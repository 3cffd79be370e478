#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include <sash/core/backend.h>
#include <sash/core/error.h>
#include <sash/ops/attention/attention.h>
#include <sash/tensor/factories.h>

/// Whether there is a card, and if SASH_ATTENTION_KERNEL asks for the kernels of sm_90a, whether
/// they run on it; if not, `reason` says why.
inline bool has_cuda(std::string& reason) {
  if (!sash::try_backend(sash::DeviceType::cuda, &reason)) return false;
  if (!std::getenv("SASH_ATTENTION_KERNEL")) return true;
  const sash::Tensor x =
      sash::zeros({1, 1, 1, 8}, {.dtype = sash::DType::bfloat16, .device = sash::kCUDA});
  try {
    sash::attention(x, x, x);
  } catch (const sash::DeviceError& error) {
    reason = error.what();
    return false;
  }
  return true;
}

/// Whether there is no such card, which skips a test; with `SASH_REQUIRE_CUDA`, fails it.
inline bool cuda_missing() {
  std::string reason;
  if (has_cuda(reason)) return false;
  if (std::getenv("SASH_REQUIRE_CUDA")) FAIL(reason);
  MESSAGE("skipped: ", reason);
  return true;
}

/// Whether to be short, as memory checkers need: fewer steps, none of what only many steps show.
inline bool short_tests() { return std::getenv("SASH_SHORT_TESTS") != nullptr; }
