#include "../../ops/index/embedding.h"

#include "../../tensor/factories.h"
#include "../check.h"
#include "../init.h"
#include "embedding.h"

namespace sash::nn {

Embedding::Embedding(int64_t count, int64_t dim) {
  check_positive("Embedding", "count", count);
  check_positive("Embedding", "dim", dim);
  weight = register_parameter("weight", empty({count, dim}));
  init::normal_(weight);
}

Tensor Embedding::forward(const Tensor& index) { return embedding(weight, index); }

std::string Embedding::describe() const {
  return "Embedding(" + std::to_string(weight.shape()[0]) + ", " +
         std::to_string(weight.shape()[1]) + ")";
}

}  // namespace sash::nn
