#pragma once

#include "../../../../core/backend/device.h"
#include "../../../../tensor/kernels/view.h"

/// Limits for the kernels of attention that depend on the card and on the code in the library.
namespace sash::cuda {

/// The shared memory in bytes that a block of threads may use on every card from compute capability
/// 8.0 on. The cards with the least are 8.6, 8.9 and 12.x.
inline constexpr int kLeastSharedMemory = 99 * 1024;

/// The shared memory in bytes that a block of threads may use on this card: 166,912 for 8.0,
/// 232,448 for 9.0 and 10.x. The environment variable SASH_SHARED_MEMORY_LIMIT lowers the limit, so
/// that a large card runs the kernels of smaller cards. Throws `ValueError` if the variable is not
/// a number of at least `kLeastSharedMemory`.
int shared_memory_limit(Device device);

/// Whether the kernels for sm_90a have code on this card. They are empty in a library that was
/// built without 90a, and where the driver compiles PTX for another architecture. The driver is
/// asked once for each card. Nothing is launched, so the call is allowed during a capture.
bool has_hopper_code(Device device);

/// Throws `ValueError` for `op` if q or k [B, H, S, D] has more than 2^30 rows in a head, or q has
/// more than 2^30 heads in all batches. Kernels count both in 32 bits.
void check_extents(const char* op, View q, View k);

/// Calls `f<Large>()` if a block of threads may use `Large::kMost` bytes of shared memory on the
/// card, else `f<Small>()`. Every card has enough for `Small`.
template <class Large, class Small, class F>
void with_shape_that_fits(Device device, F&& f) {
  static_assert(Large::kMost <= 163 * 1024, "more than compute capability 8.0 has");
  if constexpr (Large::kMost > kLeastSharedMemory) {
    static_assert(Small::kMost <= kLeastSharedMemory);
    if (shared_memory_limit(device) < Large::kMost) return f.template operator()<Small>();
  }
  f.template operator()<Large>();
}

}  // namespace sash::cuda
