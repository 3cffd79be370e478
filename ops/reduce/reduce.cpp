#include "reduce.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "../../tensor/kernels/gradients.h"
#include "../kernels/reduce.h"
#include "../op.h"
#include "../shape/concat.h"
#include "reduced_shape.h"

namespace sash {

namespace kernels {
constinit decltype(amax) amax{"amax"};
constinit decltype(amin) amin{"amin"};
constinit decltype(prod) prod{"prod"};
constinit decltype(prod_backward) prod_backward{"prod_backward"};
constinit decltype(any) any{"any"};
constinit decltype(all) all{"all"};
constinit decltype(argmax) argmax{"argmax"};
constinit decltype(argmin) argmin{"argmin"};
constinit decltype(cumsum) cumsum{"cumsum"};
constinit decltype(cumprod) cumprod{"cumprod"};
}  // namespace kernels

namespace {

using detail::finished;
using detail::reduced_shape;
using detail::ReducedShape;

using Reduction = Kernel<void(KernelContext&, const TensorView&, const TensorView&)>;

Tensor run(const Reduction& kernel, const Tensor& x, const Shape& kept, DType dtype) {
  Tensor y = empty(kept, {.dtype = dtype, .device = x.device()});
  run_kernel(kernel, x, y);
  return y;
}

Tensor extremum(const char* op, const Reduction& kernel, const Tensor& x, const Dims& axes,
                bool keepdim) {
  const ReducedShape shape = reduced_shape(op, x, axes);
  if (shape.count == 0)
    throw ShapeError(op, "reduced axes that are not empty", to_string(x.shape()));
  if (x.dtype() == DType::boolean) {
    return (&kernel == &kernels::amax ? any : all)(x, axes, keepdim);
  }
  if (x.dtype() == DType::uint8) {
    return extremum(op, kernel, x.to(DType::int32), axes, keepdim).to(DType::uint8);
  }
  const Tensor y = run(kernel, x, shape.kept, x.dtype());
  const Tensor recorded =
      record(op, {x}, y, [x = save(x), y = save_output(y)](Backward& pass, const Tensor& g) {
        const Tensor value = pass(x);
        // Counted in int64, because a half holds no count above 2048 or 256 exactly.
        const Tensor ties = eq(value, pass(y).detach());
        Dims axes_of_ties;
        for (int i = 0; i < ties.rank(); ++i) {
          if (g.shape()[i] == 1) axes_of_ties.push_back(i);
        }
        const Tensor count = axes_of_ties.empty() ? ties : sum(ties, axes_of_ties, true);
        const Tensor share = (is_half(g.dtype()) ? g.to(DType::float32) : g) / count;
        return Gradients{(ties * share).to(g.dtype())};
      });
  return finished(recorded, shape, keepdim);
}

Tensor arg_extremum(
    const char* op,
    const Kernel<void(KernelContext&, const TensorView&, const TensorView&, int)>& kernel,
    const Tensor& x, int64_t axis, bool keepdim) {
  check_not_bool(op, x);
  const int at = normalize_axis(axis, x.rank(), op);
  if (x.shape()[at] == 0) throw ShapeError(op, "an axis that is not empty", to_string(x.shape()));
  Shape kept = x.shape();
  kept[at] = 1;
  const Tensor y = empty(kept, {.dtype = DType::int64, .device = x.device()});
  const Tensor in = x.dtype() == DType::uint8 ? x.to(DType::int32) : x;
  run_kernel(kernel, in, y, at);
  return keepdim ? y : y.squeeze(at);
}

/// `view` in reverse order along `axis`.
TensorView reversed(TensorView view, int axis) {
  const int64_t last = std::max<int64_t>(0, view.shape[axis] - 1) * view.strides[axis];
  view.data = view.ptr<char>() + last * size_of(view.dtype);
  view.strides[axis] *= -1;
  return view;
}

/// y_i = x_0 + ... + x_i along the axis, or y_i = x_i + ... + x_last `from_end`: each is the
/// other's gradient.
Tensor cumulated(const Tensor& x, int axis, bool from_end) {
  const Tensor y = empty_like(x);
  TensorView from = x.tensor_view(), to = y.tensor_view();
  if (from_end) {
    from = reversed(from, axis);
    to = reversed(to, axis);
  }
  run_kernel(kernels::cumsum, from, to, axis);
  return record("cumsum", {x}, y, [axis, from_end](Backward&, const Tensor& g) {
    return Gradients{cumulated(g, axis, !from_end)};
  });
}

/// The products of `cumprod` from plain ops: each step joins runs of elements to runs twice as
/// long.
Tensor running_products(Tensor y, int axis) {
  for (int64_t run = 1; run < y.shape()[axis]; run *= 2) {
    const int64_t rest = y.shape()[axis] - run;
    y = cat({y.narrow(axis, 0, run), y.narrow(axis, run, rest) * y.narrow(axis, 0, rest)}, axis);
  }
  return y;
}

/// The product over the axes where `kept` has extent 1, none of which is empty, from plain ops:
/// halves of an axis are multiplied with each other, so gradients are right beside zeros too.
Tensor product(Tensor y, const Shape& kept) {
  for (int axis = 0; axis < y.rank(); ++axis) {
    if (kept[axis] == y.shape()[axis]) continue;
    Tensor rest;  // the product of elements without a partner
    for (int64_t n = y.shape()[axis]; n > 1; n /= 2) {
      if (n % 2 == 1) {
        const Tensor last = y.narrow(axis, n - 1, 1);
        rest = rest.defined() ? rest * last : last;
      }
      y = y.narrow(axis, 0, n / 2) * y.narrow(axis, n / 2, n / 2);
    }
    if (rest.defined()) y = y * rest;
  }
  return y;
}

/// The gradient of the product `kept` of x; g has the shape `kept`.
Gradients product_gradient(Backward& pass, const Tensor& g, const Tensor& x, const Shape& kept) {
  const bool whole = numel(kept) == 1;
  int axis = 0, axes = 0;
  for (int i = 0; i < x.rank(); ++i) {
    if (kept[i] == x.shape()[i]) continue;
    axis = i;
    ++axes;
  }
  const bool fused = use_fused(kernels::prod_backward, x.device()) && x.numel() > 0;
  if (!fused || pass.create_graph() || (!whole && axes != 1)) {
    return gradients_of_composite(pass, g, product, std::array{x}, kept);
  }
  const Tensor in = x.contiguous(), dx = empty_like(in);
  const Shape lines = whole ? Shape{x.numel()} : x.shape();
  KernelContext context = kernel_context(x.device());
  kernels::prod_backward(context, contiguous_view(in, lines),
                         contiguous_view(g.contiguous(), whole ? Shape{1} : kept),
                         contiguous_view(dx, lines), whole ? 0 : axis);
  return {dx};
}

/// Whether any x is not 0, or whether every x is.
Tensor truth(const char* op, const Reduction& kernel, bool every, const Tensor& x, const Dims& axes,
             bool keepdim) {
  const ReducedShape shape = reduced_shape(op, x, axes);
  const NoGradGuard no_grad;
  if (use_fused(kernel, x.device())) {
    return finished(run(kernel, x, shape.kept, DType::boolean), shape, keepdim);
  }
  const Tensor wanted = every ? eq(x, 0) : x.dtype() == DType::boolean ? x : ne(x, 0);
  const Tensor count = sum(wanted, axes, keepdim);
  return every ? eq(count, 0) : gt(count, 0);
}

/// The sum in the type `dtype`, which `kernels::sum` allows.
Tensor sum_as(DType dtype, const Tensor& x, const ReducedShape& shape, bool keepdim) {
  // Not a view of the kernel's result: the gradient of a bias may become its `grad()` as it is.
  const Tensor y =
      empty(keepdim ? shape.kept : shape.dropped, {.dtype = dtype, .device = x.device()});
  run_kernel(kernels::sum, x, contiguous_view(y, shape.kept));
  return record(
      "sum", {x}, y,
      [from = x.shape(), type = x.dtype(), kept = shape.kept](Backward&, const Tensor& g) {
        return Gradients{g.to(type).reshape(kept).expand(from)};
      });
}

}  // namespace

Tensor sum(const Tensor& x, const Dims& axes, bool keepdim) {
  const ReducedShape shape = reduced_shape("sum", x, axes);
  return sum_as(is_floating(x.dtype()) ? x.dtype() : DType::int64, x, shape, keepdim);
}

// Functions made of several ops take halves in float32: rounded once, and no overflow in a sum.

Tensor mean(const Tensor& x, const Dims& axes, bool keepdim) {
  const ReducedShape shape = reduced_shape("mean", x, axes);
  check_floating("mean", x);
  const DType sums = is_half(x.dtype()) ? DType::float32 : x.dtype();
  return (sum_as(sums, x, shape, keepdim) / static_cast<double>(shape.count)).to(x.dtype());
}

Tensor amax(const Tensor& x, const Dims& axes, bool keepdim) {
  return extremum("amax", kernels::amax, x, axes, keepdim);
}

Tensor amin(const Tensor& x, const Dims& axes, bool keepdim) {
  return extremum("amin", kernels::amin, x, axes, keepdim);
}

Tensor argmax(const Tensor& x, int64_t axis, bool keepdim) {
  return arg_extremum("argmax", kernels::argmax, x, axis, keepdim);
}

Tensor argmin(const Tensor& x, int64_t axis, bool keepdim) {
  return arg_extremum("argmin", kernels::argmin, x, axis, keepdim);
}

Tensor logsumexp(const Tensor& x, const Dims& axes, bool keepdim) {
  const ReducedShape shape = reduced_shape("logsumexp", x, axes);
  check_floating("logsumexp", x);
  if (is_half(x.dtype())) return logsumexp(x.to(DType::float32), axes, keepdim).to(x.dtype());
  if (x.numel() == 0) return finished(log(sum(exp(x), axes, true)), shape, keepdim);
  // Any constant shift gives the same value and gradient; an infinite one would give NaN.
  const Tensor shift = unrecorded([&] {
    const Tensor highest = amax(x, axes, true);
    return masked_fill(highest, eq(abs(highest), std::numeric_limits<double>::infinity()), 0);
  });
  return finished(log(sum(exp(x - shift), axes, true)) + shift, shape, keepdim);
}

Tensor cumsum(const Tensor& x, int64_t axis) {
  check_defined("cumsum", x);
  const int at = normalize_axis(axis, x.rank(), "cumsum");
  return cumulated(is_floating(x.dtype()) ? x : x.to(DType::int64), at, false);
}

Tensor composite::cumprod(const Tensor& x, int64_t axis) {
  const Tensor in = is_floating(x.dtype()) ? x : x.to(DType::int64);
  const Tensor y = running_products(in, normalize_axis(axis, x.rank(), "cumprod"));
  return y.is_same(x) ? x.clone() : y;
}

Tensor cumprod(const Tensor& x, int64_t axis) {
  check_defined("cumprod", x);
  const int at = normalize_axis(axis, x.rank(), "cumprod");
  if (is_half(x.dtype())) return cumprod(x.to(DType::float32), at).to(x.dtype());
  const Tensor in = is_floating(x.dtype()) ? x : x.to(DType::int64);
  if (!use_fused(kernels::cumprod, x.device())) return composite::cumprod(x, at);
  const Tensor y = empty_like(in);
  run_kernel(kernels::cumprod, in, y, at);
  return record("cumprod", {in}, y,
                [x = save(in), y = save_output(y), at](Backward& pass, const Tensor& g) {
                  const Tensor factors = pass(x);
                  const bool divides = !pass.create_graph() && all(factors).item<bool>();
                  if (divides) return Gradients{cumulated(g * pass(y), at, true) / factors};
                  return gradients_of_composite(pass, g, running_products, std::array{factors}, at);
                });
}

Tensor any(const Tensor& x, const Dims& axes, bool keepdim) {
  return truth("any", kernels::any, false, x, axes, keepdim);
}

Tensor all(const Tensor& x, const Dims& axes, bool keepdim) {
  return truth("all", kernels::all, true, x, axes, keepdim);
}

Tensor prod(const Tensor& x, const Dims& axes, bool keepdim) {
  const ReducedShape shape = reduced_shape("prod", x, axes);
  if (is_half(x.dtype())) return prod(x.to(DType::float32), axes, keepdim).to(x.dtype());
  const Tensor in = is_floating(x.dtype()) ? x : x.to(DType::int64);
  if (shape.count == 0) return sum(in, axes, keepdim) + 1;
  if (!is_floating(x.dtype()) || !use_fused(kernels::prod, x.device())) {
    const Tensor y = product(in, shape.kept);
    return finished(y.is_same(x) ? x.clone() : y, shape, keepdim);
  }
  const Tensor y = record("prod", {x}, run(kernels::prod, x, shape.kept, x.dtype()),
                          [x = save(x), kept = shape.kept](Backward& pass, const Tensor& g) {
                            return product_gradient(pass, g, pass(x), kept);
                          });
  return finished(y, shape, keepdim);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int added = x.rank() - shape.rank();
  Dims axes;
  bool fits = added >= 0;
  for (int i = 0; fits && i < x.rank(); ++i) {
    const int64_t target = i < added ? 1 : shape[i - added];
    fits = target == x.shape()[i] || target == 1;
    if (i < added || target != x.shape()[i]) axes.push_back(i);
  }
  if (!fits) {
    throw ShapeError("sum_to", "a shape that broadcasts to " + to_string(x.shape()),
                     to_string(shape));
  }
  return axes.empty() ? x.view(shape) : sum(x, axes, true).view(shape);
}

Tensor Tensor::sum() const { return sash::sum(*this); }
Tensor Tensor::sum(const Dims& axes, bool keepdim) const { return sash::sum(*this, axes, keepdim); }
Tensor Tensor::mean() const { return sash::mean(*this); }
Tensor Tensor::mean(const Dims& axes, bool keepdim) const {
  return sash::mean(*this, axes, keepdim);
}
Tensor Tensor::amax(const Dims& axes, bool keepdim) const {
  return sash::amax(*this, axes, keepdim);
}
Tensor Tensor::amin(const Dims& axes, bool keepdim) const {
  return sash::amin(*this, axes, keepdim);
}
Tensor Tensor::argmax(int64_t axis, bool keepdim) const {
  return sash::argmax(*this, axis, keepdim);
}
Tensor Tensor::argmin(int64_t axis, bool keepdim) const {
  return sash::argmin(*this, axis, keepdim);
}
Tensor Tensor::logsumexp(const Dims& axes, bool keepdim) const {
  return sash::logsumexp(*this, axes, keepdim);
}
Tensor Tensor::cumsum(int64_t axis) const { return sash::cumsum(*this, axis); }
Tensor Tensor::cumprod(int64_t axis) const { return sash::cumprod(*this, axis); }
Tensor Tensor::prod(const Dims& axes, bool keepdim) const {
  return sash::prod(*this, axes, keepdim);
}
Tensor Tensor::any(const Dims& axes, bool keepdim) const { return sash::any(*this, axes, keepdim); }
Tensor Tensor::all(const Dims& axes, bool keepdim) const { return sash::all(*this, axes, keepdim); }

}  // namespace sash
