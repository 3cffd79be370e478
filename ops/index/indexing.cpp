#include "indexing.h"

#include <algorithm>
#include <vector>

#include "../../tensor/tensor_impl.h"
#include "../elementwise/promotion.h"
#include "../kernels/index.h"
#include "../op.h"
#include "../row_blocks.h"
#include "../shape/concat.h"
#include "gather.h"
#include "index_checks.h"
#include "slices.h"

namespace sash {

constinit decltype(kernels::true_places) kernels::true_places{"true_places"};

namespace {

using Indices = std::span<const TensorIndex>;
using Kind = TensorIndex::Kind;

/// A tensor among the indices, and the first axis of the view that it indexes.
struct AxisIndex {
  Tensor index;
  int axis;
};

/// What indices without tensors make of x, and the tensors.
struct Parts {
  Tensor view;
  std::vector<AxisIndex> tensors;
};

/// Axes of x that an index stands for; -1 for an ellipsis.
int axes_of(const TensorIndex& index) {
  if (index.kind == Kind::ellipsis) return -1;
  if (index.kind == Kind::new_axis) return 0;
  const Tensor& x = index.tensor;
  return x.defined() && x.dtype() == DType::boolean ? x.rank() : 1;
}

void check_index(const char* op, const Tensor& x, const Tensor& index) {
  check_defined(op, index, "indices");
  check_same_device(op, x, index);
  if (index.dtype() == DType::boolean) return check_min_rank(op, index, 1);
  if (index.dtype() != DType::int64) throw DTypeError(op, "int64 or bool", name(index.dtype()));
}

/// The axes that an ellipsis stands for, after the checks that need all indices.
int axes_left(const char* op, const Tensor& x, Indices indices) {
  int named = 0, ellipses = 0;
  for (const TensorIndex& index : indices) {
    if (index.kind == Kind::tensor) check_index(op, x, index.tensor);
    const int axes = axes_of(index);
    axes < 0 ? ++ellipses : named += axes;
  }
  if (ellipses > 1) {
    throw IndexError(op, "at most one kEllipsis", std::to_string(ellipses));
  }
  if (named > x.rank()) {
    throw IndexError(op,
                     "at most " + std::to_string(x.rank()) + " indices for " + to_string(x.shape()),
                     std::to_string(named));
  }
  return x.rank() - named;
}

Parts parts_of(const char* op, const Tensor& x, Indices indices) {
  check_defined(op, x);
  const int left = axes_left(op, x, indices);
  Parts parts{x, {}};
  Tensor& view = parts.view;
  const auto axes = [left](const TensorIndex& index) {
    const int named = axes_of(index);
    return named < 0 ? left : named;
  };
  // First what takes axes away, so that there is room for new ones.
  int axis = 0, added = 0;
  for (const TensorIndex& index : indices) {
    if (index.kind == Kind::number) {
      view = view.select(axis, index.number);
      continue;
    }
    // Of other kinds, the slice is the whole axis.
    const Slice& part = index.slice;
    const bool whole = !part.start && !part.stop && part.step == 1;
    if (!whole) view = view.slice(axis, part.start.value_or(0), part.stop, part.step);
    added += index.kind == Kind::new_axis ? 1 : 0;
    axis += axes(index);
  }
  if (view.rank() + added > kMaxRank) {
    throw ShapeError(op, "at most " + std::to_string(kMaxRank) + " axes, new ones included",
                     std::to_string(view.rank() + added));
  }
  axis = 0;
  for (const TensorIndex& index : indices) {
    if (index.kind == Kind::number) continue;
    if (index.kind == Kind::new_axis) view = view.unsqueeze(axis++);
    if (index.kind == Kind::tensor) parts.tensors.push_back({index.tensor, axis});
    axis += axes(index);
  }
  return parts;
}

/// The places of the true elements of a contiguous bool tensor.
Tensor places_of(const Tensor& mask) {
  const Tensor flags = mask.contiguous().flatten();
  const Tensor places =
      empty({sum(flags).item<int64_t>()}, {.dtype = DType::int64, .device = mask.device()});
  run_kernel(kernels::true_places, flags, places);
  return places;
}

/// The places of the true elements as an index for each axis of the mask.
std::vector<Tensor> coordinates_of(const Tensor& mask) {
  std::vector<Tensor> columns(static_cast<size_t>(mask.rank()));
  Tensor rest = places_of(mask);
  for (int axis = mask.rank() - 1; axis >= 0; --axis) {
    const int64_t extent = std::max<int64_t>(mask.shape()[axis], 1);
    columns[static_cast<size_t>(axis)] = rest % extent;
    rest = floor_divide(rest, extent);
  }
  return columns;
}

/// Slices of `rows` along `axis`, by a 1-dimensional index that stands for one of shape `shape`.
/// `rows` is `source` with some axes flattened.
struct Selection {
  Tensor source, rows;
  int axis;
  Tensor index;
  Shape shape;
};

void check_mask(const char* op, const Tensor& view, const AxisIndex& mask) {
  Shape expected;
  for (int i = 0; i < mask.index.rank(); ++i) expected.push_back(view.shape()[mask.axis + i]);
  check_shape(op, mask.index, expected);
}

Selection select_one(const char* op, const Tensor& view, const AxisIndex& by) {
  const auto& [index, axis] = by;
  if (index.dtype() == DType::boolean) {
    check_mask(op, view, by);
    const Tensor places = places_of(index);
    return {view, view.flatten(axis, axis + index.rank() - 1), axis, places, places.shape()};
  }
  const Tensor in = index.contiguous();
  check_signed_index_values(op, in, view.shape()[axis]);
  return {view, view, axis, in.flatten(), in.shape()};
}

/// The indices of several axes as one index of these axes flattened; out of its range if one of
/// them is out of its own.
Tensor flat_index(const char* op, const Tensor& view, const std::vector<AxisIndex>& indices) {
  Tensor flat, valid;
  int64_t total = 1;
  for (const auto& [index, axis] : indices) {
    const int64_t extent = view.shape()[axis];
    check_signed_index_values(op, index.contiguous(), extent);
    const Tensor inside = (index >= -extent) & (index < extent);
    const Tensor from_start = where(index < 0, index + extent, index);
    flat = flat.defined() ? flat * extent + from_start : from_start;
    valid = valid.defined() ? valid & inside : inside;
    total *= extent;
  }
  return where(valid, flat, total);
}

/// Brings the indexed axes together.
Selection select_several(const char* op, const Tensor& view, const std::vector<AxisIndex>& given) {
  std::vector<AxisIndex> indices;
  for (const AxisIndex& by : given) {
    if (by.index.dtype() != DType::boolean) {
      indices.push_back(by);
      continue;
    }
    check_mask(op, view, by);
    int axis = by.axis;
    for (const Tensor& column : coordinates_of(by.index)) indices.push_back({column, axis++});
  }
  Shape shape;
  for (const AxisIndex& by : indices) shape = broadcast_shapes(shape, by.index.shape(), op);
  const int count = static_cast<int>(indices.size()), first = indices.front().axis;
  const int to = indices.back().axis - first == count - 1 ? first : 0;
  Dims order, indexed;
  for (const AxisIndex& by : indices) indexed.push_back(by.axis);
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (std::find(indexed.begin(), indexed.end(), axis) == indexed.end()) order.push_back(axis);
  }
  for (int i = 0; i < count; ++i) order.insert(to + i, indexed[i]);
  const Tensor source = view.permute(order);
  const Tensor flat = flat_index(op, view, indices).contiguous().flatten();
  return {source, source.flatten(to, to + count - 1), to, flat, shape};
}

Selection select(const char* op, const Parts& parts) {
  return parts.tensors.size() == 1 ? select_one(op, parts.view, parts.tensors.front())
                                   : select_several(op, parts.view, parts.tensors);
}

/// The shape of what is selected.
Shape selected_shape(const char* op, const Selection& chosen) {
  Shape shape = chosen.rows.shape();
  if (shape.rank() - 1 + chosen.shape.rank() > kMaxRank) {
    throw ShapeError(op, "a result of at most " + std::to_string(kMaxRank) + " axes",
                     "indices " + to_string(chosen.shape) + " for one of " + to_string(shape));
  }
  shape.erase(chosen.axis);
  for (int i = 0; i < chosen.shape.rank(); ++i) shape.insert(chosen.axis + i, chosen.shape[i]);
  return shape;
}

/// Writes to, or adds to, slices of `rows` in place.
void put(const char* op, Tensor rows, int axis, const Tensor& index, const Tensor& values,
         bool accumulate) {
  const Tensor places = detail::spread(index, rows.shape(), axis);
  const auto& kernel = accumulate ? kernels::scatter_add : kernels::scatter;
  run_kernel(kernel, rows, places, values, axis);
  record_in_place(op, rows, {rows, values},
                  [axis, accumulate, index = save(index)](Backward& pass, const Tensor& g) {
                    const Tensor in = pass(index), at = detail::spread(in, g.shape(), axis);
                    return gradients_of(
                        pass,
                        [&] {
                          if (accumulate) return g;
                          return scatter(g, axis, at, zeros({}, g.options()).expand(at.shape()));
                        },
                        [&] {
                          const Tensor own = index_select(g, axis, in);
                          if (accumulate) return own;
                          return masked_fill(own, detail::overwritten(g.shape(), axis, at), 0);
                        });
                  });
}

/// The mask, if it is the only tensor among the indices.
const Tensor* only_mask(const Parts& parts) {
  if (parts.tensors.size() != 1) return nullptr;
  const Tensor& index = parts.tensors.front().index;
  return index.dtype() == DType::boolean ? &index : nullptr;
}

}  // namespace

Tensor index(const Tensor& x, Indices indices) {
  constexpr const char* op = "index";
  const Parts parts = parts_of(op, x, indices);
  if (parts.tensors.empty()) return parts.view;
  const Selection chosen = select(op, parts);
  const Shape shape = selected_shape(op, chosen);
  return index_select(chosen.rows, chosen.axis, chosen.index).view(shape);
}

void index_put_(const Tensor& x, Indices indices, const Tensor& values, bool accumulate) {
  constexpr const char* op = "index_put_";
  Parts parts = parts_of(op, x, indices);
  check_defined(op, values, "values");
  if (parts.tensors.empty()) {
    accumulate ? parts.view.add_(values) : parts.view.copy_(values);
    return;
  }
  check_compatible(op, x, values);
  if (accumulate) check_not_bool(op, x);
  check_write(op, parts.view, {values});
  Selection chosen = select(op, parts);
  const Shape shape = selected_shape(op, chosen);
  if (broadcast_shapes(shape, values.shape(), op) != shape) {
    throw ShapeError(op, "values that broadcast to " + to_string(shape), to_string(values.shape()));
  }
  Shape flat = chosen.rows.shape();
  flat[chosen.axis] = chosen.index.numel();
  const Tensor from = clone_if_aliased(values, x).expand(shape).reshape(flat);
  chosen.index = clone_if_aliased(chosen.index, x);
  put(op, chosen.rows, chosen.axis, chosen.index, from, accumulate);
  // Axes that cannot be flattened in place were copied.
  if (chosen.rows.impl().storage == x.impl().storage) return;
  chosen.source.copy_(chosen.rows.view(chosen.source.shape()));
}

void index_put_(const Tensor& x, Indices indices, Scalar value) {
  constexpr const char* op = "index_put_";
  Parts parts = parts_of(op, x, indices);
  check_holds(op, x.dtype(), value);
  if (parts.tensors.empty()) {
    parts.view.fill_(value);
  } else if (const Tensor* mask = only_mask(parts)) {
    check_mask(op, parts.view, parts.tensors.front());
    Shape shape = mask->shape();
    const int after = parts.view.rank() - parts.tensors.front().axis - mask->rank();
    for (int i = 0; i < after; ++i) shape.push_back(1);
    parts.view.masked_fill_(mask->reshape(shape), value);
  } else {
    index_put_(x, indices, scalar_tensor(value, x.options()));
  }
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  constexpr const char* op = "masked_select";
  check_defined_together(op, x, mask);
  check_dtype(op, mask, DType::boolean, "a mask");
  const Shape shape = broadcast_shapes(x.shape(), mask.shape(), op);
  return index_select(x.expand(shape).flatten(), 0, places_of(mask.expand(shape)));
}

Tensor nonzero(const Tensor& x) {
  check_defined("nonzero", x);
  const NoGradGuard no_grad;
  const Tensor mask = x.dtype() == DType::boolean ? x : ne(x, 0);
  if (x.rank() > 0) return stack(coordinates_of(mask), 1);
  return empty({places_of(mask).numel(), 0}, {.dtype = DType::int64, .device = x.device()});
}

Tensor repeat_interleave(const Tensor& x, const Tensor& counts, int64_t axis) {
  constexpr const char* op = "repeat_interleave";
  check_defined(op, x);
  check_defined(op, counts, "counts");
  const int at = normalize_axis(axis, x.rank(), op);
  check_dtype(op, counts, DType::int64, "counts");
  check_shape(op, counts, {x.shape()[at]});
  const std::vector<int64_t> times = counts.to_vector<int64_t>();
  int64_t length = 0;
  for (const int64_t count : times) {
    check_not_negative(op, "counts", count);
    if (__builtin_add_overflow(length, count, &length)) {
      throw ShapeError(op, "counts whose sum is below 2^63", "more");
    }
  }
  Tensor places = empty({length}, {.dtype = DType::int64, .device = kCPU});
  int64_t* place = places.data<int64_t>();
  for (size_t slice = 0; slice < times.size(); ++slice) {
    place = std::fill_n(place, times[slice], static_cast<int64_t>(slice));
  }
  return index_select(x, at, places.to(x.device()));
}

Tensor Tensor::operator[](std::initializer_list<TensorIndex> indices) const {
  return index(*this, {indices.begin(), indices.size()});
}
Tensor Tensor::operator[](const Tensor& by) const {
  const TensorIndex only(by);
  return index(*this, {&only, 1});
}
Tensor& Tensor::index_put_(std::initializer_list<TensorIndex> indices, const Tensor& values,
                           bool accumulate) {
  sash::index_put_(*this, {indices.begin(), indices.size()}, values, accumulate);
  return *this;
}
Tensor& Tensor::index_put_(std::initializer_list<TensorIndex> indices, Scalar value) {
  sash::index_put_(*this, {indices.begin(), indices.size()}, value);
  return *this;
}
Tensor Tensor::nonzero() const { return sash::nonzero(*this); }
Tensor Tensor::masked_select(const Tensor& mask) const { return sash::masked_select(*this, mask); }
Tensor Tensor::repeat_interleave(const Tensor& counts, int64_t axis) const {
  return sash::repeat_interleave(*this, counts, axis);
}

}  // namespace sash
