#pragma once

#include <cstdint>

#include "../../../core/kernel.h"

namespace sash::cuda {

/// Keys and the places where they stood, for adding up what belongs to one key without atomics.
/// Memory is that of the context's stream, and is given back with the scope.
class SortedKeys {
 public:
  /// Room for `count` keys and places, to be filled by a kernel.
  SortedKeys(const KernelContext& context, int64_t count);

  /// Queues the sort; keys are in [0, largest], and equal ones keep their order.
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
