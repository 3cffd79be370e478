#pragma once

#include <optional>

#include "../../index/sorted_keys.h"
#include "call.cuh"

/// The index turned around: for each block, the rows that select it.
namespace sash::cuda::selected {

/// How many rows of the index a block of threads takes.
inline constexpr int kChunk = 512;

/// A list is that of a block, of one batch and head of the index, or of all heads of the index that
/// belong to a key head. Lists are cut into chunks, which are numbered from list to list.
struct Lists {
  const int64_t* rows;  ///< numbers of rows of the index, list after list, ascending in each
  const int* start;     ///< [lists + 1]: the first of `rows`
  const int* chunk;     ///< [lists + 1]: the first chunk
  int lists, heads;     ///< heads: of the index, as lists tell them apart
  int64_t most_chunks;  ///< a bound that the host knows

  /// The list that has a chunk; -1 for a number past the last one.
  __device__ int list_of(int number) const {
    if (number >= chunk[lists]) return -1;
    int low = 0, high = lists;  // chunk[low] <= number < chunk[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (chunk[middle] <= number ? low : high) = middle;
    }
    return low;
  }
};

/// Owns the memory of the lists of a call. A row that selects a block twice is listed once; numbers
/// out of range are left out.
class ListMemory {
 public:
  ListMemory(const KernelContext& context, const Dims& dims);
  const Lists& lists() const { return lists_; }

 private:
  SortedKeys sorted_;
  std::optional<Workspace> ends_;
  Lists lists_{};
};

}  // namespace sash::cuda::selected
