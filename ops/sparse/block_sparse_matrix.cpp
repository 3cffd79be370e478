#include "block_sparse_matrix.h"

#include <string>
#include <utility>

#include "../index/embedding.h"
#include "../op.h"
#include "../shape/concat.h"

namespace sash {
namespace {

Shape data_shape(const BlockPattern& pattern) {
  return {pattern.blocks(), pattern.block(), pattern.block()};
}

// One number per block, as an index on `device`.
Tensor index_of(const std::vector<int64_t>& numbers, Device device) {
  return from_host(numbers.data(), {static_cast<int64_t>(numbers.size())}, DType::int64,
                   {.dtype = DType::int64, .device = device});
}

}  // namespace

BlockSparseMatrix::BlockSparseMatrix(BlockPattern pattern, const Tensor& data)
    : pattern_(std::move(pattern)), data_(data) {
  check_defined("BlockSparseMatrix", data, "the blocks");
  check_floating("BlockSparseMatrix", data);
  check_shape("BlockSparseMatrix", data, data_shape(pattern_));
}

BlockSparseMatrix BlockSparseMatrix::zeros(const BlockPattern& pattern,
                                           const TensorOptions& options) {
  return {pattern, sash::zeros(data_shape(pattern), options)};
}

BlockSparseMatrix BlockSparseMatrix::ones(const BlockPattern& pattern,
                                          const TensorOptions& options) {
  return {pattern, sash::ones(data_shape(pattern), options)};
}

BlockSparseMatrix BlockSparseMatrix::randn(const BlockPattern& pattern,
                                           const TensorOptions& options) {
  return {pattern, sash::randn(data_shape(pattern), options)};
}

BlockSparseMatrix BlockSparseMatrix::from_dense(const Tensor& dense, const BlockPattern& pattern) {
  check_defined("BlockSparseMatrix.from_dense", dense, "a matrix");
  check_floating("BlockSparseMatrix.from_dense", dense);
  check_shape("BlockSparseMatrix.from_dense", dense, {pattern.rows(), pattern.columns()});
  std::vector<int64_t> places;
  for (const BlockCoordinate& at : pattern.coordinates()) {
    places.push_back(at.row * pattern.block_columns() + at.column);
  }
  const Tensor kept =
      embedding(detail::to_blocks(dense, pattern.block()), index_of(places, dense.device()));
  return {pattern, kept.view(data_shape(pattern))};
}

Tensor BlockSparseMatrix::to_dense() const {
  const int64_t area = pattern_.block() * pattern_.block();
  // Places without a block take the zeros at the end.
  const Tensor blocks =
      cat({data_.reshape({pattern_.blocks(), area}), sash::zeros({1, area}, data_.options())}, 0);
  return detail::from_blocks(embedding(blocks, pattern_.positions().to(data_.device())), rows(),
                             columns(), pattern_.block());
}

Tensor BlockSparseMatrix::dense_mask() const {
  const NoGradGuard no_grad;
  return ones(pattern_, data_.options()).to_dense();
}

Tensor block_norm(const BlockSparseMatrix& matrix) { return detail::norms(matrix.data()); }

BlockSparseMatrix block_replace(const BlockSparseMatrix& matrix, std::span<const int64_t> positions,
                                std::span<const BlockCoordinate> places, const Tensor& blocks) {
  constexpr const char* op = "block_replace";
  const BlockPattern& before = matrix.pattern();
  const int64_t count = before.blocks(), block = before.block();
  const auto moved = static_cast<int64_t>(positions.size());
  if (places.size() != positions.size()) {
    throw ValueError(op, std::to_string(moved) + " places", std::to_string(places.size()));
  }
  if (blocks.defined()) {
    check_compatible(op, matrix.data(), blocks);
    check_shape(op, blocks, {moved, block, block});
  }
  std::vector<BlockCoordinate> coordinates = before.coordinates();
  std::vector<int64_t> sources(static_cast<size_t>(count));
  for (int64_t k = 0; k < count; ++k) sources[static_cast<size_t>(k)] = k;
  for (size_t i = 0; i < positions.size(); ++i) {
    const int64_t k = positions[i];
    if (k < 0 || k >= count || sources[static_cast<size_t>(k)] >= count) {
      throw ValueError(op, "distinct positions below " + std::to_string(count), std::to_string(k));
    }
    coordinates[static_cast<size_t>(k)] = places[i];
    sources[static_cast<size_t>(k)] = count + static_cast<int64_t>(i);
  }
  const BlockPattern after(before.rows(), before.columns(), block, std::move(coordinates));
  const Tensor fresh =
      blocks.defined() ? blocks : zeros({moved, block, block}, matrix.data().options());
  const Tensor all = cat({matrix.data(), fresh}, 0).view({count + moved, block * block});
  const Tensor data = embedding(all, index_of(sources, all.device()));
  return {after, data.view({count, block, block})};
}

}  // namespace sash
