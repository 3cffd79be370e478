#pragma once

#include <limits>
#include <string>

#include "../../../../core/backend/kernel.h"
#include "../../../../core/error.h"
#include "../../runtime/dependent_launch.cuh"

namespace sash::cuda {

/// Bytes of dynamic shared memory: what a launch takes, and the most that its kernel ever takes.
struct SharedBytes {
  SharedBytes(int bytes) : SharedBytes(bytes, bytes) {}
  SharedBytes(int bytes, int most_bytes) : taken(bytes), most(most_bytes) {}

  int taken, most;
};

/// Launches `blocks` blocks of `threads` threads; does nothing for 0 blocks. Throws `ValueError` if
/// a grid cannot have that many blocks.
template <class... Parameters, class... Arguments>
void launch_tiles(const KernelContext& context, int64_t blocks, int threads, int shared,
                  void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (blocks == 0) return;
  if (blocks > std::numeric_limits<int32_t>::max()) {
    throw ValueError("attention", "at most 2^31 - 1 tiles", std::to_string(blocks));
  }
  launch_kernel(context, blocks, threads, shared, kernel, arguments...);
}

/// The same, and calls `allow_shared_memory` first.
template <auto kernel, class... Arguments>
void launch(const KernelContext& context, int64_t blocks, int threads, const SharedBytes& shared,
            const Arguments&... arguments) {
  const CardGuard guard(context.device.index);
  if (blocks > 0) allow_shared_memory<kernel>(context.device.index, shared.most);
  launch_tiles(context, blocks, threads, shared.taken, kernel, arguments...);
}

}  // namespace sash::cuda
