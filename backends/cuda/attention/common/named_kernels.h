#pragma once

#include <optional>

namespace sash::cuda {

/// The kernels of attention, linear attention and the gated delta rule, fastest first.
enum class AttentionKernels { hopper, mma, simple };

/// For tests: SASH_ATTENTION_KERNEL=hopper|mma|simple leaves out the kernels before those that it
/// names. Without a value if it is not set. Throws `ValueError` for another name.
std::optional<AttentionKernels> named_attention_kernels();

}  // namespace sash::cuda
