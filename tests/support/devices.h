#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include <sash/core/backend/backend.h>
#include <sash/core/error.h>
#include <sash/ops/attention/exact/attention.h>
#include <sash/tensor/factories.h>

/// Tests of one body for each kind of device:
///
///     TEST_CASE_TEMPLATE("softmax: rows of any length", On, Cpu, Cuda) {
///       if (!missing(On::device)) check_rows(On::device);
///     }
///
/// is the cases "softmax: rows of any length<cpu>" and "softmax: rows of any length<cuda>". What
/// only a card has is tested by cases whose names begin with "cuda". `.ci/gpu_check` finds both,
/// and runs them in groups: one for each text before the colon.
namespace sash::testing {

struct Cpu {
  static constexpr Device device = kCPU;
};
struct Cuda {
  static constexpr Device device = kCUDA;
};

/// Whether there is a card, and if SASH_ATTENTION_KERNEL asks for the kernels of sm_90a, whether
/// they run on it; if not, `reason` says why.
inline bool has_cuda(std::string& reason) {
  if (!try_backend(DeviceType::cuda, &reason)) return false;
  if (!std::getenv("SASH_ATTENTION_KERNEL")) return true;
  const Tensor x = zeros({1, 1, 1, 8}, {.dtype = DType::bfloat16, .device = kCUDA});
  try {
    attention(x, x, x);
  } catch (const DeviceError& error) {
    reason = error.what();
    return false;
  }
  return true;
}

/// How many cards must be there, by SASH_REQUIRE_CUDA: 0 without it, 1 if it is no number.
inline int required_cards() {
  const char* const asked = std::getenv("SASH_REQUIRE_CUDA");
  return asked ? std::max(std::atoi(asked), 1) : 0;
}

/// Skips a test for want of a card or of its memory: prints `reason`, or fails if `required`.
inline bool skip(bool required, const std::string& reason) {
  if (required) FAIL(reason);
  MESSAGE("skipped: ", reason);
  return true;
}

/// Whether `device` is a card and there are fewer than `cards` of them, which skips a test; if
/// SASH_REQUIRE_CUDA asks for as many, fails it.
inline bool missing(Device device, int cards = 1) {
  if (device.is_cpu()) return false;
  std::string reason;
  if (!has_cuda(reason)) return skip(required_cards() >= cards, reason);
  const int found = backend(DeviceType::cuda).device_count();
  if (found >= cards) return false;
  return skip(required_cards() >= cards,
              "expected " + std::to_string(cards) + " cards, got " + std::to_string(found));
}

/// The text of the `E` that `call` leads to: thrown by the call on the CPU, on a card by the next
/// wait and not by the one after. "nothing" if there is none.
template <class E, class Call>
std::string error_of(Device device, Call&& call) {
  std::string message = "nothing";
  bool queued = false;
  try {
    call();
    queued = true;
    synchronize(device);
  } catch (const E& error) {
    message = error.what();
    CHECK(queued != device.is_cpu());
  }
  CHECK_NOTHROW(synchronize(device));
  return message;
}

/// Whether to be short, as memory checkers need: fewer steps, none of what only many steps show.
inline bool short_tests() { return std::getenv("SASH_SHORT_TESTS") != nullptr; }
/// How many random cases a test draws: SASH_RANDOM_COUNT, or else `many` with SASH_LONG_TESTS, a
/// part of `count` in short tests, or `count`.
inline uint64_t random_count(uint64_t count, uint64_t many, uint64_t part) {
  if (const char* const asked = std::getenv("SASH_RANDOM_COUNT")) {
    return std::strtoull(asked, nullptr, 10);
  }
  return std::getenv("SASH_LONG_TESTS") ? many : short_tests() ? count / part : count;
}
/// The first seed of random cases: SASH_RANDOM_SEED, or else `otherwise`.
inline uint64_t random_seed(uint64_t otherwise) {
  const char* const asked = std::getenv("SASH_RANDOM_SEED");
  return asked ? std::strtoull(asked, nullptr, 10) : otherwise;
}

}  // namespace sash::testing

TYPE_TO_STRING_AS("cpu", sash::testing::Cpu);
TYPE_TO_STRING_AS("cuda", sash::testing::Cuda);
