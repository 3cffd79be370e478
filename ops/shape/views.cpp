#include "views.h"

#include <algorithm>

#include "../../tensor/kernels/gradients.h"
#include "../../tensor/kernels/memory.h"
#include "../../tensor/tensor_impl.h"
#include "../op.h"

namespace sash {
namespace {

int64_t offset_of(const Tensor& x) { return x.impl().offset; }

// Replaces an extent of -1 by its value.
Shape resolved(const char* op, const Tensor& x, const Shape& shape) {
  const auto fail = [&]() -> ShapeError {
    return {op, "a shape of " + std::to_string(x.numel()) + " elements for " + to_string(x.shape()),
            to_string(shape)};
  };
  Shape result = shape;
  int free_axis = -1;
  // From 0 on nothing overflows.
  int64_t known = std::find(shape.begin(), shape.end(), 0) == shape.end() ? 1 : 0;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == -1 && free_axis < 0) {
      free_axis = i;
    } else if (shape[i] < 0 || __builtin_mul_overflow(known, shape[i], &known)) {
      throw fail();
    }
  }
  if (free_axis >= 0) {
    if (known == 0 || x.numel() % known != 0) throw fail();
    result[free_axis] = x.numel() / known;
  } else if (known != x.numel()) {
    throw fail();
  }
  return result;
}

// Strides under which `shape` walks the elements of x in row-major order, if there are any: each
// new axis must split off a whole part of a run of old axes that is one arithmetic progression.
std::optional<Strides> reshaped_strides(const Tensor& x, const Shape& shape) {
  if (x.numel() == 0 || x.is_contiguous()) return contiguous_strides(shape);
  struct Run {
    int64_t extent, stride;
  };
  SmallVector<Run, kMaxRank> runs;  // innermost first; axes of extent 1 belong to none
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    const int64_t extent = x.shape()[axis], stride = x.strides()[axis];
    if (extent == 1) continue;
    if (!runs.empty() && stride == runs.back().extent * runs.back().stride) {
      runs.back().extent *= extent;
    } else {
      runs.push_back({extent, stride});
    }
  }
  Strides strides = Dims::filled(shape.rank(), 1);
  size_t run = 0;
  int64_t used = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    if (shape[axis] == 1) continue;
    strides[axis] = runs[run].stride * used;
    used *= shape[axis];
    if (runs[run].extent % used != 0) return std::nullopt;
    if (used == runs[run].extent) {
      ++run;
      used = 1;
    }
  }
  return strides;
}

Tensor viewed(const char* op, const Tensor& x, const Shape& shape, const Strides& strides) {
  return record(
      op, {x}, make_view(x, shape, strides, offset_of(x)),
      [from = x.shape()](Backward&, const Tensor& g) { return Gradients{g.reshape(from)}; });
}

}  // namespace

Tensor Tensor::view(const Shape& to) const {
  const Shape target = resolved("view", *this, to);
  const std::optional<Strides> target_strides = reshaped_strides(*this, target);
  if (!target_strides) {
    throw ShapeError("view",
                     "strides that walk " + to_string(target) + " without a copy; reshape copies",
                     to_string(shape()) + " with strides " + to_string(strides()));
  }
  return viewed("view", *this, target, *target_strides);
}

Tensor Tensor::reshape(const Shape& to) const {
  const Shape target = resolved("reshape", *this, to);
  if (target == shape()) return *this;
  if (const std::optional<Strides> target_strides = reshaped_strides(*this, target)) {
    return viewed("reshape", *this, target, *target_strides);
  }
  return clone().view(target);
}

Tensor Tensor::flatten(int64_t first_axis, int64_t last_axis) const {
  if (rank() == 0) return reshape({1});
  const int first = normalize_axis(first_axis, rank(), "flatten");
  const int last = normalize_axis(last_axis, rank(), "flatten");
  if (first > last) {
    throw ValueError("flatten", "first_axis <= last_axis",
                     std::to_string(first_axis) + " and " + std::to_string(last_axis));
  }
  Shape target;
  for (int i = 0; i < first; ++i) target.push_back(shape()[i]);
  Shape merged;
  for (int i = first; i <= last; ++i) merged.push_back(shape()[i]);
  target.push_back(sash::numel(merged));
  for (int i = last + 1; i < rank(); ++i) target.push_back(shape()[i]);
  return reshape(target);
}

Tensor Tensor::permute(const Dims& axes) const {
  if (axes.rank() != rank()) {
    throw ShapeError("permute", std::to_string(rank()) + " axes", to_string(axes));
  }
  Shape to;
  Strides to_strides;
  Dims inverse = Dims::filled(rank(), -1);
  for (int i = 0; i < rank(); ++i) {
    const int from = normalize_axis(axes[i], rank(), "permute");
    if (inverse[from] != -1) throw ValueError("permute", "each axis once", to_string(axes));
    inverse[from] = i;
    to.push_back(shape()[from]);
    to_strides.push_back(strides()[from]);
  }
  return record("permute", {*this}, make_view(*this, to, to_strides, offset_of(*this)),
                [inverse](Backward&, const Tensor& g) { return Gradients{g.permute(inverse)}; });
}

Tensor Tensor::transpose(int64_t axis_a, int64_t axis_b) const {
  const int a = normalize_axis(axis_a, rank(), "transpose");
  const int b = normalize_axis(axis_b, rank(), "transpose");
  Dims axes;
  for (int i = 0; i < rank(); ++i) axes.push_back(i);
  std::swap(axes[a], axes[b]);
  return permute(axes);
}

Tensor Tensor::squeeze() const {
  Shape to;
  Strides to_strides;
  for (int axis = 0; axis < rank(); ++axis) {
    if (shape()[axis] == 1) continue;
    to.push_back(shape()[axis]);
    to_strides.push_back(strides()[axis]);
  }
  return to.rank() == rank() ? *this : viewed("squeeze", *this, to, to_strides);
}

Tensor Tensor::squeeze(int64_t axis) const {
  const int at = normalize_axis(axis, rank(), "squeeze");
  if (shape()[at] != 1) return *this;
  Shape to = shape();
  Strides to_strides = strides();
  to.erase(at);
  to_strides.erase(at);
  return viewed("squeeze", *this, to, to_strides);
}

Tensor Tensor::unsqueeze(int64_t axis) const {
  const int at = normalize_axis(axis, rank() + 1, "unsqueeze");
  check_room_for_axis("unsqueeze", *this);
  Shape to = shape();
  Strides to_strides = strides();
  to.insert(at, 1);
  to_strides.insert(at, at < rank() ? strides()[at] * shape()[at] : 1);
  return viewed("unsqueeze", *this, to, to_strides);
}

Tensor Tensor::expand(const Shape& to) const {
  const int added = to.rank() - rank();
  Shape target = to;
  Strides target_strides = Dims::filled(to.rank(), 0);
  bool fits = added >= 0;
  for (int i = 0; fits && i < to.rank(); ++i) {
    const int64_t extent = i < added ? 1 : shape()[i - added];
    if (to[i] == -1 && i >= added) target[i] = extent;
    fits = target[i] >= 0 && (extent == target[i] || extent == 1);
    if (i >= added && extent == target[i]) target_strides[i] = strides()[i - added];
  }
  if (!fits) {
    throw ShapeError("expand", "a shape that " + to_string(shape()) + " broadcasts to",
                     to_string(to));
  }
  if (target == shape()) return *this;
  return record(
      "expand", {*this}, make_view(*this, target, target_strides, offset_of(*this)),
      [from = shape()](Backward&, const Tensor& g) { return Gradients{sum_to(g, from)}; });
}

Tensor Tensor::slice(int64_t axis, int64_t start, std::optional<int64_t> stop, int64_t step) const {
  const int at = normalize_axis(axis, rank(), "slice");
  if (step < 1) throw ValueError("slice", "a step of at least 1", std::to_string(step));
  const int64_t extent = shape()[at];
  const auto clamped = [extent](int64_t bound) {
    return std::clamp<int64_t>(bound < 0 ? bound + extent : bound, 0, extent);
  };
  const int64_t first = clamped(start);
  const int64_t last = std::max(first, clamped(stop.value_or(extent)));
  Shape to = shape();
  Strides to_strides = strides();
  // Longer steps take one element as well, but could overflow.
  step = std::min(step, std::max<int64_t>(extent, 1));
  to[at] = (last - first + step - 1) / step;
  to_strides[at] *= step;
  const int64_t offset = offset_of(*this) + (to[at] > 0 ? first * strides()[at] : 0);
  return record("slice", {*this}, make_view(*this, to, to_strides, offset),
                [from = shape(), at, first, step](Backward&, const Tensor& g) {
                  return Gradients{slice_backward(g, from, at, first, step)};
                });
}

Tensor Tensor::narrow(int64_t axis, int64_t start, int64_t length) const {
  const int at = normalize_axis(axis, rank(), "narrow");
  if (start < 0 || length < 0 || start > shape()[at] - length) {
    throw IndexError("narrow", "a range within extent " + std::to_string(shape()[at]),
                     "start " + std::to_string(start) + ", length " + std::to_string(length));
  }
  return slice(at, start, start + length);
}

Tensor Tensor::select(int64_t axis, int64_t index) const {
  const int at = normalize_axis(axis, rank(), "select");
  const int64_t extent = shape()[at];
  if (index < -extent || index >= extent) {
    throw IndexError("select",
                     "an index in [" + std::to_string(-extent) + ", " + std::to_string(extent) +
                         ") for axis " + std::to_string(axis),
                     std::to_string(index));
  }
  const int64_t from = index < 0 ? index + extent : index;
  return narrow(at, from, 1).squeeze(at);
}

Tensor Tensor::movedim(int64_t from, int64_t to) const {
  const int source = normalize_axis(from, rank(), "movedim");
  const int target = normalize_axis(to, rank(), "movedim");
  Dims axes;
  for (int i = 0; i < rank(); ++i) axes.push_back(i);
  axes.erase(source);
  axes.insert(target, source);
  return permute(axes);
}

Tensor Tensor::unfold(int64_t axis, int64_t size, int64_t step) const {
  const int at = normalize_axis(axis, rank(), "unfold");
  const int64_t extent = shape()[at];
  if (size < 1 || size > extent) {
    throw ValueError("unfold", "windows of 1 to " + std::to_string(extent) + " elements",
                     std::to_string(size));
  }
  if (step < 1) throw ValueError("unfold", "a step of at least 1", std::to_string(step));
  check_room_for_axis("unfold", *this);
  Shape to = shape();
  Strides to_strides = strides();
  to[at] = (extent - size) / step + 1;
  to.push_back(size);
  to_strides.push_back(to_strides[at]);
  to_strides[at] *= to[at] > 1 ? step : 1;  // a long step could overflow
  return record("unfold", {*this}, make_view(*this, to, to_strides, offset_of(*this)),
                [from = shape(), at, step](Backward&, const Tensor& g) {
                  return Gradients{unfold_backward(g, from, at, step)};
                });
}

Tensor unfold_backward(const Tensor& x, const Shape& shape, int axis, int64_t step) {
  const bool half = is_half(x.dtype());
  const Tensor y = unrecorded([&] {
    const int last = x.rank() - 1;
    const int64_t count = x.shape()[axis], size = x.shape()[last];
    const Tensor whole =
        zeros(shape, {.dtype = half ? DType::float32 : x.dtype(), .device = x.device()});
    const Tensor windows = x.to(whole.dtype());
    KernelContext context = kernel_context(x.device());
    const auto add = [&](const Tensor& part, const Tensor& to) {
      kernels::accumulate(context, to.tensor_view(), part.tensor_view(), to.tensor_view());
    };
    // As few passes as there are places in a window, or windows.
    if (size <= count) {
      for (int64_t i = 0; i < size; ++i) {
        add(windows.select(last, i), whole.slice(axis, i, i + (count - 1) * step + 1, step));
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        add(windows.select(axis, i).movedim(-1, axis), whole.narrow(axis, i * step, size));
      }
    }
    return whole.to(x.dtype());
  });
  return record("unfold_backward", {x}, y,
                [axis, step, size = x.shape().back()](Backward&, const Tensor& g) {
                  return Gradients{g.unfold(axis, size, step)};
                });
}

Tensor slice_backward(const Tensor& x, const Shape& shape, int axis, int64_t start, int64_t step) {
  Shape fitting = x.shape();
  const bool placed =
      fitting.rank() == shape.rank() && axis >= 0 && axis < shape.rank() && start >= 0 && step >= 1;
  if (placed) {
    const int64_t count = fitting[axis], extent = shape[axis];
    const bool inside = count == 0 || (start < extent && count - 1 <= (extent - 1 - start) / step);
    if (inside) fitting[axis] = extent;
  }
  if (!placed || fitting != shape) {
    throw ShapeError("slice_backward",
                     "a slice of " + to_string(shape) + " along axis " + std::to_string(axis) +
                         " from " + std::to_string(start) + " by " + std::to_string(step),
                     to_string(x.shape()));
  }
  const Tensor y = unrecorded([&] {
    const Tensor whole = zeros(shape, x.options());
    const Tensor part = whole.slice(axis, start, shape[axis], step).slice(axis, 0, x.shape()[axis]);
    run_kernel(kernels::copy, x, part);
    return whole;
  });
  return record(
      "slice_backward", {x}, y,
      [axis, start, step, count = x.shape()[axis]](Backward&, const Tensor& g) {
        return Gradients{g.slice(axis, start, g.shape()[axis], step).slice(axis, 0, count)};
      });
}

}  // namespace sash
