#include "softmax_in_place.h"

#include <optional>

#include "../../tensor/tensor_impl.h"
#include "../elementwise/promotion.h"
#include "../kernels/linalg.h"
#include "../kernels/norm.h"
#include "../linalg/matmul.h"
#include "../op.h"
#include "../row_blocks.h"

namespace sash {
namespace {

constexpr const char* kForward = "softmax_";
constexpr const char* kBackward = "softmax_backward_";

Tensor softmax_gradient(const Tensor& p, const Tensor& g) {
  const Tensor dx = empty(p.shape(), p.options());
  run_kernel(kernels::softmax_backward, p.contiguous(), g.contiguous(), dx);
  return dx;
}

bool leads_to(const Shape& leading, const Shape& shape, int rank) {
  const int skipped = rank - leading.rank();
  for (int axis = 0; axis < leading.rank() - 2; ++axis) {
    if (skipped < 0 || (leading[axis] != 1 && leading[axis] != shape[axis + skipped])) return false;
  }
  return true;
}

void check_arguments(const Tensor& p, const Tensor& d_out, const Tensor& v) {
  for (const Tensor* x : {&p, &d_out, &v}) {
    check_floating(kBackward, *x);
    check_same_device(kBackward, p, *x);
  }
  const bool matrices = p.rank() >= 2 && d_out.rank() >= 2 && v.rank() >= 2;
  const bool fits = matrices && d_out.size(-2) == p.size(-2) && v.size(-2) == p.size(-1) &&
                    d_out.size(-1) == v.size(-1) && leads_to(d_out.shape(), p.shape(), p.rank()) &&
                    leads_to(v.shape(), p.shape(), p.rank());
  if (!fits) {
    throw ShapeError(kBackward, "p [..., L, S], d_out [..., L, D] and v [..., S, D]",
                     to_string(p.shape()) + ", " + shapes_of(d_out, v));
  }
  check_write(kBackward, p, {d_out, v});
}

/// x with the leading axes of `p`, by stride 0, and its own last two.
TensorView spread(const Tensor& x, const Tensor& p) {
  Shape shape = p.shape();
  for (int axis = 1; axis <= 2; ++axis) shape[p.rank() - axis] = x.size(-axis);
  return x.expand(shape).tensor_view();
}

TensorView first_item(TensorView x) {
  x.shape.erase(0);
  x.strides.erase(0);
  return x;
}

/// Replaces the probabilities in blocks, `dtype` by `dtype`.
class GradientBlocks {
 public:
  GradientBlocks(KernelContext& context, DType dtype) : context_(context), dtype_(dtype) {}

  /// v_t is v transposed, [..., D, S].
  void operator()(const TensorView& p, const TensorView& d_out, const TensorView& v_t) {
    const int64_t count = p.shape[0];
    const int64_t size = p.numel() / std::max<int64_t>(1, count);
    if (size == 0) return;
    const bool rows = p.rank() == 2;
    const int64_t limit = block_elements(p.device);
    const int64_t step = std::clamp<int64_t>(limit / size, 1, count);
    for (int64_t i = 0; i < count; i += step) {
      const int64_t items = std::min(step, count - i);
      const TensorView part = narrow_first(p, i, items), g = narrow_first(d_out, i, items);
      const TensorView right = rows ? v_t : narrow_first(v_t, i, items);
      if (!rows && size > limit) {
        (*this)(first_item(part), first_item(g), first_item(right));
      } else {
        block(part, g, right);
      }
    }
  }

 private:
  void block(const TensorView& p, const TensorView& d_out, const TensorView& v_t) {
    const int64_t bytes = p.numel() * size_of(dtype_);
    const Workspace product(context_, bytes);
    const TensorView dp = like(p, product.ptr<void>(), dtype_);
    kernels::matmul(context_, d_out, v_t, dp, 1, 0);
    if (p.dtype == dtype_ && p.is_contiguous()) {
      return kernels::softmax_backward(context_, p, dp, p);
    }
    const Workspace copy(context_, bytes);
    const TensorView wide = like(p, copy.ptr<void>(), dtype_);
    kernels::copy(context_, p, wide);
    kernels::softmax_backward(context_, wide, dp, wide);
    kernels::copy(context_, wide, p);
  }

  KernelContext& context_;
  DType dtype_;
};

void replace(const Tensor& p, const Tensor& d_out, const Tensor& v, DType dtype) {
  if (p.numel() == 0) return;
  const NoGradGuard no_grad;
  const Tensor g = d_out.to(dtype), v_t = v.to(dtype).mT();
  KernelContext context = kernel_context(p.device());
  GradientBlocks(context, dtype)(p.tensor_view(), spread(g, p), spread(v_t, p));
}

}  // namespace

Tensor softmax_(Tensor x, int64_t axis) {
  check_floating(kForward, x);
  const int along = normalize_axis(axis, x.rank(), kForward);
  check_write(kForward, x);
  if (along != x.rank() - 1) {
    softmax_(x.transpose(along, -1));
    return x;
  }
  const DType dtype = row_dtype(x.device(), x.dtype());
  KernelContext context = kernel_context(x.device());
  over_row_blocks(context, x.tensor_view(), dtype,
                  [&](const TensorView& rows) { kernels::softmax_forward(context, rows, rows); });
  // What is saved is the result, so the write counts before it is saved.
  detail::count_write(x);
  const TensorRef inputs[] = {x};
  if (!detail::should_record(inputs)) return x;
  auto backward = [dtype, y = save_output(x)](Backward& pass, const Tensor& g) {
    const Tensor p = pass(y).to(dtype), wide = g.to(dtype);
    const Tensor dx =
        pass.create_graph() ? p * (wide - sum(wide * p, {-1}, true)) : softmax_gradient(p, wide);
    return Gradients{dx.to(g.dtype())};
  };
  detail::attach_in_place(detail::make_node(kForward, std::move(backward)), inputs, x);
  return x;
}

Tensor composite::softmax_backward(const Tensor& p, const Tensor& d_out, const Tensor& v) {
  const Tensor dp = matmul(d_out, v.mT());
  return (dp - sum(p * dp, {-1}, true)) * p;
}

Tensor softmax_backward_(Tensor p, const Tensor& d_out, const Tensor& v) {
  check_arguments(p, d_out, v);
  const DType dtype =
      row_dtype(p.device(), promote_types(promote_types(p.dtype(), d_out.dtype()), v.dtype()));
  const bool recorded =
      grad_enabled() && (p.requires_grad() || d_out.requires_grad() || v.requires_grad());
  const Saved old = recorded ? save(p.clone()) : Saved();
  const Tensor g = clone_if_aliased(d_out, p), values = clone_if_aliased(v, p);
  replace(p, g, values, dtype);
  record_in_place(
      kBackward, p, {p, g, values},
      [old, g = recorded ? save(g) : Saved(), values = recorded ? save(values) : Saved(), dtype](
          Backward& pass, const Tensor& cotangent) {
        const Tensor inputs[] = {pass(old), pass(g), pass(values)};
        return differentiate(
            [&](std::span<const Tensor> in) {
              return composite::softmax_backward(in[0].to(dtype), in[1].to(dtype), in[2].to(dtype))
                  .to(cotangent.dtype());
            },
            inputs, cotangent, pass);
      });
  return p;
}

}  // namespace sash
