#include "../../ops/index/embedding.h"

#include "../../tensor/factories.h"
#include "../check.h"
#include "../init.h"
#include "embedding.h"

namespace sash::nn {

Embedding::Embedding(int64_t count, int64_t dim, const EmbeddingOptions& options)
    : padding_idx_(options.padding_idx) {
  check_positive("Embedding", "count", count);
  check_positive("Embedding", "dim", dim);
  weight = register_parameter("weight", empty({count, dim}));
  if (options.draw) init::normal_(weight);
  if (!padding_idx_) return;
  if (*padding_idx_ < -count || *padding_idx_ >= count) {
    throw IndexError(
        "Embedding",
        "a padding_idx in [-" + std::to_string(count) + ", " + std::to_string(count) + ")",
        std::to_string(*padding_idx_));
  }
  if (*padding_idx_ < 0) *padding_idx_ += count;
  weight.detach().select(0, *padding_idx_).zero_();
}

Tensor Embedding::forward(const Tensor& index) { return embedding(weight, index, padding_idx_); }

Tensor Embedding::rows(int64_t first, int64_t count) {
  if (!has_forward_hooks() && !padding_idx_) return weight.narrow(0, first, count);
  return (*this)(arange(first, first + count, 1, {.device = weight.device()}));
}

std::string Embedding::describe() const {
  return "Embedding(" + std::to_string(weight.shape()[0]) + ", " +
         std::to_string(weight.shape()[1]) +
         (padding_idx_ ? ", padding_idx " + std::to_string(*padding_idx_) : "") + ")";
}

}  // namespace sash::nn
