#include "shape.h"

#include <algorithm>
#include <limits>
#include <ostream>

#include "error.h"

namespace sash {

Dims::Dims(std::initializer_list<int64_t> values)
    : Dims(std::span<const int64_t>(values.begin(), values.size())) {}

Dims::Dims(std::span<const int64_t> values) {
  if (values.size() > static_cast<size_t>(kMaxRank)) {
    throw ShapeError("shape", "at most 8 axes", std::to_string(values.size()));
  }
  std::copy(values.begin(), values.end(), values_.begin());
  rank_ = static_cast<int>(values.size());
}

Dims Dims::filled(int rank, int64_t value) {
  Dims dims;
  for (int i = 0; i < rank; ++i) dims.push_back(value);
  return dims;
}

void Dims::push_back(int64_t value) { insert(rank_, value); }

void Dims::insert(int axis, int64_t value) {
  if (rank_ == kMaxRank) throw ShapeError("shape", "at most 8 axes", "9");
  std::copy_backward(begin() + axis, end(), end() + 1);
  values_[static_cast<size_t>(axis)] = value;
  ++rank_;
}

void Dims::erase(int axis) {
  std::copy(begin() + axis + 1, end(), begin() + axis);
  --rank_;
  values_[static_cast<size_t>(rank_)] = 0;
}

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (int i = 0; i < dims.rank(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Dims& dims) { return out << to_string(dims); }

int64_t numel(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) throw ShapeError("shape", "extents of at least 0", to_string(shape));
    if (extent == 0) return 0;
  }
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count)) {
      throw ShapeError("shape", "fewer than 2^63 elements", to_string(shape));
    }
  }
  return count;
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = Dims::filled(shape.rank(), 1);
  for (int i = shape.rank() - 2; i >= 0; --i) {
    // Only a shape without elements can overflow here, and nothing walks its strides.
    if (__builtin_mul_overflow(strides[i + 1], std::max<int64_t>(shape[i + 1], 1), &strides[i])) {
      return Dims::filled(shape.rank(), 1);
    }
  }
  return strides;
}

bool is_contiguous(const Shape& shape, const Strides& strides) {
  int64_t expected = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;
    if (shape[i] == 1) continue;
    if (strides[i] != expected) {
      return std::find(shape.begin(), shape.end(), 0) != shape.end();
    }
    expected *= shape[i];
  }
  return true;
}

int normalize_axis(int64_t axis, int rank, std::string_view op) {
  if (axis < -rank || axis >= rank) {
    throw IndexError(op,
                     "an axis in [" + std::to_string(-rank) + ", " + std::to_string(rank) +
                         ") for rank " + std::to_string(rank),
                     std::to_string(axis));
  }
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op) {
  const int rank = std::max(a.rank(), b.rank());
  Shape shape = Dims::filled(rank, 1);
  for (int i = 1; i <= rank; ++i) {
    const int64_t x = i <= a.rank() ? a[a.rank() - i] : 1;
    const int64_t y = i <= b.rank() ? b[b.rank() - i] : 1;
    if (x != y && x != 1 && y != 1) {
      throw ShapeError(op, "shapes that broadcast together", to_string(a) + " and " + to_string(b));
    }
    shape[rank - i] = x == 1 ? y : x;
  }
  return shape;
}

}  // namespace sash
