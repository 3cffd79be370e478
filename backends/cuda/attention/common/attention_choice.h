#pragma once

#include <cstdlib>
#include <string_view>

#include "../../../../core/error.h"
#include "../hopper/attention_hopper.h"
#include "../mma/attention_mma.h"

namespace sash::cuda {

/// The kernels of attention, fastest first.
enum class AttentionKernels { hopper, mma, simple };

/// The first that may be chosen on this card. SASH_ATTENTION_KERNEL=hopper|mma|simple, for tests,
/// leaves out those before the one it names; `DeviceError` if that is hopper and they do not run.
inline AttentionKernels first_attention_kernels(Device device) {
  const char* name = std::getenv("SASH_ATTENTION_KERNEL");
  if (!name) {
    return attention_hopper_runs(device) ? AttentionKernels::hopper : AttentionKernels::mma;
  }
  if (std::string_view(name) == "mma") return AttentionKernels::mma;
  if (std::string_view(name) == "simple") return AttentionKernels::simple;
  if (std::string_view(name) != "hopper") {
    throw ValueError("attention", "SASH_ATTENTION_KERNEL of hopper, mma or simple", name);
  }
  if (attention_hopper_runs(device)) return AttentionKernels::hopper;
  throw DeviceError("attention",
                    "a card of compute capability 9.0, a library with code for sm_90a and no lower "
                    "SASH_SHARED_MEMORY_LIMIT, for SASH_ATTENTION_KERNEL=hopper",
                    to_string(device) + " without one of these");
}

/// The kernels for a call. The simple ones compute no halves.
inline AttentionKernels choose_attention(const KernelContext& context,
                                         const kernels::AttentionInputs& inputs) {
  const AttentionKernels first = first_attention_kernels(context.device);
  const bool half = size_of(inputs.q.dtype) == 2;
  if (first == AttentionKernels::hopper && attention_hopper_takes(inputs)) {
    return AttentionKernels::hopper;
  }
  if ((first != AttentionKernels::simple || half) && attention_mma_takes(context, inputs)) {
    return AttentionKernels::mma;
  }
  return AttentionKernels::simple;
}

}  // namespace sash::cuda
