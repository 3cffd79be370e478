#include "sequential.h"

#include "../../core/error.h"

namespace sash::nn {

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (Module* module : modules_) y = (*module)(y);
  return y;
}

Module& Sequential::operator[](int64_t index) const {
  if (index >= 0 && index < size()) return *modules_[static_cast<size_t>(index)];
  throw IndexError("Sequential", "an index below " + std::to_string(size()), std::to_string(index));
}

}  // namespace sash::nn
