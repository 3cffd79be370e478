#include "gradient_memory.h"

#include "../factories.h"
#include "../tensor_impl.h"
#include "anomaly.h"

namespace sash {

bool owns_alone(const Tensor& tensor) {
  const TensorImpl& impl = tensor.impl();
  return impl.use_count() == 1 && impl.storage->use_count() == 1 && !impl.storage->is_foreign() &&
         tensor.is_contiguous();
}

Tensor overwritable(const Tensor& g) {
  // Anomaly mode looks at g after the closure.
  if (!grad_enabled() && !anomaly_mode() && owns_alone(g)) return g;
  return empty_like(g);
}

}  // namespace sash
