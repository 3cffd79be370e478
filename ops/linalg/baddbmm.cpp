#include "baddbmm.h"

#include "../../tensor/copy.h"
#include "../../tensor/tensor_impl.h"
#include "../elementwise/promotion.h"
#include "../kernels/linalg.h"
#include "../op.h"
#include "../row_blocks.h"
#include "batch.h"
#include "matmul.h"

namespace sash {
namespace {

/// The operands of a product without transposes that gives the result as it is wanted.
struct Factors {
  Tensor left, right;

  Factors(const Tensor& a, const Tensor& b, const BaddbmmOptions& options) {
    const bool swap = options.transpose_product;
    const Tensor& first = swap ? b : a;
    const Tensor& second = swap ? a : b;
    left = swap != (swap ? options.transpose_b : options.transpose_a) ? first.mT() : first;
    right = swap != (swap ? options.transpose_a : options.transpose_b) ? second.mT() : second;
  }

  Shape shape(const char* op) const {
    return detail::with_matrix(
        broadcast_shapes(detail::batch_of(left), detail::batch_of(right), op), left.size(-2),
        right.size(-1));
  }
};

Factors checked_factors(const char* op, const Tensor& a, const Tensor& b,
                        const BaddbmmOptions& options) {
  check_compatible(op, a, b);
  check_not_bool(op, a);
  if (is_integral(a.dtype())) {
    for (const double factor : {options.alpha, options.beta}) check_holds(op, a.dtype(), factor);
  }
  check_min_rank(op, a, 2);
  check_min_rank(op, b, 2);
  const int64_t inner_a = a.size(options.transpose_a ? -2 : -1);
  const int64_t inner_b = b.size(options.transpose_b ? -1 : -2);
  if (inner_a != inner_b) {
    throw ShapeError(op, "op_a(a) [..., M, K] and op_b(b) [..., K, N] with one K",
                     to_string(a.shape()) + (options.transpose_a ? " transposed and " : " and ") +
                         to_string(b.shape()) + (options.transpose_b ? " transposed" : ""));
  }
  return {a, b, options};
}

/// `c` broadcasts to the result.
void check_addend(const char* op, const Tensor& c, const Tensor& a, const Shape& shape) {
  check_compatible(op, a, c);
  if (broadcast_shapes(c.shape(), shape, op) == shape) return;
  throw ShapeError(op, "c that broadcasts to " + to_string(shape), to_string(c.shape()));
}

/// y = beta y + alpha left right.
void run(const Factors& factors, const Tensor& y, double alpha, double beta) {
  const Shape batch = detail::batch_of(y);
  run_kernel(kernels::matmul, detail::broadcast_batch(factors.left, batch),
             detail::broadcast_batch(factors.right, batch), y, alpha, beta);
}

/// alpha left right + beta c of integers.
Tensor integer_sum(const Tensor& c, const Factors& factors, const BaddbmmOptions& options) {
  const Tensor y = matmul(factors.left, factors.right) * static_cast<int64_t>(options.alpha);
  return options.beta == 0 ? y : y + c * static_cast<int64_t>(options.beta);
}

/// alpha left right, recorded.
Tensor scaled_product(const Tensor& left, const Tensor& right, double alpha) {
  return baddbmm({}, left, right, {.alpha = alpha, .beta = 0});
}

/// The gradients of c, a and b.
struct Gradient {
  Saved a, b;
  Shape shape_a, shape_b, shape_c;
  BaddbmmOptions options;

  Gradients operator()(Backward& pass, const Tensor& g) const {
    Gradients grads(3);
    if (pass.needs(0)) {
      const Tensor total = sum_to(g, shape_c);
      grads[0] = options.beta == 1 ? total : mul(total, options.beta);
    }
    // Of the product before it is transposed: [..., M, N].
    const Tensor wide = options.transpose_product ? g.mT() : g;
    if (pass.needs(1)) {
      const Tensor factor = pass(b);  // op_b(b)' [..., N, K]
      const Tensor right = options.transpose_b ? factor : factor.mT();
      const Tensor d = options.transpose_a ? scaled_product(right.mT(), wide.mT(), options.alpha)
                                           : scaled_product(wide, right, options.alpha);
      grads[1] = sum_to(d, shape_a);
    }
    if (pass.needs(2)) {
      const Tensor factor = pass(a);  // op_a(a)' [..., K, M]
      const Tensor left = options.transpose_a ? factor : factor.mT();
      const Tensor d = options.transpose_b ? scaled_product(wide.mT(), left.mT(), options.alpha)
                                           : scaled_product(left, wide, options.alpha);
      grads[2] = sum_to(d, shape_b);
    }
    return grads;
  }
};

Gradient gradient(const Tensor& c, const Tensor& a, const Tensor& b,
                  const BaddbmmOptions& options) {
  return {save_if(b.requires_grad(), a),
          save_if(a.requires_grad(), b),
          a.shape(),
          b.shape(),
          c.defined() ? c.shape() : Shape{},
          options};
}

}  // namespace

Tensor baddbmm(const Tensor& c, const Tensor& a, const Tensor& b, const BaddbmmOptions& options) {
  const char* op = "baddbmm";
  if (Autocast cast(op); cast) return baddbmm(cast(c), cast(a), cast(b), options);
  const Factors factors = checked_factors(op, a, b, options);
  const Shape shape = factors.shape(op);
  if (c.defined() || options.beta != 0) check_addend(op, c, a, shape);
  if (is_integral(a.dtype())) return integer_sum(c, factors, options);
  const Tensor y = empty(shape, a.options());
  if (options.beta != 0) copy_elements(c.expand(shape), y);
  run(factors, y, options.alpha, options.beta);
  return record(op, {c, a, b}, y, gradient(c, a, b, options));
}

Tensor baddbmm_(Tensor c, const Tensor& a, const Tensor& b, const BaddbmmOptions& options) {
  const char* op = "baddbmm_";
  const Factors factors = checked_factors(op, a, b, options);
  check_compatible(op, a, c);
  check_shape(op, c, factors.shape(op));
  for (const Tensor* x : {&a, &b}) {
    if (c.impl().storage != x->impl().storage) continue;
    throw ValueError(op, "a c that shares no memory with a and b", "one that does");
  }
  check_write(op, c, {a, b});
  if (is_integral(a.dtype())) return c.copy_(integer_sum(c, factors, options));
  const int last = c.rank() - 1;
  const bool unit_stride = c.strides()[last] == 1 || c.strides()[last - 1] == 1;
  if (unit_stride) {
    run(factors, c, options.alpha, options.beta);
  } else {
    const NoGradGuard no_grad;
    const Tensor y = c.clone();
    run(factors, y, options.alpha, options.beta);
    copy_elements(y, c);
  }
  record_in_place(op, c, {c, a, b}, gradient(c, a, b, options));
  return c;
}

}  // namespace sash
