#include "gather.h"

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../kernels/index.h"
#include "index_checks.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&, int)>
    gather{"gather"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&, int)>
    scatter_add{"scatter_add"};
}  // namespace kernels

namespace {

// `inner` is at most `outer` on every axis but `except`.
void check_fits(const char* op, const Shape& inner, const Shape& outer, int except) {
  bool fits = inner.rank() == outer.rank();
  for (int i = 0; fits && i < inner.rank(); ++i) fits = i == except || inner[i] <= outer[i];
  if (!fits) {
    throw ShapeError(op,
                     "an index that fits into " + to_string(outer) +
                         (except >= 0 ? " on every axis but " + std::to_string(except) : ""),
                     to_string(inner));
  }
}

// The axis, after every check that `gather` and `scatter_add` share.
int check_arguments(const char* op, const Tensor& x, int64_t axis, const Tensor& index) {
  check_defined(op, x);
  check_min_rank(op, x, 1);
  check_index_tensor(op, x, index);
  const int at = normalize_axis(axis, x.rank(), op);
  check_fits(op, index.shape(), x.shape(), at);
  check_index_values(op, index, x.shape()[at]);
  return at;
}

// Both below take an index that has been checked.

// y += src at `index`, where y is a fresh copy of x, or fresh zeros if x is undefined.
Tensor scatter_into(const Tensor& y, const Tensor& x, int axis, const Tensor& index,
                    const Tensor& src);

Tensor take(const Tensor& x, int axis, const Tensor& index) {
  const Tensor y = empty(index.shape(), x.options());
  KernelContext context = kernel_context(x.device());
  kernels::gather(context, x.tensor_view(), index.tensor_view(), y.tensor_view(), axis);
  return record(
      "gather", {x}, y,
      [shape = x.shape(), axis, index = save(index)](Backward& pass, const Tensor& g) {
        return Gradients{scatter_into(zeros(shape, g.options()), {}, axis, pass(index), g)};
      });
}

Tensor scatter_into(const Tensor& y, const Tensor& x, int axis, const Tensor& index,
                    const Tensor& src) {
  KernelContext context = kernel_context(y.device());
  kernels::scatter_add(context, y.tensor_view(), index.tensor_view(), src.tensor_view(), axis);
  return record("scatter_add", {x, src}, y,
                [axis, index = save(index)](Backward& pass, const Tensor& g) {
                  return Gradients{g, pass.needs(1) ? take(g, axis, pass(index)) : Tensor()};
                });
}

}  // namespace

Tensor gather(const Tensor& x, int64_t axis, const Tensor& index) {
  check_defined("gather", index, "indices");
  const Tensor in = index.contiguous();
  return take(x, check_arguments("gather", x, axis, in), in);
}

Tensor scatter_add(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src) {
  constexpr const char* op = "scatter_add";
  check_compatible(op, x, src);
  check_not_bool(op, x);
  check_defined(op, index, "indices");
  const Tensor in = index.contiguous();
  const int at = check_arguments(op, x, axis, in);
  check_fits(op, in.shape(), src.shape(), -1);
  Tensor used = src;
  for (int i = 0; i < src.rank(); ++i) {
    if (in.shape()[i] != src.shape()[i]) used = used.narrow(i, 0, in.shape()[i]);
  }
  const Tensor y = [&] {
    const NoGradGuard no_grad;
    return x.clone();
  }();
  return scatter_into(y, x, at, in, used);
}

Tensor index_select(const Tensor& x, int64_t axis, const Tensor& index) {
  constexpr const char* op = "index_select";
  check_defined(op, x);
  check_min_rank(op, x, 1);
  const int at = normalize_axis(axis, x.rank(), op);
  check_index_tensor(op, x, index);
  check_rank(op, index, 1);
  const Tensor in = index.contiguous();
  check_index_values(op, in, x.shape()[at]);
  Shape along = Shape::filled(x.rank(), 1), full = x.shape();
  along[at] = full[at] = in.numel();
  return take(x, at, in.view(along).expand(full));
}

Tensor one_hot(const Tensor& index, int64_t classes) {
  check_defined("one_hot", index, "indices");
  check_dtype("one_hot", index, DType::int64);
  if (classes < 1) throw ValueError("one_hot", "at least one class", std::to_string(classes));
  if (index.rank() == kMaxRank) {
    throw ShapeError("one_hot", "at most " + std::to_string(kMaxRank - 1) + " axes",
                     to_string(index.shape()));
  }
  const Tensor in = index.contiguous();
  check_index_values("one_hot", in, classes);
  const Tensor places = in.unsqueeze(-1);
  Shape shape = in.shape();
  shape.push_back(classes);
  // Not a comparison: on CUDA that would give zeros for an index out of range, and no error.
  return scatter_into(zeros(shape, in.options()), {}, in.rank(), places,
                      ones(places.shape(), in.options()));
}

}  // namespace sash
