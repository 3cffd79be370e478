#pragma once

#include <type_traits>
#include <utility>

#include "../core/backend/kernel.h"
#include "autograd/grad_mode.h"
#include "tensor.h"

/// How ops run kernels, and work that is not recorded.
namespace sash {

/// Returns f(), which runs without recording.
template <class F>
auto unrecorded(F&& f) {
  const NoGradGuard no_grad;
  return f();
}

namespace detail {

/// A tensor as an operand of a kernel: its view, or for an undefined tensor the null view or a null
/// pointer.
class KernelOperand {
 public:
  explicit KernelOperand(const Tensor& x) : defined_(x.defined()) {
    if (defined_) view_ = x.tensor_view();
  }
  operator const TensorView&() const { return view_; }
  operator const TensorView*() const { return defined_ ? &view_ : nullptr; }

 private:
  TensorView view_;
  bool defined_;
};

/// Tensors become operands; other arguments are passed on.
template <class T>
decltype(auto) kernel_argument(T&& x) {
  if constexpr (std::is_base_of_v<Tensor, std::remove_cvref_t<T>>) {
    return KernelOperand(x);
  } else {
    return std::forward<T>(x);
  }
}

inline Device device_of(const Tensor& x) { return x.device(); }
inline Device device_of(const TensorView& x) { return x.device; }

}  // namespace detail

/// Runs the kernel that `slot` has for the device of its first operand. Operands are tensors, where
/// an undefined tensor is a null view, or views.
template <class Slot, class First, class... Rest>
void run_kernel(const Slot& slot, First&& first, Rest&&... rest) {
  KernelContext context = kernel_context(detail::device_of(first));
  slot(context, detail::kernel_argument(std::forward<First>(first)),
       detail::kernel_argument(std::forward<Rest>(rest))...);
}

}  // namespace sash
