#include "linear.h"

#include <cmath>
#include <mutex>

#include "../../ops/checks.h"
#include "../../ops/linalg/linear.h"
#include "../../ops/linalg/linear_float8.h"
#include "../../ops/sparse/block_sparse_matmul.h"
#include "../../tensor/factories.h"
#include "../../tensor/tensor_impl.h"
#include "../check.h"
#include "../init.h"

namespace sash::nn {

/// The pattern in a tensor of coordinates, read again when that was written to or moved.
class Linear::Pattern {
 public:
  Pattern(BlockPattern pattern, const Tensor& coordinates)
      : pattern_(std::move(pattern)),
        storage_(coordinates.impl().storage),
        version_(storage_->version()) {}

  BlockPattern read(const Tensor& coordinates) {
    const std::lock_guard lock(mutex_);
    const Ref<Storage>& storage = coordinates.impl().storage;
    if (storage == storage_ && storage->version() == version_) return pattern_;
    const uint32_t version = storage->version();
    pattern_ = parse(coordinates);
    storage_ = storage;
    version_ = version;
    return pattern_;
  }

  /// A pattern for the same matrix.
  BlockPattern parse(const Tensor& coordinates) const {
    return BlockPattern::from_tensor(coordinates, rows(), columns(), pattern_.block());
  }

  int64_t rows() const { return pattern_.rows(); }
  int64_t columns() const { return pattern_.columns(); }

 private:
  std::mutex mutex_;
  BlockPattern pattern_;
  Ref<Storage> storage_;
  uint32_t version_;
};

Linear::Linear(int64_t in_features, int64_t out_features, LinearOptions options) {
  check_positive("Linear", "in_features", in_features);
  check_positive("Linear", "out_features", out_features);
  const double bound = 1 / std::sqrt(static_cast<double>(in_features));
  weight = register_parameter("weight", empty({out_features, in_features}));
  if (options.draw) init::uniform_(weight, -bound, bound);
  if (!options.bias) return;
  bias = register_parameter("bias", empty({out_features}));
  if (options.draw) init::uniform_(bias, -bound, bound);
}

Linear::Linear(const Tensor& shared_weight, const Tensor& shared_bias) {
  check_defined("Linear", shared_weight, "a weight");
  check_rank("Linear", shared_weight, 2);
  if (shared_bias.defined()) check_shape("Linear", shared_bias, {shared_weight.shape()[0]});
  weight = register_parameter("weight", shared_weight);
  if (shared_bias.defined()) bias = register_parameter("bias", shared_bias);
}

Linear::Linear(const BlockSparseMatrix& matrix, const Tensor& shared_bias) {
  if (shared_bias.defined()) check_shape("Linear", shared_bias, {matrix.rows()});
  weight = register_parameter("weight", matrix.data());
  if (shared_bias.defined()) bias = register_parameter("bias", shared_bias);
  weight_blocks =
      register_buffer("weight_blocks", matrix.pattern().to_tensor().to(weight.device()));
  pattern_ = std::make_shared<Pattern>(matrix.pattern(), weight_blocks);
}

int64_t Linear::in_features() const { return pattern_ ? pattern_->columns() : weight.size(1); }
int64_t Linear::out_features() const { return pattern_ ? pattern_->rows() : weight.size(0); }

Tensor Linear::forward(const Tensor& x) {
  if (!weight.defined()) return x;
  check_last_extent("Linear", x, in_features());
  if (is_block_sparse()) return block_sparse_linear(x, block_sparse_weight(), bias);
  return is_float8() ? linear_float8(x, weight, bias) : linear(x, weight, bias);
}

std::string Linear::describe() const {
  if (!weight.defined()) return "Linear(identity)";
  std::string blocks;
  if (is_block_sparse()) {
    blocks = ", " + std::to_string(weight.size(0)) + " blocks of " + std::to_string(weight.size(1));
  }
  return type_name() + "(" + std::to_string(in_features()) + " -> " +
         std::to_string(out_features()) + blocks + (bias.defined() ? ", bias" : "") +
         (is_float8() ? ", FP8)" : ")");
}

BlockSparseMatrix Linear::block_sparse_weight() const {
  if (!is_block_sparse()) {
    throw ValueError("Linear.block_sparse_weight", "a block-sparse layer", "a dense one");
  }
  return {pattern_->read(weight_blocks), weight};
}

void Linear::set_block_sparse_weight(const BlockSparseMatrix& matrix) {
  constexpr const char* op = "Linear.set_block_sparse_weight";
  if (matrix.rows() != out_features() || matrix.columns() != in_features()) {
    throw ShapeError(op, "a matrix " + sash::to_string(Shape{out_features(), in_features()}),
                     sash::to_string(Shape{matrix.rows(), matrix.columns()}));
  }
  const Tensor blocks = matrix.pattern().to_tensor().to(matrix.data().device());
  weight = replace("weight", matrix.data());
  weight_blocks = is_block_sparse() ? replace("weight_blocks", blocks)
                                    : register_buffer("weight_blocks", blocks);
  pattern_ = std::make_shared<Pattern>(matrix.pattern(), weight_blocks);
}

void Linear::check_load(const StateCheck& given, const std::string& prefix) const {
  if (!is_block_sparse()) return;
  const Tensor* const blocks = given.find(prefix + "weight_blocks");
  if (blocks) {
    pattern_->parse(*blocks);
  } else if (given.find(prefix + "weight")) {
    throw ValueError("Linear.load_state_dict", "the blocks' coordinates with the weight",
                     "no '" + prefix + "weight_blocks'");
  }
}

}  // namespace sash::nn
