#pragma once

#include "../../../../core/backend/device.h"
#include "../../../../tensor/kernels/view.h"

/// What a card, and the code that was loaded for it, allow the kernels of attention.
namespace sash::cuda {

/// Shared memory that every card of compute capability 8.0 or above gives a block of threads: the
/// least, that of 8.6, 8.9 and 12.x, in bytes.
inline constexpr int kLeastSharedMemory = 99 * 1024;

/// Shared memory that this card gives a block of threads, in bytes: 166,912 for 8.0, 232,448 for
/// 9.0 and 10.x. The environment variable SASH_SHARED_MEMORY_LIMIT lowers it, so that any card runs
/// the kernels of smaller ones. `ValueError` if it holds anything else than a number from
/// `kLeastSharedMemory` on.
int shared_memory_limit(Device device);

/// Whether the kernels that are written for sm_90a have code on this card. They are empty in a
/// library built without 90a, and where the driver compiles PTX for another architecture. Asked of
/// the driver once per card; it launches nothing, so it may be asked during a capture.
bool has_hopper_code(Device device);

/// `ValueError` of `op` if q and k [B, H, S, D] have more than 2^30 rows in a head, or heads in all
/// batches: kernels count both in 32 bits.
void check_extents(const char* op, View q, View k);

/// Calls `f<Large>()` where the card gives a block of threads the shared memory of its kernels,
/// `Large::kMost` bytes, else `f<Small>()`, which every card does.
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
