#pragma once

namespace sash::testing {

/// If SASH_NAN_MEMORY is set and there is a card: from now on each block of its memory, new or
/// reused, results and workspaces alike, is filled with bytes that are NaN in every floating dtype
/// before it is handed out. What a kernel reads and none has written then shows, also where
/// initcheck does not see what kernels write. In a captured graph, each replay fills again.
void fill_memory_if_asked();

}  // namespace sash::testing
