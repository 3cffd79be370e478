#include "block_regrowth.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "../nn/layers/linear.h"
#include "../ops/checks.h"
#include "../ops/sparse/block_sparse_matrix.h"
#include "../tensor/autograd/grad_mode.h"

namespace sash::optim {
namespace {

// The places without a block, in row-major order.
std::vector<BlockCoordinate> free_places(const BlockPattern& pattern) {
  const std::vector<int64_t> positions = pattern.positions().to_vector<int64_t>();
  std::vector<BlockCoordinate> places;
  for (int64_t i = 0; i < static_cast<int64_t>(positions.size()); ++i) {
    if (positions[static_cast<size_t>(i)] < pattern.blocks()) continue;
    places.push_back({i / pattern.block_columns(), i % pattern.block_columns()});
  }
  return places;
}

// The `count` blocks of the smallest norms; of equal ones the first.
std::vector<int64_t> weakest(const BlockSparseMatrix& matrix, size_t count) {
  const std::vector<double> norm = block_norm(matrix).to(DType::float64).to_vector<double>();
  std::vector<int64_t> blocks(norm.size());
  std::iota(blocks.begin(), blocks.end(), int64_t{0});
  std::stable_sort(blocks.begin(), blocks.end(), [&](int64_t a, int64_t b) {
    const double x = norm[static_cast<size_t>(a)], y = norm[static_cast<size_t>(b)];
    return std::isnan(x) ? false : std::isnan(y) || x < y;
  });
  blocks.resize(count);
  return blocks;
}

void choose(std::vector<BlockCoordinate>& places, size_t count, std::mt19937_64& generator) {
  for (size_t i = 0; i < count; ++i) {
    std::swap(places[i], places[i + static_cast<size_t>(generator() % (places.size() - i))]);
  }
  places.resize(count);
}

int64_t regrow(Optimizer& optimizer, nn::Linear& layer, const BlockRegrowthOptions& options,
               std::mt19937_64& generator) {
  const BlockSparseMatrix before{layer.block_sparse_weight().pattern(), layer.weight.detach()};
  const auto wanted =
      static_cast<size_t>(options.fraction * static_cast<double>(before.pattern().blocks()));
  std::vector<BlockCoordinate> places = free_places(before.pattern());
  const size_t count = std::min(wanted, places.size());
  if (count == 0) return 0;
  choose(places, count, generator);
  const std::vector<int64_t> blocks = weakest(before, count);
  const BlockSparseMatrix after = block_replace(before, blocks, places);
  if (const Tensor grad = layer.weight.grad(); grad.defined()) {
    layer.weight.set_grad(block_replace({before.pattern(), grad}, blocks, places).data());
  }
  optimizer.reset_moments(layer.weight, blocks);
  layer.weight.copy_(after.data());
  layer.weight_blocks.copy_(after.pattern().to_tensor());
  if (options.average) options.average->reset(layer.weight, blocks);
  return static_cast<int64_t>(count);
}

}  // namespace

int64_t regrow_blocks(Optimizer& optimizer, nn::Module& model,
                      const BlockRegrowthOptions& options) {
  check_probability("regrow_blocks", "a fraction", options.fraction);
  std::vector<nn::Linear*> layers;
  for (const auto& [name, module] : model.named_modules()) {
    auto* const layer = dynamic_cast<nn::Linear*>(module);
    if (!layer || !layer->is_block_sparse()) continue;
    optimizer.reset_moments(layer->weight, {});  // throws unless it is the optimizer's
    if (options.average) options.average->reset(layer->weight, {});
    layers.push_back(layer);
  }
  const NoGradGuard no_grad;
  std::mt19937_64 generator(options.seed);
  int64_t moved = 0;
  for (nn::Linear* const layer : layers) {
    moved += regrow(optimizer, *layer, options, generator);
  }
  return moved;
}

}  // namespace sash::optim
