#pragma once

#include <optional>
#include <vector>

#include "../../index/sorted_keys.h"
#include "call.cuh"

/// The index turned around: for each block, the rows that select it.
namespace sash::cuda::selected {

/// How many elements of a list a block of threads takes, if it does not ask for another number.
inline constexpr int kChunk = 512;

/// An element of a list: a row of the index, and its entry that is the block.
struct alignas(8) Selector {
  int row, entry;
};

/// A list is that of a block, of one batch and head of the index, or of all heads of the index that
/// belong to a key head. Lists are cut into chunks, which are numbered from list to list.
struct Lists {
  const Selector* selectors;  ///< list after list, rows ascending in each
  const int* start;           ///< [lists + 1]: the first of `selectors`
  const int* chunk;           ///< [lists + 1]: the first chunk
  const int* block;           ///< [elements of the index]: the block, or -1 if it is in no list
  int lists, heads;           ///< heads: of the index, as lists tell them apart
  int chunk_size;
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

/// Rows of the index whose results are in memory at the same time: some heads of the index, or a
/// part of a head. A result belongs to an entry of a row and to a row of q.
struct Segment {
  int64_t first, past;
  int first_list, past_list;  ///< lists that may have such rows
  int64_t most_elements;      ///< of these lists

  int64_t most_chunks(const Lists& lists) const {
    return past_list - first_list + most_elements / lists.chunk_size;
  }
};

/// Cuts the rows of the index, which have `row_bytes` bytes of results each, into segments of
/// 512 MiB, or of a head if it has more, or of parts of a head that has more than 2 GiB. The first
/// segment is the largest.
std::vector<Segment> segments(const Dims& dims, int64_t row_bytes);

/// Owns the memory of the lists of a call. A row that selects a block twice is listed once. Numbers
/// out of range are reported and left out.
class ListMemory {
 public:
  ListMemory(const KernelContext& context, const Dims& dims, int64_t chunk_size = kChunk);
  const Lists& lists() const { return lists_; }

 private:
  SortedKeys sorted_;
  std::optional<Workspace> ends_;
  Lists lists_{};
};

}  // namespace sash::cuda::selected
