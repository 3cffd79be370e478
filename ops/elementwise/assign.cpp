#include "../../tensor/tensor_impl.h"

namespace sash {
namespace {

// `ValueError` unless another tensor shares the elements, so that the write can be seen.
void check_shared(const Tensor& temporary) {
  const TensorImpl& impl = temporary.impl();
  if (impl.use_count() > 1 || (impl.base && impl.base->use_count() > 1)) return;
  if (impl.storage->use_count() > (impl.base ? 2 : 1)) return;
  throw ValueError("operator=", "a view, such as x[0] (index_put_ writes where tensors index)",
                   "a temporary that shares its elements with no tensor");
}

}  // namespace

Tensor& Tensor::operator=(const Tensor& source) && {
  check_shared(*this);
  return copy_(source);
}

Tensor& Tensor::operator=(Scalar value) && {
  check_shared(*this);
  return fill_(value);
}

}  // namespace sash
