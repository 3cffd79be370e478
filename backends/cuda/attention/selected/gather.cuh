#pragma once

#include "../hopper/groups.cuh"
#include "fragments.cuh"
#include "lists.h"

/// What kernels by key share: the rows of q of a list, and results of rows that further kernels
/// add. A block of keys meets the rows that select it. What it gives to a row belongs to an entry
/// of the row's index, and is rounded to T.
namespace sash::cuda::selected {

using hopper::Tile;

/// A row of q, and its number in its group; query -1: none.
struct RowAt {
  int query, head, in_group;

  /// Where the row lies in x, in steps of 8 elements.
  template <class T>
  __device__ uint32_t in(const Rows<const T>& x) const {
    return query < 0 ? ~0u : static_cast<uint32_t>((head * x.head + query * x.row) / 8);
  }
};

/// Keys of a block, and rows that select it: work `number` of a grid
/// [chunks of lists of the segment][calls of a list][parts of `keys` keys of a block].
struct KeyWork {
  int list, b, key_head, first, past;  ///< keys [first, past); list -1: after the last chunk
  int64_t from;                        ///< in the lists
  int count;                           ///< of elements
  int part, parts, call, calls;
  int64_t sums;    ///< the number of the work among all segments
  bool continues;  ///< whether an earlier segment has rows of the chunk

  __device__ KeyWork(const Dims& dims, const Lists& lists, const Segment& segment, int keys,
                     int number)
      : list(-1), count(0), parts((dims.block + keys - 1) / keys), calls(dims.calls()) {
    part = number % parts;
    call = number / parts % calls;
    const int chunk = number / parts / calls + lists.chunk[segment.first_list];
    if (chunk >= lists.chunk[segment.past_list]) return;
    list = lists.list_of(chunk);
    const int block = list % dims.blocks, head = list / dims.blocks % lists.heads;
    const int heads = dims.key_heads / lists.heads;
    b = list / dims.blocks / lists.heads * (calls / heads) + call / heads;
    key_head = head * heads + call % heads;
    first = block * dims.block + part * keys;
    past = min(min(first + keys, (block + 1) * dims.block), dims.keys);
    if (first >= past) return;
    sums = (static_cast<int64_t>(chunk) * calls + call) * parts + part;
    const int begin = lists.start[list] + (chunk - lists.chunk[list]) * lists.chunk_size;
    const int end = min(begin + lists.chunk_size, lists.start[list + 1]);
    from = first_of(lists, begin, end, segment.first);
    count = first_of(lists, begin, end, segment.past) - static_cast<int>(from);
    continues = from > begin;
  }

  /// The number of the result of the first row of an element, divided by the size of a group:
  /// results are [rows of the segment][calls][entries][parts][group].
  __device__ int result(const Dims& dims, const Segment& segment, const Selector& x) const {
    const int64_t entry = ((x.row - segment.first) * calls + call) * dims.entries + x.entry;
    return static_cast<int>(entry * parts + part);
  }

 private:
  /// The first place in [begin, end), which is not empty, whose row is at least `row`.
  __device__ static int first_of(const Lists& lists, int begin, int end, int64_t row) {
    if (lists.selectors[end - 1].row < row) return end;
    if (lists.selectors[begin].row >= row) return begin;
    while (end - begin > 1) {  // row of begin < row <= row of end - 1
      const int middle = (begin + end) / 2;
      (lists.selectors[middle].row < row ? begin : end) = middle;
    }
    return end;
  }
};

/// The row of q that a thread has, of a grid [rows of the segment][calls][group][`lanes`].
struct ResultAt {
  int b, head, query = -1;  ///< query -1: none
  int64_t row;              ///< of the index
  int64_t first;            ///< result of the row's first entry and first part
  int lane;

  __device__ ResultAt(const Dims& dims, const Segment& segment, int parts, int lanes) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    lane = static_cast<int>(thread % lanes);
    const int64_t group = thread / lanes / dims.group;
    const auto in_group = static_cast<int>(thread / lanes % dims.group);
    const int calls = dims.calls(), heads = dims.key_heads / dims.list_heads();
    row = segment.first + group / calls;
    if (row >= segment.past) return;
    const auto call = static_cast<int>(group % calls), of = static_cast<int>(row) / dims.rows;
    const int2 at = dims.place(of % dims.index_heads * heads + call % heads,
                               static_cast<int>(row) % dims.rows, in_group);
    b = of / dims.index_heads * (calls / heads) + call / heads;
    query = at.x;
    head = at.y;
    first = group * dims.entries * parts * dims.group + in_group;
  }
};

/// The rows of q of a work: a group for each element.
struct ListRows {
  const Selector* from;
  int count;                ///< of rows
  int first_row, per_list;  ///< the list's first row of the index; heads of the index in a list
  int unit;                 ///< the first unit

  __device__ ListRows(const Dims& dims, const Lists& lists, const KeyWork& work)
      : from(lists.selectors + work.from),
        count(work.count * dims.group),
        per_list(dims.index_heads / lists.heads),
        unit(work.key_head * dims.units_of_key_head()) {
    first_row = work.list / dims.blocks * per_list * dims.rows;
  }

  /// The element that has row i, or the last one.
  __device__ Selector selector(const Dims& dims, int i) const {
    i = min(i, count - 1);
    return from[dims.group == 1 ? i : i / dims.group];
  }
  /// Row i, of element `x`.
  __device__ RowAt row(const Dims& dims, const Selector& x, int i) const {
    int row = x.row - first_row, of = unit;
    if (per_list > 1) {
      of += row / dims.rows;
      row %= dims.rows;
    }
    RowAt at{row * dims.queries_per_row, of * dims.heads_per, 0};
    if (dims.group > 1) {
      at.in_group = i % dims.group;
      at.query += at.in_group / dims.heads_per;
      at.head += at.in_group % dims.heads_per;
    }
    if (i >= count || at.query >= dims.queries) at.query = -1;
    return at;
  }
};

/// Starts to copy 32 rows of x to rows [first, first + 32) of a tile. Lane i has `at` of row i.
template <class T, int depth, int rows>
__device__ void copy_gathered(Tile<T, depth, rows>& tile, int first, const Rows<const T>& x,
                              uint32_t at) {
  constexpr int across = depth / 8, down = 32 / across, batch = 4;
  const int chunk = lane() % across, below = lane() / across;
  const auto* const from = reinterpret_cast<const uint4*>(x.data) + chunk;
  const uint32_t to = chunk_address(tile, first + below, chunk);
#pragma unroll
  for (int base = 0; base < 32; base += batch * down) {
    // Shuffles wait behind other accesses of shared memory, so several run at the same time.
    uint32_t own[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) own[j] = __shfl_sync(~0u, at, base + j * down + below);
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      const int i = base + j * down;
      const bool inside = own[j] != ~0u;
      mma::copy_async((to ^ static_cast<uint32_t>(i % 8 * 16)) + i * tile.kRowBytes,
                      from + (inside ? own[j] : 0), inside);
    }
  }
}

/// Writes a row of `factor` times accumulators, in their order: 4 j + t is the number of the 8
/// elements that lane t of a row has of columns [32 j, 32 j + 32).
template <class T, int n>
__device__ void write_part(T* row, const float (&sum)[n], int half, float factor) {
#pragma unroll
  for (int j = 0; j < n / 16; ++j) {
    const auto word = [&](int i) {
      const float* const pair = sum + 4 * (4 * j + i) + 2 * half;
      return mma::Operand<T>::pack(factor * pair[0], factor * pair[1]);
    };
    __stcs(reinterpret_cast<uint4*>(row) + 4 * j + lane() % 4,
           make_uint4(word(0), word(1), word(2), word(3)));
  }
}

/// The 8 elements of number `number` of a row.
template <class T>
struct PartSum {
  float sum[8] = {};

  __device__ void add(const uint4& part, float weight) {
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const float2 two = hopper::unpack(std::type_identity<T>{}, (&part.x)[word]);
      sum[2 * word] = fmaf(weight, two.x, sum[2 * word]);
      sum[2 * word + 1] = fmaf(weight, two.y, sum[2 * word + 1]);
    }
  }
  /// Writes them to a row in the order of columns.
  __device__ void write(T* row, int number, float factor) const {
    T* const to = row + number / 4 * 32 + number % 4 * 2;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      *reinterpret_cast<uint32_t*>(to + 8 * word) =
          mma::Operand<T>::pack(factor * sum[2 * word], factor * sum[2 * word + 1]);
    }
  }
};

}  // namespace sash::cuda::selected
