#pragma once

#include "../core/backend/backend.h"
#include "tensor.h"

namespace sash {

/// Marks x's memory as used by `stream` (`torch.Tensor.record_stream`). After the last tensor is
/// gone, the memory is reused only when `stream` has done the work that it had queued by then.
///
/// Needed for a tensor that was made on one stream, is used on another, and may be released while
/// that work runs; not for the streams on which it is made and released. Making `stream` wait until
/// x is computed is up to the caller (`Backend::wait`). Does nothing for memory owned elsewhere
/// (`from_dlpack`) and on the CPU. `ValueError` for an undefined tensor.
SASH_API void record_stream(const Tensor& x, Stream stream);

}  // namespace sash
