#pragma once

#include "../core/backend.h"
#include "tensor.h"

namespace sash {

/// Says that work queued on `stream` uses x's memory, so that, once the last tensor lets go, it is
/// not handed out again before what `stream` has queued by then is done.
///
/// Needed for a tensor that was made on one stream, is used on another, and may be released while
/// that work is under way (as `torch.Tensor.record_stream`). The streams on which a tensor was made
/// and on which it is released need no mention. That `stream` waits until x is computed is the
/// caller's part (`Backend::wait`). Does nothing for memory of somebody else (`from_dlpack`) and
/// for devices of one stream, the CPU's. `ValueError` for an undefined tensor.
SASH_API void record_stream(const Tensor& x, Stream stream);

}  // namespace sash
