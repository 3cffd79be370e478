#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "hyper_dual.h"
#include "reference.h"

/// Plain float64 arrays with forward-mode derivatives, which random graphs are compared with. Views
/// share memory, so an in-place write reaches both, derivatives included.
namespace sash::testing {

/// A strided array: element i is (*elements)[at[i]]; views share `elements`.
struct DualArray {
  Shape shape;
  std::shared_ptr<std::vector<HyperDual>> elements;
  std::vector<size_t> at;  ///< row-major

  /// A new array whose element at each index is `f(index)`.
  static DualArray generate(const Shape& shape, const std::function<HyperDual(const Index&)>& f) {
    DualArray y{shape, std::make_shared<std::vector<HyperDual>>(), {}};
    for_each_index(shape, [&](const Index& index) {
      y.at.push_back(y.elements->size());
      y.elements->push_back(f(index));
    });
    return y;
  }
  /// A view whose element at each index is that of this array at `f(index)`.
  DualArray view(const Shape& other, const std::function<Index(const Index&)>& f) const {
    DualArray y{other, elements, {}};
    for_each_index(other, [&](const Index& index) { y.at.push_back(at[position(f(index))]); });
    return y;
  }

  HyperDual& operator[](size_t i) const { return (*elements)[at[i]]; }
  HyperDual& operator[](const Index& index) const { return (*this)[position(index)]; }
  /// The place in `at` of the element at `index` of an array that this one is broadcast to.
  size_t position(const Index& index) const {
    size_t flat = 0;
    const int skipped = index.rank() - shape.rank();
    for (int axis = 0; axis < shape.rank(); ++axis) {
      const int64_t own = shape[axis] == 1 ? 0 : index[axis + skipped];
      flat = flat * static_cast<size_t>(shape[axis]) + static_cast<size_t>(own);
    }
    return flat;
  }
  size_t count() const { return at.size(); }
};

using Duals = std::vector<HyperDual>;

inline DualArray map(const DualArray& x, const std::function<HyperDual(const HyperDual&)>& f) {
  return DualArray::generate(x.shape, [&](const Index& index) { return f(x[index]); });
}

inline DualArray zip(const DualArray& a, const DualArray& b,
                     const std::function<HyperDual(const HyperDual&, const HyperDual&)>& f) {
  return DualArray::generate(broadcast_shape(a.shape, b.shape),
                             [&](const Index& index) { return f(a[index], b[index]); });
}

/// Elements of `x` along `axis` at `index`; index[axis] is ignored.
inline Duals line(const DualArray& x, const Index& index, int axis) {
  Duals elements;
  for (int64_t i = 0; i < x.shape[axis]; ++i) elements.push_back(x[replaced(index, axis, i)]);
  return elements;
}

/// Each line along `axis` replaced by `f` of it.
inline DualArray map_lines(const DualArray& x, int axis,
                           const std::function<Duals(const Duals&)>& f) {
  return DualArray::generate(x.shape, [&](const Index& index) {
    return f(line(x, index, axis))[static_cast<size_t>(index[axis])];
  });
}

inline DualArray reduce(const DualArray& x, int axis, bool keepdim,
                        const std::function<HyperDual(const Duals&)>& f) {
  const Shape kept = replaced(x.shape, axis, 1);
  return DualArray::generate(keepdim ? kept : without(kept, axis), [&](const Index& index) {
    return f(line(x, keepdim ? index : with(index, axis, 0), axis));
  });
}

inline HyperDual sum(const Duals& x) {
  HyperDual total;
  for (const HyperDual& element : x) total = total + element;
  return total;
}

inline HyperDual log_sum(const Duals& x) {
  HyperDual total;
  for (const HyperDual& element : x) total = total + exp(element);
  return log(total);
}

inline Duals softmax(const Duals& x) {
  const HyperDual scale = log_sum(x);
  Duals y;
  for (const HyperDual& element : x) y.push_back(exp(element - scale));
  return y;
}

/// Products of matrices; batches are broadcast.
inline DualArray matmul(const DualArray& a, const DualArray& b) {
  const auto batch = [](Shape shape) {
    shape.erase(shape.rank() - 1);
    shape.erase(shape.rank() - 1);
    return shape;
  };
  Shape shape = broadcast_shape(batch(a.shape), batch(b.shape));
  shape.push_back(a.shape[a.shape.rank() - 2]);
  shape.push_back(b.shape.back());
  return DualArray::generate(shape, [&](const Index& index) {
    HyperDual total;
    const int rank = index.rank();
    for (int64_t k = 0; k < a.shape.back(); ++k) {
      total = total + a[replaced(index, rank - 1, k)] * b[replaced(index, rank - 2, k)];
    }
    return total;
  });
}

}  // namespace sash::testing
