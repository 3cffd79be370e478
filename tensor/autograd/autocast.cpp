#include "autocast.h"

#include <string>
#include <unordered_map>
#include <utility>

#include "../../core/error.h"
#include "../tensor_impl.h"
#include "grad_mode.h"

namespace sash {

AutocastGuard*& detail::autocast_guard() {
  static constinit thread_local AutocastGuard* guard = nullptr;
  return guard;
}

struct AutocastGuard::Casts {
  struct Cast {
    Tensor from;  // kept, so that no other tensor gets its address
    uint32_t version = 0;
    bool recorded = false;
    Tensor to;
  };
  std::unordered_map<const TensorImpl*, Cast> of;
};

AutocastGuard::AutocastGuard(DType dtype)
    : dtype_(dtype), casts_(std::make_unique<Casts>()), outer_(detail::autocast_guard()) {
  if (!is_half(dtype)) {
    throw DTypeError("AutocastGuard", "float16 or bfloat16", name(dtype));
  }
  detail::autocast_guard() = this;
}

AutocastGuard::~AutocastGuard() { detail::autocast_guard() = outer_; }

void AutocastGuard::forget_casts() { casts_->of.clear(); }

Tensor AutocastGuard::cast(const Tensor& x, DType to) {
  if (!x.defined() || x.dtype() == to || !is_floating(x.dtype()) || x.dtype() == DType::float64) {
    return x;
  }
  if (!x.is_leaf() || !x.requires_grad()) return x.to(to);
  const uint32_t version = x.impl().storage->version();
  Casts::Cast& kept = casts_->of[&x.impl()];
  const bool fits = kept.to.defined() && kept.version == version &&
                    kept.recorded == grad_enabled() && kept.to.dtype() == to;
  if (!fits) kept = {x, version, grad_enabled(), x.to(to)};
  return kept.to;
}

NoAutocastGuard::NoAutocastGuard() : outer_(std::exchange(detail::autocast_guard(), nullptr)) {}
NoAutocastGuard::~NoAutocastGuard() { detail::autocast_guard() = outer_; }

}  // namespace sash
