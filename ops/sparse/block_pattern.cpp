#include "block_pattern.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <unordered_map>

#include "../elementwise/binary.h"
#include "../elementwise/compare.h"
#include "../elementwise/unary.h"
#include "../kernels/sparse.h"
#include "../op.h"
#include "../reduce/reduce.h"

namespace sash {
namespace {

constexpr const char* kOp = "BlockPattern";

constexpr int64_t kMostBlocks = (int64_t{1} << 30) - 1;

// Kernels count rows and columns of blocks with int32.
void check_counts(int64_t block_rows, int64_t block_columns) {
  if (std::max(block_rows, block_columns) <= std::numeric_limits<int32_t>::max()) return;
  throw ShapeError(kOp, "fewer than 2^31 rows and columns of blocks",
                   to_string({block_rows, block_columns}));
}

void check_blocks(double blocks) {
  if (blocks <= static_cast<double>(kMostBlocks)) return;
  throw ValueError(kOp, "fewer than 2^30 blocks", to_text(blocks));
}

void check_grid(int64_t rows, int64_t columns, int64_t block) {
  if (block != 16 && block != 32 && block != 64 && block != 128) {
    throw ValueError(kOp, "blocks of 16, 32, 64 or 128", std::to_string(block));
  }
  check_not_negative(kOp, "a number of rows", rows);
  check_not_negative(kOp, "a number of columns", columns);
  if (rows % block != 0 || columns % block != 0) {
    throw ShapeError(kOp, "extents that blocks of " + std::to_string(block) + " divide",
                     to_string({rows, columns}));
  }
  check_counts(rows / block, columns / block);
}

void check_dense(const Tensor& dense, int64_t block) {
  check_defined(kOp, dense, "a matrix");
  check_floating(kOp, dense);
  check_rank(kOp, dense, 2);
  check_grid(dense.size(0), dense.size(1), block);
}

std::string text(const BlockCoordinate& at) {
  return "(" + std::to_string(at.row) + ", " + std::to_string(at.column) + ")";
}

// How many blocks of `all` a density means.
int64_t count_of(double density, int64_t all) {
  check_probability(kOp, "a density", density);
  check_blocks(density * static_cast<double>(all));
  const auto count = static_cast<int64_t>(std::llround(density * static_cast<double>(all)));
  return density > 0 && all > 0 ? std::max<int64_t>(count, 1) : count;
}

// 0, 1, ..., count - 1.
std::vector<int64_t> first_numbers(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

// The blocks whose numbers, in row-major order, are `numbers`.
std::vector<BlockCoordinate> sorted_places(std::vector<int64_t> numbers, int64_t block_columns) {
  std::sort(numbers.begin(), numbers.end());
  std::vector<BlockCoordinate> places;
  for (const int64_t number : numbers) {
    places.push_back({number / block_columns, number % block_columns});
  }
  return places;
}

// Lines as `kernels::BlockLines` has them, in one vector.
struct Lines {
  std::vector<int32_t> starts, other, positions, order;

  Lines(const std::vector<BlockCoordinate>& blocks, int64_t count, bool by_row)
      : starts(static_cast<size_t>(count) + 1), order(static_cast<size_t>(count)) {
    const auto line = [&](size_t e) {
      return static_cast<size_t>(by_row ? blocks[e].row : blocks[e].column);
    };
    const auto across = [&](size_t e) { return by_row ? blocks[e].column : blocks[e].row; };
    std::vector<size_t> sorted(blocks.size());
    std::iota(sorted.begin(), sorted.end(), size_t{0});
    std::sort(sorted.begin(), sorted.end(), [&](size_t a, size_t b) {
      return std::pair(line(a), across(a)) < std::pair(line(b), across(b));
    });
    for (const size_t e : sorted) {
      ++starts[line(e) + 1];
      other.push_back(static_cast<int32_t>(across(e)));
      positions.push_back(static_cast<int32_t>(e));
    }
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return length(a) > length(b); });
  }

  int32_t length(int32_t line) const {
    const auto l = static_cast<size_t>(line);
    return starts[l + 1] - starts[l];
  }
};

std::vector<kernels::BlockGroup> groups_of(const Lines& rows, int64_t block) {
  const auto most = static_cast<int32_t>(kernels::blocks_per_group(block));
  std::vector<kernels::BlockGroup> groups;
  for (const int32_t row : rows.order) {
    const int32_t length = rows.length(row), pieces = (length + most - 1) / most;
    const int32_t first = rows.starts[static_cast<size_t>(row)];
    for (int32_t piece = 0; piece < pieces; ++piece) {
      const int32_t begin = length * piece / pieces, end = length * (piece + 1) / pieces;
      groups.push_back({row, first + begin, end - begin});
    }
  }
  return groups;
}

}  // namespace

struct BlockPattern::State {
  int64_t rows, columns, block;
  std::vector<BlockCoordinate> coordinates;

  std::mutex mutex;
  Tensor host;                  // all indices, one after the other, int32; undefined until needed
  std::vector<Tensor> devices;  // its copies
  int64_t group_count = 0;

  void make_indices() {
    const Lines by_row(coordinates, rows / block, true);
    const Lines by_column(coordinates, columns / block, false);
    const std::vector<kernels::BlockGroup> groups = groups_of(by_row, block);
    group_count = static_cast<int64_t>(groups.size());
    std::vector<int32_t> all;
    for (const Lines* lines : {&by_row, &by_column}) {
      for (const auto* part : {&lines->starts, &lines->other, &lines->positions, &lines->order}) {
        all.insert(all.end(), part->begin(), part->end());
      }
    }
    for (const kernels::BlockGroup& group : groups) {
      all.insert(all.end(), {group.row, group.first, group.count});
    }
    host = from_host(all.data(), {static_cast<int64_t>(all.size())}, DType::int32,
                     {.dtype = DType::int32, .device = kCPU});
  }

  const Tensor& indices(Device device) {
    const std::lock_guard lock(mutex);
    const NoGradGuard no_grad;
    if (!host.defined()) make_indices();
    if (device.is_cpu()) return host;
    for (const Tensor& copy : devices) {
      if (copy.device() == device) return copy;
    }
    devices.reserve(64);  // references into it stay valid
    const Tensor& copy = devices.emplace_back(host.to(device));
    synchronize(device);  // other streams may use it at once
    return copy;
  }
};

BlockPattern::BlockPattern(int64_t rows, int64_t columns, int64_t block,
                           std::vector<BlockCoordinate> coordinates) {
  check_grid(rows, columns, block);
  check_blocks(static_cast<double>(coordinates.size()));
  std::vector<int64_t> taken;
  taken.reserve(coordinates.size());
  for (const BlockCoordinate& at : coordinates) {
    if (at.row < 0 || at.row >= rows / block || at.column < 0 || at.column >= columns / block) {
      throw ValueError(kOp, "blocks within " + to_string({rows / block, columns / block}),
                       text(at));
    }
    taken.push_back(at.row * (columns / block) + at.column);
  }
  std::sort(taken.begin(), taken.end());
  if (const auto twice = std::adjacent_find(taken.begin(), taken.end()); twice != taken.end()) {
    const BlockCoordinate at{*twice / (columns / block), *twice % (columns / block)};
    throw ValueError(kOp, "each block once", text(at) + " twice");
  }
  state_ = std::make_shared<State>();
  state_->rows = rows;
  state_->columns = columns;
  state_->block = block;
  state_->coordinates = std::move(coordinates);
}

BlockPattern BlockPattern::full(int64_t rows, int64_t columns, int64_t block) {
  check_grid(rows, columns, block);
  const int64_t all = (rows / block) * (columns / block);
  return BlockPattern(rows, columns, block,
                      sorted_places(first_numbers(count_of(1, all)), columns / block));
}

BlockPattern BlockPattern::random(int64_t rows, int64_t columns, int64_t block, double density,
                                  uint64_t seed) {
  check_grid(rows, columns, block);
  const int64_t all = (rows / block) * (columns / block), count = count_of(density, all);
  std::vector<int64_t> numbers = first_numbers(count);
  // The beginning of a random permutation of all numbers, of which those that moved are kept.
  std::unordered_map<int64_t, int64_t> moved;
  const auto at = [&](int64_t place) {
    const auto found = moved.find(place);
    return found == moved.end() ? place : found->second;
  };
  std::mt19937_64 generator(seed);
  for (int64_t i = 0; i < count && count < all; ++i) {
    const auto left = static_cast<uint64_t>(all - i);
    const int64_t other = i + static_cast<int64_t>(generator() % left);
    numbers[static_cast<size_t>(i)] = at(other);
    moved[other] = at(i);
  }
  return BlockPattern(rows, columns, block, sorted_places(std::move(numbers), columns / block));
}

BlockPattern BlockPattern::from_mask(const Tensor& mask, int64_t block) {
  check_defined(kOp, mask, "a mask");
  check_dtype(kOp, mask, DType::boolean);
  check_rank(kOp, mask, 2);
  check_counts(mask.size(0), mask.size(1));
  const std::vector<uint8_t> marks = mask.to(DType::uint8).to_vector<uint8_t>();
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < marks.size(); ++i) {
    if (marks[i] != 0) numbers.push_back(static_cast<int64_t>(i));
  }
  return BlockPattern(mask.size(0) * block, mask.size(1) * block, block,
                      sorted_places(std::move(numbers), mask.size(1)));
}

BlockPattern BlockPattern::largest(const Tensor& dense, int64_t block, double density) {
  check_dense(dense, block);
  const int64_t rows = dense.size(0), columns = dense.size(1);
  const NoGradGuard no_grad;
  const std::vector<double> norm = detail::norms(detail::to_blocks(dense.detach(), block))
                                       .to(DType::float64)
                                       .to_vector<double>();
  const auto all = static_cast<int64_t>(norm.size()), count = count_of(density, all);
  std::vector<int64_t> numbers(norm.size());
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  std::stable_sort(numbers.begin(), numbers.end(), [&](int64_t a, int64_t b) {
    const double x = norm[static_cast<size_t>(a)], y = norm[static_cast<size_t>(b)];
    return std::isnan(y) ? false : std::isnan(x) || x > y;  // what is NaN is not dropped silently
  });
  numbers.resize(static_cast<size_t>(count));
  return BlockPattern(rows, columns, block, sorted_places(std::move(numbers), columns / block));
}

BlockPattern BlockPattern::nonzero(const Tensor& dense, int64_t block) {
  check_dense(dense, block);
  const int64_t rows = dense.size(0), columns = dense.size(1);
  const NoGradGuard no_grad;
  const Tensor other = ne(detail::to_blocks(dense.detach(), block), 0).to(DType::float32);
  const Tensor mask = gt(sum(other, {1}), 0).view({rows / block, columns / block});
  return from_mask(mask, block);
}

BlockPattern BlockPattern::from_tensor(const Tensor& coordinates, int64_t rows, int64_t columns,
                                       int64_t block) {
  check_defined(kOp, coordinates, "coordinates");
  if (coordinates.dtype() != DType::int32 && coordinates.dtype() != DType::int64) {
    throw DTypeError(kOp, "int32 or int64", name(coordinates.dtype()));
  }
  if (coordinates.rank() != 2 || coordinates.size(1) != 2) {
    throw ShapeError(kOp, "coordinates [blocks, 2]", to_string(coordinates.shape()));
  }
  const std::vector<int64_t> numbers = coordinates.to_vector<int64_t>();
  std::vector<BlockCoordinate> places;
  for (size_t i = 0; i < numbers.size(); i += 2) places.push_back({numbers[i], numbers[i + 1]});
  return BlockPattern(rows, columns, block, std::move(places));
}

int64_t BlockPattern::rows() const { return state_->rows; }
int64_t BlockPattern::columns() const { return state_->columns; }
int64_t BlockPattern::block() const { return state_->block; }
const std::vector<BlockCoordinate>& BlockPattern::coordinates() const {
  return state_->coordinates;
}

double BlockPattern::density() const {
  const int64_t all = block_rows() * block_columns();
  return all > 0 ? static_cast<double>(blocks()) / static_cast<double>(all) : 0;
}

Tensor BlockPattern::to_tensor() const {
  std::vector<int32_t> numbers;
  for (const BlockCoordinate& at : coordinates()) {
    numbers.push_back(static_cast<int32_t>(at.row));
    numbers.push_back(static_cast<int32_t>(at.column));
  }
  return from_host(numbers.data(), {blocks(), 2}, DType::int32,
                   {.dtype = DType::int32, .device = kCPU});
}

Tensor BlockPattern::mask() const {
  const NoGradGuard no_grad;
  return lt(positions(), blocks()).view({block_rows(), block_columns()});
}

Tensor BlockPattern::positions() const {
  Tensor places = sash::full({block_rows() * block_columns()}, blocks(),
                             {.dtype = DType::int64, .device = kCPU});
  int64_t* const of = places.data<int64_t>();
  for (int64_t k = 0; k < blocks(); ++k) {
    const BlockCoordinate at = coordinates()[static_cast<size_t>(k)];
    of[at.row * block_columns() + at.column] = k;
  }
  return places;
}

bool operator==(const BlockPattern& a, const BlockPattern& b) {
  return a.state_ == b.state_ || (a.rows() == b.rows() && a.columns() == b.columns() &&
                                  a.block() == b.block() && a.coordinates() == b.coordinates());
}

kernels::BlockPatternView BlockPattern::view(Device device) const {
  const Tensor& indices = state_->indices(device);
  const auto* at = indices.data<const int32_t>();
  const auto take = [&at](int64_t count) {
    const int32_t* const part = at;
    at += count;
    return part;
  };
  const auto lines = [&](int64_t count) {
    kernels::BlockLines result;
    result.count = count;
    result.starts = take(count + 1);
    result.other = take(blocks());
    result.positions = take(blocks());
    result.order = take(count);
    return result;
  };
  kernels::BlockPatternView view;
  view.block = block();
  view.blocks = blocks();
  view.rows = lines(block_rows());
  view.columns = lines(block_columns());
  view.groups = reinterpret_cast<const kernels::BlockGroup*>(at);
  view.group_count = state_->group_count;
  return view;
}

namespace detail {

Tensor to_blocks(const Tensor& x, int64_t block) {
  const int64_t rows = x.size(0) / block, columns = x.size(1) / block;
  return x.reshape({rows, block, columns, block})
      .permute({0, 2, 1, 3})
      .reshape({rows * columns, block * block});
}

Tensor from_blocks(const Tensor& blocks, int64_t rows, int64_t columns, int64_t block) {
  return blocks.view({rows / block, columns / block, block, block})
      .permute({0, 2, 1, 3})
      .reshape({rows, columns});
}

Tensor norms(const Tensor& x) {
  const Tensor wide = is_half(x.dtype()) ? x.to(DType::float32) : x;
  const Tensor flat = x.rank() > 2 ? wide.flatten(1) : wide;
  const Tensor squares = sum(square(flat), {1});
  // sqrt has no derivative at 0; sqrt(0 + 1) - 1 is 0 with the derivative wanted.
  const Tensor zero = eq(squares.detach(), 0).to(squares.dtype());
  return sqrt(squares + zero) - zero;
}

}  // namespace detail
}  // namespace sash
