#pragma once

#include "../elementwise/compute.cuh"

/// Lines of elements along one axis, which are ordered by keys. A key is an unsigned number. The
/// element with the largest key is the first of the result. Equal elements have equal keys, NaN has
/// the largest. If the smallest elements come first, all bits of the keys are flipped.
namespace sash::cuda {

template <class A>
using ordered_t = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;

template <class A>
__device__ ordered_t<A> ascending_key(A x) {
  using Key = ordered_t<A>;
  constexpr Key sign = Key{1} << (8 * sizeof(Key) - 1);
  if constexpr (std::is_integral_v<A>) {
    return static_cast<Key>(x) ^ sign;
  } else {
    if (x != x) return ~Key{0};
    if (x == 0) return sign;  // -0 too
    Key bits;
    if constexpr (sizeof(A) == 8) {
      bits = static_cast<Key>(__double_as_longlong(x));
    } else {
      bits = __float_as_uint(x);
    }
    return bits & sign ? ~bits : bits | sign;
  }
}

template <class A>
__device__ ordered_t<A> key_of(A x, bool largest) {
  const ordered_t<A> key = ascending_key(x);
  return largest ? key : static_cast<ordered_t<A>>(~key);
}

/// The lines along the axis. The walk is over the other axes of x, values and indices.
struct Lines {
  Walk<3> starts;
  int64_t length, chosen;
  int64_t x_step, value_step, index_step;
  bool largest;

  Lines(View x, View values, View indices, int axis, bool largest_first)
      : starts(walk_without<3>(axis, {x, values, indices})),
        length(x.shape[axis]),
        chosen(values.shape[axis]),
        x_step(x.strides[axis]),
        value_step(values.strides[axis]),
        index_step(indices.strides[axis]),
        largest(largest_first) {}
};

/// A block sorts a line of up to this many elements at a time.
inline constexpr int64_t kLongestSorted = 4096;

/// Sorts such lines of x, and writes the first of each to values and indices.
void sort_lines(const KernelContext& context, const Lines& lines, DType dtype, const void* x,
                void* values, int64_t* indices);

}  // namespace sash::cuda
