#include "gather.h"

#include "../kernels/index.h"
#include "../op.h"
#include "embedding.h"
#include "index_checks.h"
#include "slices.h"

namespace sash {

namespace kernels {
constinit decltype(gather) gather{"gather"};
constinit decltype(scatter_add) scatter_add{"scatter_add"};
constinit decltype(scatter) scatter{"scatter"};
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
  check_signed_index_values(op, index, x.shape()[at]);
  return at;
}

// src cut to the shape of the index.
Tensor fitted(const Tensor& src, const Shape& shape) {
  Tensor used = src;
  for (int i = 0; i < src.rank(); ++i) {
    if (shape[i] != src.shape()[i]) used = used.narrow(i, 0, shape[i]);
  }
  return used;
}

// A fresh copy of x without history.
Tensor copy_of(const Tensor& x) {
  return unrecorded([&] { return x.clone(); });
}

// The axis, after the checks of a 1-dimensional index into x.
int check_slices(const char* op, const Tensor& x, int64_t axis, const Tensor& index) {
  check_defined(op, x);
  check_min_rank(op, x, 1);
  const int at = normalize_axis(axis, x.rank(), op);
  check_index_tensor(op, x, index);
  check_rank(op, index, 1);
  check_signed_index_values(op, index.contiguous(), x.shape()[at]);
  return at;
}

// The functions below take an index that has been checked.

// y += src at `index`, where y is a fresh copy of x, or fresh zeros if x is undefined.
Tensor scatter_into(const Tensor& y, const Tensor& x, int axis, const Tensor& index,
                    const Tensor& src);

Tensor take(const Tensor& x, int axis, const Tensor& index) {
  const Tensor y = empty(index.shape(), x.options());
  run_kernel(kernels::gather, x, index, y, axis);
  return record(
      "gather", {x}, y,
      [shape = x.shape(), axis, index = save(index)](Backward& pass, const Tensor& g) {
        return Gradients{scatter_into(zeros(shape, g.options()), {}, axis, pass(index), g)};
      });
}

Tensor scatter_into(const Tensor& y, const Tensor& x, int axis, const Tensor& index,
                    const Tensor& src) {
  run_kernel(kernels::scatter_add, y, index, src, axis);
  return record("scatter_add", {x, src}, y,
                [axis, index = save(index)](Backward& pass, const Tensor& g) {
                  return Gradients{g, pass.needs(1) ? take(g, axis, pass(index)) : Tensor()};
                });
}

// y with src at `index`, where y is a fresh copy of x.
Tensor replace_in(const Tensor& y, const Tensor& x, int axis, const Tensor& index,
                  const Tensor& src) {
  run_kernel(kernels::scatter, y, index, src, axis);
  return record(
      "scatter", {x, src}, y, [axis, index = save(index)](Backward& pass, const Tensor& g) {
        const Tensor at = pass(index);
        return gradients_of(
            pass,
            [&] {
              const Tensor zero = zeros({}, g.options()).expand(at.shape());
              return replace_in(copy_of(g), g, axis, at, zero);
            },
            [&] {
              return masked_fill(take(g, axis, at), detail::overwritten(g.shape(), axis, at), 0);
            });
      });
}

/// place(copy of x, x, ...) after the checks that `scatter_add` and `scatter` share.
Tensor scattered(const char* op, decltype(scatter_into) place, const Tensor& x, int64_t axis,
                 const Tensor& index, const Tensor& src) {
  check_defined(op, index, "indices");
  const Tensor in = index.contiguous();
  const int at = check_arguments(op, x, axis, in);
  check_fits(op, in.shape(), src.shape(), -1);
  return place(copy_of(x), x, at, in, fitted(src, in.shape()));
}

}  // namespace

Tensor detail::spread(const Tensor& index, const Shape& shape, int axis) {
  Shape along = Shape::filled(shape.rank(), 1), full = shape;
  along[axis] = full[axis] = index.numel();
  return index.view(along).expand(full);
}

Tensor detail::overwritten(const Shape& shape, int axis, const Tensor& index) {
  const NoGradGuard no_grad;
  const Tensor order =
      spread(arange(index.size(axis), {.device = index.device()}), index.shape(), axis);
  const Tensor last = zeros(shape, order.options());
  run_kernel(kernels::scatter, last, index, order, axis);
  return ne(take(last, axis, index), order);
}

Tensor gather(const Tensor& x, int64_t axis, const Tensor& index) {
  check_defined("gather", index, "indices");
  const Tensor in = index.contiguous();
  return take(x, check_arguments("gather", x, axis, in), in);
}

Tensor scatter_add(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src) {
  check_compatible("scatter_add", x, src);
  check_not_bool("scatter_add", x);
  return scattered("scatter_add", scatter_into, x, axis, index, src);
}

Tensor scatter(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src) {
  check_compatible("scatter", x, src);
  return scattered("scatter", replace_in, x, axis, index, src);
}

Tensor index_add(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src) {
  constexpr const char* op = "index_add";
  const int at = check_slices(op, x, axis, index);
  check_compatible(op, x, src);
  check_not_bool(op, x);
  Shape expected = x.shape();
  expected[at] = index.numel();
  check_shape(op, src, expected);
  return scatter_into(copy_of(x), x, at, detail::spread(index.contiguous(), x.shape(), at), src);
}

Tensor index_select(const Tensor& x, int64_t axis, const Tensor& index) {
  const int at = check_slices("index_select", x, axis, index);
  return take(x, at, detail::spread(index.contiguous(), x.shape(), at));
}

Tensor one_hot(const Tensor& index, int64_t classes) {
  check_defined("one_hot", index, "indices");
  check_dtype("one_hot", index, DType::int64, "indices");
  if (classes < 1) throw ValueError("one_hot", "at least one class", std::to_string(classes));
  check_room_for_axis("one_hot", index);
  const Tensor in = index.contiguous();
  check_index_values("one_hot", in, classes);
  // The scatter takes negative indices; an embedding reports those on a card.
  const Tensor places = embedding(arange(classes, in.options()).unsqueeze(1), in);
  Shape shape = in.shape();
  shape.push_back(classes);
  // Not a comparison: on CUDA that would give zeros for an index out of range, and no error.
  return scatter_into(zeros(shape, in.options()), {}, in.rank(), places,
                      ones(places.shape(), in.options()));
}

Tensor Tensor::gather(int64_t axis, const Tensor& index) const {
  return sash::gather(*this, axis, index);
}
Tensor Tensor::scatter(int64_t axis, const Tensor& index, const Tensor& src) const {
  return sash::scatter(*this, axis, index, src);
}
Tensor Tensor::scatter_add(int64_t axis, const Tensor& index, const Tensor& src) const {
  return sash::scatter_add(*this, axis, index, src);
}
Tensor Tensor::index_select(int64_t axis, const Tensor& index) const {
  return sash::index_select(*this, axis, index);
}
Tensor Tensor::index_add(int64_t axis, const Tensor& index, const Tensor& src) const {
  return sash::index_add(*this, axis, index, src);
}

}  // namespace sash
