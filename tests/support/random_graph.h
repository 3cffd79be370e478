#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sash/tensor/tensor.h>

#include "dual_array.h"
#include "random_numbers.h"

namespace sash::testing {

/// A graph of random ops over random shapes, run by sash and by plain loops side by side. What is
/// drawn depends on the seed alone, so that one seed makes one graph for every dtype and device.
class RandomGraph {
 public:
  /// Elements go to the device once, if `kept` lives on: graphs of the same seed take them from
  /// there, in the order in which they were made.
  RandomGraph(uint64_t seed, DType dtype, Device device, std::vector<Tensor>* kept = nullptr);

  /// Adds `count` random ops: elementwise, reductions, products, views, indices and,
  /// sometimes, in-place writes.
  void grow(int count);
  /// The ops, one a line.
  const std::string& text() const { return text_; }
  bool has_writes() const { return writes_ > 0; }
  /// Whether the numbers stay small and away from kinks, so that rounding cannot change much.
  bool well_conditioned() const;
  /// The elements on the device, as a leaf or constant.
  Tensor tensor_of(const std::vector<double>& elements, const Shape& shape, DType dtype,
                   bool requires_grad = false);

  struct Value {
    Tensor tensor;
    DualArray expected;
    bool overlaps = false;        ///< a broadcast view, whose elements share memory
    bool in_leaf_memory = false;  ///< of a leaf that requires grad: not to be written
  };
  std::vector<Value> leaves;  ///< those that require grad
  std::vector<Value> values;  ///< all, leaves first

 private:
  void add_leaf(const Shape& shape, bool requires_grad);
  void add_op();
  void add_unary();
  void add_binary();
  void add_scalar();
  void add_reduction();
  void add_row_op();
  void add_product();
  void add_view();
  void add_indexed();
  void add_joined();
  void add_write();
  /// Adds a result; `of` is its base if it is a view.
  void add(const std::string& what, Tensor tensor, DualArray expected, const Value* of = nullptr);

  Shape random_shape();
  /// Broadcasts with `shape`.
  Shape fitting_shape(const Shape& shape);
  /// A random value, mostly a recent one.
  size_t pick();
  /// A value that broadcasts with value `i`: an existing one or a new leaf.
  size_t pick_fitting(size_t i);
  Tensor index_tensor(const std::vector<int64_t>& index, const Shape& shape) {
    return tensor_of({index.begin(), index.end()}, shape, DType::int64);
  }
  double random_number() { return 4 * random_.uniform() - 2; }

  RandomNumbers random_;
  DType dtype_;
  Device device_;
  std::vector<Tensor>* kept_;
  size_t taken_ = 0;
  std::string text_;
  int writes_ = 0;
  double nearest_kink_ = 1;
};

}  // namespace sash::testing
