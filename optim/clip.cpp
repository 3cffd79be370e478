#include "clip.h"

#include <span>

#include "../core/small_vector.h"
#include "../ops/checks.h"
#include "../ops/update/optimizer.h"
#include "../tensor/autograd/grad_mode.h"
#include "../tensor/factories.h"

namespace sash::optim {
namespace {

using Gradients = SmallVector<Tensor, 16>;

Gradients gradients_of(const char* op, const std::vector<Tensor>& parameters) {
  const NoGradGuard no_grad;
  Gradients gradients;
  for (const Tensor& parameter : parameters) {  // before anything is written
    check_defined(op, parameter, "parameters");
    const Tensor g = parameter.grad();
    if (!g.defined()) continue;
    if (!gradients.empty() && g.device() != gradients[0].device()) {
      throw DeviceError(op, "gradients on one device (call this once for each device)",
                        to_string(gradients[0].device()) + " and " + to_string(g.device()));
    }
    gradients.push_back(g);
  }
  size_t i = 0;
  for (Tensor parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    Tensor& g = gradients[i++];
    if (!g.is_contiguous()) parameter.set_grad(g = g.contiguous());
  }
  return gradients;
}

}  // namespace

Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm) {
  check_not_negative("clip_grad_norm_", "a max_norm", max_norm);
  const Gradients gradients = gradients_of("clip_grad_norm_", parameters);
  if (gradients.empty() && !parameters.empty()) {
    return zeros({}, {.dtype = DType::float64, .device = parameters[0].device()});
  }
  const std::span<const Tensor> all(gradients.begin(), gradients.size());
  Tensor norm = global_norm(all);
  clip_by_norm_(all, norm, max_norm);
  return norm;
}

void clip_grad_value_(const std::vector<Tensor>& parameters, double limit) {
  check_not_negative("clip_grad_value_", "a limit", limit);
  const Gradients gradients = gradients_of("clip_grad_value_", parameters);
  clip_by_value_({gradients.begin(), gradients.size()}, limit);
}

}  // namespace sash::optim
