#include "reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace sash::testing {
namespace {

size_t flat(const Shape& shape, const Index& index) {
  int64_t at = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) at = at * shape[axis] + index[axis];
  return static_cast<size_t>(at);
}

}  // namespace

Array::Array(const Shape& extents, double value)
    : shape(extents), values(static_cast<size_t>(count(extents)), value) {}

double& Array::operator[](const Index& index) { return values.at(flat(shape, index)); }
double Array::operator[](const Index& index) const { return values.at(flat(shape, index)); }

size_t Array::position(const Index& index) const {
  Index own = Dims::filled(shape.rank(), 0);
  const int skipped = index.rank() - shape.rank();
  for (int axis = 0; axis < shape.rank(); ++axis) {
    own[axis] = shape[axis] == 1 ? 0 : index[axis + skipped];
  }
  return flat(shape, own);
}

int64_t count(const Shape& shape) {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

void for_each_index(const Shape& shape, const std::function<void(const Index&)>& f) {
  Index index = Dims::filled(shape.rank(), 0);
  for (int64_t i = 0, n = count(shape); i < n; ++i) {
    f(index);
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      if (++index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
  }
}

Array generate(const Shape& shape, const std::function<double(const Index&)>& f) {
  Array y(shape);
  size_t next = 0;
  for_each_index(shape, [&](const Index& index) { y.values[next++] = f(index); });
  return y;
}

Array map(const Array& x, const std::function<double(double)>& f) {
  Array y = x;
  for (double& value : y.values) value = f(value);
  return y;
}

Shape broadcast_shape(const Shape& a, const Shape& b) {
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  Shape result = longer;
  for (int i = 1; i <= shorter.rank(); ++i) {
    int64_t& extent = result[longer.rank() - i];
    if (extent == 1) extent = shorter[shorter.rank() - i];
  }
  return result;
}

Array zip(const Array& a, const Array& b, const std::function<double(double, double)>& f) {
  return generate(broadcast_shape(a.shape, b.shape),
                  [&](const Index& index) { return f(a.broadcast(index), b.broadcast(index)); });
}

int positive(int64_t axis, int rank) { return static_cast<int>(axis < 0 ? axis + rank : axis); }

Index without(const Index& index, int axis) {
  Index shorter;
  for (int i = 0; i < index.rank(); ++i) {
    if (i != axis) shorter.push_back(index[i]);
  }
  return shorter;
}

Index with(const Index& index, int axis, int64_t value) {
  Index longer;
  for (int i = 0; i <= index.rank(); ++i) {
    if (i == axis) longer.push_back(value);
    if (i < index.rank()) longer.push_back(index[i]);
  }
  return longer;
}

Index replaced(const Index& index, int axis, int64_t value) {
  Index other = index;
  other[axis] = value;
  return other;
}

std::vector<double> line(const Array& x, const Index& index, int axis) {
  std::vector<double> elements;
  for (int64_t i = 0; i < x.shape[axis]; ++i) elements.push_back(x[replaced(index, axis, i)]);
  return elements;
}

Array map_lines(const Array& x, int axis,
                const std::function<std::vector<double>(const std::vector<double>&)>& f) {
  Array y = x;
  if (x.shape[axis] == 0) return y;
  for_each_index(replaced(x.shape, axis, 1), [&](const Index& index) {
    const std::vector<double> mapped = f(line(x, index, axis));
    for (int64_t i = 0; i < x.shape[axis]; ++i) {
      y[replaced(index, axis, i)] = mapped[static_cast<size_t>(i)];
    }
  });
  return y;
}

double log_sum_exp(const std::vector<double>& x) {
  if (x.empty()) return -std::numeric_limits<double>::infinity();
  const double top = *std::max_element(x.begin(), x.end());
  if (std::isinf(top)) return top;
  double sum = 0;
  for (const double value : x) sum += std::exp(value - top);
  return top + std::log(sum);
}

std::vector<double> softmax_line(const std::vector<double>& x) {
  const double scale = log_sum_exp(x);
  std::vector<double> y(x.size());
  if (std::isinf(scale) && scale < 0) return y;
  for (size_t i = 0; i < x.size(); ++i) y[i] = std::exp(x[i] - scale);
  return y;
}

Array transpose(const Array& x, int64_t a, int64_t b) {
  const int i = positive(a, x.shape.rank()), j = positive(b, x.shape.rank());
  const auto swapped = [&](Dims dims) {
    std::swap(dims[i], dims[j]);
    return dims;
  };
  return generate(swapped(x.shape), [&](const Index& index) { return x[swapped(index)]; });
}

Array matmul(const Array& a, const Array& b) {
  Array left = a, right = b;
  if (a.shape.rank() == 1) left.shape = {1, a.shape[0]};
  if (b.shape.rank() == 1) right.shape = {b.shape[0], 1};
  const auto batch = [](Shape shape) {
    shape.erase(shape.rank() - 1);
    shape.erase(shape.rank() - 1);
    return shape;
  };
  const int64_t rows = left.shape[left.shape.rank() - 2], columns = right.shape.back();
  Shape full = broadcast_shape(batch(left.shape), batch(right.shape));
  full.push_back(rows);
  full.push_back(columns);
  Array y = generate(full, [&](const Index& index) {
    if (left.shape.back() == 0) return 0.0;
    const double* row = &left.values[left.position(replaced(index, index.rank() - 1, 0))];
    const double* column = &right.values[right.position(replaced(index, index.rank() - 2, 0))];
    double sum = 0;
    for (int64_t k = 0; k < left.shape.back(); ++k) sum += row[k] * column[k * columns];
    return sum;
  });
  if (b.shape.rank() == 1) y.shape.erase(y.shape.rank() - 1);
  if (a.shape.rank() == 1) y.shape.erase(y.shape.rank() - (b.shape.rank() == 1 ? 1 : 2));
  return y;
}

namespace {

/// Word `lane` of Philox4x32 of `rounds` rounds.
uint32_t philox_word(uint64_t seed, std::array<uint64_t, 4> counter, int lane, int rounds) {
  const uint64_t low = 0xFFFFFFFF;
  uint64_t key[2] = {seed & low, seed >> 32};
  for (int round = 0; round < rounds; ++round) {
    const uint64_t first = 0xD2511F53 * counter[0], second = 0xCD9E8D57 * counter[2];
    counter = {(second >> 32) ^ counter[1] ^ key[0], second & low,
               (first >> 32) ^ counter[3] ^ key[1], first & low};
    key[0] = (key[0] + 0x9E3779B9) & low;
    key[1] = (key[1] + 0xBB67AE85) & low;
  }
  return static_cast<uint32_t>(counter[static_cast<size_t>(lane)]);
}

}  // namespace

uint32_t random_word(uint64_t seed, uint64_t element) {
  const uint64_t block = element / 4;
  return philox_word(seed, {block & 0xFFFFFFFF, block >> 32, 0, 0}, static_cast<int>(element % 4),
                     10);
}

bool keeps_weight(uint64_t seed, int64_t row, int64_t key, double p) {
  uint32_t number = 0;
  for (int bit = 0; bit < 12; ++bit) {
    const int64_t block = key / 64 * 5 + (bit < 4 ? 0 : key / 32 % 2 * 2 + bit / 4);
    number |=
        (philox_word(seed, {uint64_t(block), 0, uint64_t(row), 0}, bit % 4, 7) >> key % 32 & 1)
        << bit;
  }
  return number >= p * 4096;
}

}  // namespace sash::testing
