#include "block_sparse_linear.h"

#include <algorithm>
#include <cmath>

#include "../../ops/checks.h"
#include "../../ops/linalg/linear.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../../tensor/random.h"
#include "../../tensor/tensor_impl.h"
#include "../check.h"
#include "../init.h"
#include "../name_pattern.h"

namespace sash::nn {
namespace {

BlockPattern random_pattern(int64_t in, int64_t out, const BlockSparseLinearOptions& options) {
  check_positive("BlockSparseLinear", "in_features", in);
  check_positive("BlockSparseLinear", "out_features", out);
  uint64_t seed = options.seed.value_or(0);
  if (!options.seed) {
    const PhiloxState own = next_philox(default_device(), 4);
    const PhiloxBlock bits = philox(own.seed, own.offset);
    seed = uint64_t{bits.lane[0]} << 32 | bits.lane[1];
  }
  return BlockPattern::random(out, in, options.block, options.density, seed);
}

double bound_of(const BlockPattern& pattern) {
  const double inputs = pattern.density() * static_cast<double>(pattern.columns());
  return 1 / std::sqrt(std::max(inputs, 1.0));
}

Tensor uniform(const Shape& shape, double bound) {
  const Tensor x = empty(shape);
  init::uniform_(x, -bound, bound);
  return x;
}

BlockSparseMatrix uniform_matrix(const BlockPattern& pattern) {
  return {pattern,
          uniform({pattern.blocks(), pattern.block(), pattern.block()}, bound_of(pattern))};
}

Tensor uniform_bias(const BlockPattern& pattern, bool bias) {
  return bias ? uniform({pattern.rows()}, bound_of(pattern)) : Tensor();
}

BlockSparseMatrix blocks_of(const Linear& dense, const BlockPattern& pattern) {
  if (dense.is_block_sparse()) {
    throw ValueError("BlockSparseLinear", "a dense layer", "a block-sparse one");
  }
  const NoGradGuard no_grad;
  return BlockSparseMatrix::from_dense(dense.weight.detach(), pattern);
}

struct Target {
  std::string name;
  Linear* layer;
};

// The layers below `model`, but not itself.
std::vector<Target> linear_layers(Module& model) {
  std::vector<Target> layers;
  for (const auto& [name, module] : model.named_modules()) {
    auto* const layer = dynamic_cast<Linear*>(module);
    if (layer && layer->weight.defined()) layers.push_back({name, layer});
  }
  return layers;
}

bool is_tied(const Module& model, const Linear& layer) {
  int64_t users = 0;
  for (const auto& [name, tensor] : model.state_dict()) {
    users += tensor.impl().storage == layer.weight.impl().storage ? 1 : 0;
  }
  return users > 1;
}

std::vector<Target> matching(Module& model, const std::string& pattern) {
  const NamePattern wanted("sparsify", pattern);
  std::vector<Target> targets;
  std::string others;
  for (const Target& target : linear_layers(model)) {
    if (!wanted.matches(target.name)) {
      others += (others.empty() ? "" : ", ") + target.name;
    } else if (target.layer->is_block_sparse()) {
      throw ValueError("sparsify", "dense layers", target.name + ", which is block-sparse");
    } else if (is_tied(model, *target.layer)) {
      throw ValueError("sparsify", "weights of their own", target.name + ", whose weight is tied");
    } else {
      targets.push_back(target);
    }
  }
  if (targets.empty()) {
    throw ValueError("sparsify", "the names of Linear layers, such as " + others,
                     "'" + pattern + "'");
  }
  return targets;
}

BlockPattern choose(const Linear& layer, double density, const SparsifyOptions& options,
                    uint64_t number) {
  const int64_t out = layer.out_features(), in = layer.in_features();
  if (options.choice == BlockChoice::random) {
    return BlockPattern::random(out, in, options.block, density, options.seed + number);
  }
  if (options.choice == BlockChoice::nonzero) {
    return BlockPattern::nonzero(layer.weight, options.block);
  }
  return BlockPattern::largest(layer.weight, options.block, density);
}

std::vector<std::string> make_sparse(const std::vector<Target>& targets,
                                     const std::vector<BlockSparseMatrix>& matrices) {
  std::vector<std::string> names;
  for (size_t i = 0; i < targets.size(); ++i) {
    targets[i].layer->set_block_sparse_weight(matrices[i]);
    names.push_back(targets[i].name);
  }
  return names;
}

// The errors of `call` with the layer's name.
template <class Call>
auto for_layer(const std::string& name, Call&& call) {
  try {
    return call();
  } catch (Error& error) {
    error.set_module(name);
    throw;
  }
}

}  // namespace

BlockSparseLinear::BlockSparseLinear(int64_t in_features, int64_t out_features,
                                     const BlockSparseLinearOptions& options)
    : BlockSparseLinear(random_pattern(in_features, out_features, options), options.bias) {}

BlockSparseLinear::BlockSparseLinear(const BlockPattern& pattern, bool with_bias)
    : Linear(uniform_matrix(pattern), uniform_bias(pattern, with_bias)) {}

BlockSparseLinear::BlockSparseLinear(const Linear& dense, const BlockPattern& pattern)
    : Linear(blocks_of(dense, pattern), dense.bias) {}

MaskedLinear::MaskedLinear(const Linear& sparse) {
  const NoGradGuard no_grad;
  const BlockSparseMatrix matrix = sparse.block_sparse_weight();
  weight = register_parameter("weight", matrix.to_dense());
  if (sparse.bias.defined()) bias = register_parameter("bias", sparse.bias.detach().clone());
  mask = register_buffer("mask", matrix.dense_mask());
}

Tensor MaskedLinear::forward(const Tensor& x) {
  check_last_extent("MaskedLinear", x, weight.size(1));
  return linear(x, weight * mask, bias);
}

std::vector<std::string> sparsify(Module& model, const std::string& pattern, double density,
                                  const SparsifyOptions& options) {
  const std::vector<Target> targets = matching(model, pattern);
  const NoGradGuard no_grad;
  std::vector<BlockSparseMatrix> matrices;
  for (const Target& target : targets) {
    matrices.push_back(for_layer(target.name, [&] {
      return blocks_of(*target.layer, choose(*target.layer, density, options, matrices.size()));
    }));
  }
  return make_sparse(targets, matrices);
}

std::vector<std::string> sparsify(Module& model, const StateDict& saved) {
  std::vector<Target> targets;
  std::vector<BlockSparseMatrix> matrices;
  const NoGradGuard no_grad;
  for (const Target& target : linear_layers(model)) {
    const std::string prefix = target.name.empty() ? "" : target.name + ".";
    const Tensor* const blocks = find(saved, prefix + "weight_blocks");
    const Tensor* const weight = find(saved, prefix + "weight");
    if (!blocks) continue;
    matrices.push_back(for_layer(target.name, [&] {
      if (!weight || weight->rank() != 3) {
        throw ValueError("sparsify",
                         "a weight [blocks, block, block] with the places of its blocks",
                         weight ? sash::to_string(weight->shape()) : "no weight");
      }
      if (is_tied(model, *target.layer)) {
        throw ValueError("sparsify", "a weight of its own", "one that is tied");
      }
      const Linear& layer = *target.layer;
      return BlockSparseMatrix(BlockPattern::from_tensor(*blocks, layer.out_features(),
                                                         layer.in_features(), weight->size(1)),
                               zeros(weight->shape(), layer.weight.options()));
    }));
    targets.push_back(target);
  }
  return make_sparse(targets, matrices);
}

}  // namespace sash::nn
