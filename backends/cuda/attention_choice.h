#pragma once

#include <cstdlib>
#include <string_view>

#include "../../core/error.h"
#include "attention_hopper.h"
#include "attention_mma.h"

namespace sash::cuda {

/// The kernels of attention, fastest first.
enum class AttentionKernels { hopper, mma, simple };

/// The first that may be chosen: SASH_ATTENTION_KERNEL=hopper|mma|simple, for tests, leaves out
/// those before the one it names.
inline AttentionKernels first_attention_kernels() {
  const char* name = std::getenv("SASH_ATTENTION_KERNEL");
  if (!name || std::string_view(name) == "hopper") return AttentionKernels::hopper;
  if (std::string_view(name) == "mma") return AttentionKernels::mma;
  if (std::string_view(name) == "simple") return AttentionKernels::simple;
  throw ValueError("attention", "SASH_ATTENTION_KERNEL of hopper, mma or simple", name);
}

/// The kernels for a call. The simple ones compute no halves.
inline AttentionKernels choose_attention(const KernelContext& context,
                                         const kernels::AttentionInputs& inputs) {
  const AttentionKernels first = first_attention_kernels();
  const bool half = size_of(inputs.q.dtype) == 2;
  if (first == AttentionKernels::hopper && attention_hopper_takes(context, inputs)) {
    return AttentionKernels::hopper;
  }
  if ((first != AttentionKernels::simple || half) && attention_mma_takes(context, inputs)) {
    return AttentionKernels::mma;
  }
  return AttentionKernels::simple;
}

}  // namespace sash::cuda
