#pragma once

#include <cstdint>

#include "../../../core/backend/kernel.h"

namespace sash::cuda {

/// Sorted keys with their places before the sort, for sums per key without atomics. The memory is
/// allocated on the context's stream and freed by the destructor.
class SortedKeys {
 public:
  /// Allocates `count` keys and places. A kernel must fill them before `sort`.
  SortedKeys(const KernelContext& context, int64_t count);

  /// Queues a stable sort by key. Keys must be in [0, largest].
  void sort(uint64_t largest);

  uint64_t* keys() const { return keys_; }
  int64_t* places() const { return places_; }
  int64_t count() const { return count_; }

 private:
  KernelContext context_;
  int64_t count_;
  Workspace memory_;
  uint64_t* keys_;
  int64_t* places_;
};

}  // namespace sash::cuda
