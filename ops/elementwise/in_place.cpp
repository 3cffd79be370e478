#include "../../tensor/copy.h"
#include "../../tensor/kernels/memory.h"
#include "../../tensor/tensor_impl.h"
#include "../kernels/elementwise.h"
#include "../op.h"
#include "../row_blocks.h"
#include "promotion.h"

/// The members of `Tensor` that write to its elements. mul_ and div_ clone the old elements if the
/// other operand needs a gradient.
namespace sash {
namespace {

void check_fits(const char* op, const Tensor& self, const Tensor& other) {
  if (broadcast_shapes(self.shape(), other.shape(), op) == self.shape()) return;
  throw ShapeError(op, "a tensor that broadcasts to " + to_string(self.shape()),
                   to_string(other.shape()));
}

/// `DTypeError` unless `self` may hold a result of dtype `result`.
void check_result(const char* op, const Tensor& self, DType result) {
  if (can_cast(result, self.dtype())) return;
  throw DTypeError(op, "a result that may be cast to " + std::string(name(self.dtype())),
                   name(result));
}

void check_operands(const char* op, const Tensor& self, const Tensor& other) {
  check_defined_together(op, self, other);
  check_result(op, self, result_type(self, other));
  check_fits(op, self, other);
  check_write(op, self, {other});
}

void check_scalar(const char* op, const Tensor& self, Scalar value) {
  check_defined(op, self);
  check_result(op, self, result_type(self, value));
  check_holds(op, self.dtype(), value);
  check_write(op, self);
}

/// Whether the op computes in another dtype than the dtype of `self`, as for uint8 and bool. If so,
/// it runs out of place and rounds once.
bool computes_elsewhere(const Tensor& self, const Tensor& other) {
  return size_of(self.dtype()) == 1 || result_type(self, other) != self.dtype();
}

/// `ValueError` unless another tensor shares the elements, so that the write can be seen.
void check_shared(const Tensor& temporary) {
  const TensorImpl& impl = temporary.impl();
  if (impl.use_count() > 1 || (impl.base && impl.base->use_count() > 1)) return;
  if (impl.storage->use_count() > (impl.base ? 2 : 1)) return;
  throw ValueError("operator=", "a view, such as x[0] (index_put_ writes where tensors index)",
                   "a temporary that shares its elements with no tensor");
}

/// The elements of `self` before the write, if `needed`.
Saved save_old(bool needed, const Tensor& self) {
  return needed && grad_enabled() ? save(self.clone()) : Saved();
}

/// self = Op(self, other).
template <class Op>
void write(const Tensor& self, const Tensor& other) {
  run_kernel(kernels::slot<Op>(), self, other, self);
}

/// self = Op(self, value).
template <class Op>
void write(const Tensor& self, Scalar value) {
  run_kernel(kernels::scalar_slot<Op>(), self, self, value);
}

/// self += factor other; a factor of 1 or -1 costs no product.
void add_multiple(const char* op, Tensor& self, const Tensor& other, Scalar factor) {
  check_operands(op, self, other);
  if (is_integral(self.dtype()) && !factor.is_integer()) check_result(op, self, default_dtype());
  const double times = factor.to_double();
  if (times != 1) check_not_bool(op, self);
  if (computes_elsewhere(self, other)) {
    const Tensor old = self.clone();
    self.copy_(times == -1 ? sub(old, other) : add(old, times == 1 ? other : mul(other, factor)));
    return;
  }
  const Tensor operand = clone_if_aliased(other.to(self.dtype()), self);
  if (times == 1) {
    write<op::Add>(self, operand);
  } else if (times == -1) {
    write<op::Sub>(self, operand);
  } else {
    const NoGradGuard no_grad;
    write<op::Add>(self, mul(operand, factor));
  }
  record_in_place(op, self, {self, operand},
                  [factor, shape = other.shape()](Backward& pass, const Tensor& g) {
                    return gradients_of(
                        pass, [&] { return g; },
                        [&] {
                          const Tensor total = sum_to(g, shape);
                          return factor.to_double() == 1 ? total : mul(total, factor);
                        });
                  });
}

}  // namespace

Tensor& Tensor::add_(const Tensor& other, Scalar alpha) {
  add_multiple("add_", *this, other, alpha);
  return *this;
}

Tensor& Tensor::sub_(const Tensor& other) {
  add_multiple("sub_", *this, other, -1);
  return *this;
}

Tensor& Tensor::mul_(const Tensor& other) {
  check_operands("mul_", *this, other);
  if (computes_elsewhere(*this, other)) return copy_(mul(clone(), other));
  const Tensor operand = clone_if_aliased(other.to(dtype()), *this);
  const Saved old = save_old(operand.requires_grad(), *this);
  write<op::Mul>(*this, operand);
  record_in_place("mul_", *this, {*this, operand},
                  [old, factor = save_if(requires_grad(), operand), shape = other.shape()](
                      Backward& pass, const Tensor& g) {
                    return gradients_of(
                        pass, [&] { return g * pass(factor); },
                        [&] { return sum_to(g * pass(old), shape); });
                  });
  return *this;
}

Tensor& Tensor::div_(const Tensor& other) {
  check_floating("div_", *this);
  check_operands("div_", *this, other);
  if (computes_elsewhere(*this, other)) return copy_(div(clone(), other));
  const Tensor operand = clone_if_aliased(other.to(dtype()), *this);
  const Saved old = save_old(operand.requires_grad(), *this);
  write<op::Div>(*this, operand);
  record_in_place(
      "div_", *this, {*this, operand},
      [old, divisor = save(operand), shape = other.shape()](Backward& pass, const Tensor& g) {
        const Tensor quotient = g / pass(divisor);
        return gradients_of(
            pass, [&] { return quotient; },
            [&] { return -sum_to(quotient * (pass(old) / pass(divisor)), shape); });
      });
  return *this;
}

Tensor& Tensor::add_(Scalar value) {
  check_scalar("add_", *this, value);
  if (dtype() == DType::uint8) return copy_(add(clone(), value));
  write<op::Add>(*this, value);
  record_in_place("add_", *this, {*this}, [](Backward&, const Tensor& g) { return Gradients{g}; });
  return *this;
}

Tensor& Tensor::mul_(Scalar value) {
  check_scalar("mul_", *this, value);
  if (dtype() == DType::uint8) return copy_(mul(clone(), value));
  write<op::Mul>(*this, value);
  record_in_place("mul_", *this, {*this},
                  [value](Backward&, const Tensor& g) { return Gradients{mul(g, value)}; });
  return *this;
}

Tensor& Tensor::sub_(Scalar value) {
  check_scalar("sub_", *this, value);
  return add_(negated(dtype(), value));
}

Tensor& Tensor::div_(Scalar value) {
  check_floating("div_", *this);
  check_scalar("div_", *this, value);
  write<op::Div>(*this, value);
  record_in_place("div_", *this, {*this},
                  [value](Backward&, const Tensor& g) { return Gradients{div(g, value)}; });
  return *this;
}

Tensor& Tensor::fill_(Scalar value) {
  check_defined("fill_", *this);
  check_holds("fill_", dtype(), value);
  check_write("fill_", *this);
  run_kernel(kernels::fill, *this, value);
  record_in_place("fill_", *this, {*this},
                  [](Backward&, const Tensor& g) { return Gradients{zeros_like(g)}; });
  return *this;
}

Tensor& Tensor::copy_(const Tensor& source) {
  check_defined("copy_", *this);
  check_defined("copy_", source);
  check_fits("copy_", *this, source);
  check_write("copy_", *this, {source});
  const Tensor from = clone_if_aliased(source, *this);
  copy_elements(from, *this);
  // Integers carry no gradient.
  const Tensor origin = is_floating(dtype()) ? from : Tensor();
  record_in_place(
      "copy_", *this, {*this, origin},
      [shape = source.shape(), options = source.options()](Backward& pass, const Tensor& g) {
        return gradients_of(
            pass, [&] { return zeros_like(g); },
            [&] { return sum_to(g, shape).to(*options.dtype).to(*options.device); });
      });
  return *this;
}

Tensor& Tensor::operator=(const Tensor& source) && {
  check_shared(*this);
  return copy_(source);
}

Tensor& Tensor::operator=(Scalar value) && {
  check_shared(*this);
  return fill_(value);
}

}  // namespace sash
