#include "optimizer.h"

#include "../../core/small_vector.h"
#include "../../tensor/factories.h"
#include "../../tensor/tensor_impl.h"
#include "../checks.h"
#include "../kernels/update_rules.h"

namespace sash {

namespace kernels {
constinit RuleKernel<AdamSettings> adam_step{"adam_step"};
constinit RuleKernel<SgdSettings> sgd_step{"sgd_step"};
constinit RuleKernel<LionSettings> lion_step{"lion_step"};
constinit RuleKernel<RmspropSettings> rmsprop_step{"rmsprop_step"};
constinit RuleKernel<MuonSettings> muon_direction{"muon_direction"};
constinit RuleKernel<DecayedStepSettings> decayed_step{"decayed_step"};
constinit Kernel<void(KernelContext&, std::span<const FlatTensor>, double*)> global_norm{
    "global_norm"};
constinit Kernel<void(KernelContext&, std::span<const FlatTensor>, const double*, double)>
    clip_by_norm{"clip_by_norm"};
constinit Kernel<void(KernelContext&, std::span<const FlatTensor>, double)> clip_by_value{
    "clip_by_value"};
}  // namespace kernels

namespace {

using FlatTensors = SmallVector<kernels::FlatTensor, 16>;

FlatTensors flattened(const char* op, std::span<const Tensor> tensors) {
  FlatTensors flat;
  for (const Tensor& x : tensors) {
    check_defined(op, x);
    check_floating(op, x);
    check_same_device(op, tensors[0], x);
    if (!x.is_contiguous()) {
      throw ValueError(op, "contiguous tensors", "strides " + to_string(x.strides()));
    }
    flat.push_back({x.dtype(), x.numel(), x.tensor_view().data});
  }
  return flat;
}

void count_writes(std::span<const Tensor> tensors) {
  for (const Tensor& x : tensors) x.impl().storage->bump_version();
}

}  // namespace

Tensor global_norm(std::span<const Tensor> tensors) {
  const FlatTensors flat = flattened("global_norm", tensors);
  if (flat.empty()) return zeros({}, {.dtype = DType::float64});
  Tensor norm = empty({}, {.dtype = DType::float64, .device = tensors[0].device()});
  KernelContext context = kernel_context(norm.device());
  kernels::global_norm(context, {flat.begin(), flat.size()}, norm.tensor_view().ptr<double>());
  return norm;
}

void clip_by_norm_(std::span<const Tensor> tensors, const Tensor& norm, double max_norm) {
  check_not_negative("clip_by_norm_", "a max_norm", max_norm);
  const FlatTensors flat = flattened("clip_by_norm_", tensors);
  if (flat.empty()) return;
  check_defined("clip_by_norm_", norm, "a norm");
  check_shape("clip_by_norm_", norm, {});
  check_dtype("clip_by_norm_", norm, DType::float64);
  check_same_device("clip_by_norm_", norm, tensors[0]);
  KernelContext context = kernel_context(norm.device());
  kernels::clip_by_norm(context, {flat.begin(), flat.size()}, norm.tensor_view().ptr<double>(),
                        max_norm);
  count_writes(tensors);
}

void clip_by_value_(std::span<const Tensor> tensors, double limit) {
  check_not_negative("clip_by_value_", "a limit", limit);
  const FlatTensors flat = flattened("clip_by_value_", tensors);
  if (flat.empty()) return;
  KernelContext context = kernel_context(tensors[0].device());
  kernels::clip_by_value(context, {flat.begin(), flat.size()}, limit);
  count_writes(tensors);
}

}  // namespace sash
