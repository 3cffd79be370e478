#include "copy.h"

#include "../core/backend/backend.h"
#include "autograd/node.h"
#include "factories.h"
#include "kernels/memory.h"
#include "run_kernel.h"

namespace sash {
namespace {

// Same device: one kernel, any strides and dtypes.
Tensor copied(const Tensor& x, DType dtype) {
  Tensor y = empty(x.shape(), {.dtype = dtype, .device = x.device()});
  run_kernel(kernels::copy, x, y);
  return y;
}

// Between devices: the bytes of a contiguous tensor, queued on the stream of the CUDA side.
void transfer(const Tensor& from, const Tensor& to) {
  const Device side = from.device().is_cpu() ? to.device() : from.device();
  const KernelContext context = kernel_context(side);
  backend(side.type).copy(to.tensor_view().data, to.device(), from.tensor_view().data,
                          from.device(), from.numel() * size_of(from.dtype()), context.stream);
}

}  // namespace

Tensor Tensor::clone() const {
  return record("clone", {*this}, copied(*this, dtype()),
                [](Backward&, const Tensor& g) { return Gradients{g}; });
}

Tensor Tensor::contiguous() const { return is_contiguous() ? *this : clone(); }

Tensor Tensor::to(DType target) const {
  if (target == dtype()) return *this;
  return record("to_dtype", {*this}, copied(*this, target),
                [source = dtype()](Backward&, const Tensor& g) { return Gradients{g.to(source)}; });
}

Tensor Tensor::to(Device target) const {
  if (target == device()) return *this;
  const Tensor from = unrecorded([&] { return contiguous(); });
  Tensor y = empty(shape(), {.dtype = dtype(), .device = target});
  transfer(from, y);
  return record("to_device", {*this}, y, [source = device()](Backward&, const Tensor& g) {
    return Gradients{g.to(source)};
  });
}

Tensor Tensor::to(Device target, DType target_dtype) const {
  const bool narrows = size_of(target_dtype) < size_of(dtype());
  return narrows ? to(target_dtype).to(target) : to(target).to(target_dtype);
}

void copy_elements(const Tensor& source, const Tensor& target) {
  const NoGradGuard no_grad;
  const bool bytes_alone = source.dtype() == target.dtype() && source.shape() == target.shape() &&
                           source.is_contiguous() && target.is_contiguous();
  if (bytes_alone && source.device() != target.device()) return transfer(source, target);
  const Tensor local = source.to(target.device());
  run_kernel(kernels::copy, local, target);
}

}  // namespace sash
