#pragma once

#include <functional>
#include <vector>

#include <sash/core/shape.h>

/// Plain float64 arrays with index loops: what ops are compared with. Slow and obvious; shares no
/// code with the library but its list of extents.
namespace sash::testing {

using Index = Dims;

struct Array {
  Shape shape;
  std::vector<double> values;  ///< row-major

  explicit Array(const Shape& shape, double value = 0);

  double& operator[](const Index& index);
  double operator[](const Index& index) const;
  /// The element at `index` of an array that this one is broadcast to.
  double broadcast(const Index& index) const { return values[position(index)]; }
  /// Its place in `values`.
  size_t position(const Index& index) const;
};

int64_t count(const Shape& shape);

/// Calls `f` for each index of `shape`, in row-major order.
void for_each_index(const Shape& shape, const std::function<void(const Index&)>& f);

/// The array whose element at each index is `f(index)`.
Array generate(const Shape& shape, const std::function<double(const Index&)>& f);
Array map(const Array& x, const std::function<double(double)>& f);
/// With both operands broadcast to the larger shape.
Array zip(const Array& a, const Array& b, const std::function<double(double, double)>& f);
Shape broadcast_shape(const Shape& a, const Shape& b);

/// `axis` counted from the front.
int positive(int64_t axis, int rank);
/// `index` without `axis`, or with `value` put in at it.
Index without(const Index& index, int axis);
Index with(const Index& index, int axis, int64_t value);
/// `index` with its entry at `axis` replaced.
Index replaced(const Index& index, int axis, int64_t value);

/// Elements of `x` along `axis` at `index`; index[axis] is ignored.
std::vector<double> line(const Array& x, const Index& index, int axis);

/// Each line along `axis` replaced by `f` of it.
Array map_lines(const Array& x, int axis,
                const std::function<std::vector<double>(const std::vector<double>&)>& f);

/// Softmax of a line; all zero if every element is -infinity.
std::vector<double> softmax_line(const std::vector<double>& x);
/// log(sum(exp(x))).
double log_sum_exp(const std::vector<double>& x);

/// Broadcast batches of matrix products; vectors as in NumPy.
Array matmul(const Array& a, const Array& b);
Array transpose(const Array& x, int64_t a, int64_t b);

/// Random word number `element` of a stream: lane element % 4 of Philox4x32 (Salmon et al., SC
/// 2011) at counter element / 4, key `seed`.
uint32_t random_word(uint64_t seed, uint64_t element);

/// Whether attention's dropout with p = T / 4096 keeps a weight: its number R of 12 bits is >= T.
/// Bit i of R is bit key % 32 of word i % 4 of a block of Philox4x32-7, whose counter is {block, 0,
/// row, 0}. A row has 5 blocks for each 64 keys: the first has bits 0 to 3 of all these keys, the
/// next two have the bits 4 to 11 of the first 32, and the last two of the others.
bool keeps_weight(uint64_t seed, int64_t row, int64_t key, double p);

}  // namespace sash::testing
