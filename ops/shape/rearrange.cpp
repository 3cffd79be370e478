#include "rearrange.h"

#include <algorithm>

#include "../../tensor/kernels/memory.h"
#include "../elementwise/promotion.h"
#include "../op.h"
#include "concat.h"

namespace sash {
namespace {

/// The axes of `flip`, each once.
Dims distinct_axes(const char* op, const Tensor& x, const Dims& axes) {
  Dims found;
  for (const int64_t axis : axes) {
    const int at = normalize_axis(axis, x.rank(), op);
    if (std::find(found.begin(), found.end(), at) != found.end()) {
      throw ValueError(op, "each axis once", to_string(axes));
    }
    found.push_back(at);
  }
  return found;
}

Tensor flipped(const Tensor& x, const Dims& axes) {
  const Tensor y = empty_like(x);
  TensorView from = x.tensor_view();
  for (const int64_t axis : axes) {
    const int at = static_cast<int>(axis);
    const int64_t last = std::max<int64_t>(from.shape[at] - 1, 0);
    from.data = from.ptr<char>() + last * from.strides[at] * size_of(x.dtype());
    from.strides[at] = -from.strides[at];
  }
  run_kernel(kernels::copy, from, y);
  return record("flip", {x}, y,
                [axes](Backward&, const Tensor& g) { return Gradients{flipped(g, axes)}; });
}

/// x as [outer, extent, inner] around an axis.
Tensor around(const Tensor& x, int axis) {
  // Extents beside one of 0 may have a product beyond 2^63.
  if (x.numel() == 0) return x.reshape({x.shape()[axis] == 0 ? 1 : 0, x.shape()[axis], 1});
  int64_t outer = 1, inner = 1;
  for (int i = 0; i < axis; ++i) outer *= x.shape()[i];
  for (int i = axis + 1; i < x.rank(); ++i) inner *= x.shape()[i];
  return x.reshape({outer, x.shape()[axis], inner});
}

/// Copies along an axis: of the whole, or of each slice.
Tensor repeated(const Tensor& x, int axis, int64_t count, bool each) {
  Shape target = x.shape();
  if (__builtin_mul_overflow(count, target[axis], &target[axis])) {
    throw ShapeError(each ? "repeat_interleave" : "repeat", "extents below 2^63",
                     to_string(x.shape()) + ", axis " + std::to_string(axis) + " " +
                         std::to_string(count) + " times");
  }
  const Tensor rows = around(x, axis);
  Shape full{rows.size(0), count, rows.size(1), rows.size(2)};
  if (each) std::swap(full[1], full[2]);
  return rows.unsqueeze(each ? 2 : 1).expand(full).clone().view(target);
}

void check_count(const char* op, int64_t count) {
  if (count < 0) throw ValueError(op, "counts of at least 0", std::to_string(count));
}

/// Pads one axis by widths that are not negative.
Tensor padded(const Tensor& x, const Shape& shape, const Dims& before, Scalar value) {
  const Tensor y = full(shape, value, x.options());
  if (x.numel() > 0) {
    TensorView inside = y.tensor_view();
    inside.shape = x.shape();
    for (int i = 0; i < x.rank(); ++i) {
      inside.data = inside.ptr<char>() + before[i] * inside.strides[i] * size_of(x.dtype());
    }
    run_kernel(kernels::copy, x, inside);
  }
  return record("pad", {x}, y, [from = x.shape(), before](Backward&, const Tensor& g) {
    Tensor part = g;
    for (int i = 0; i < from.rank(); ++i) part = part.narrow(i, before[i], from[i]);
    return Gradients{part};
  });
}

/// x without what is below (above) the diagonal.
Tensor triangle(const char* op, const Tensor& x, int64_t diagonal, bool lower) {
  check_defined(op, x);
  check_min_rank(op, x, 2);
  const TensorOptions ints{.dtype = DType::int64, .device = x.device()};
  const Tensor rows = arange(0, x.size(-2), 1, ints).unsqueeze(1);
  const Tensor columns = arange(0, x.size(-1), 1, ints);
  const Tensor edge = rows + std::clamp(diagonal, -x.size(-2), x.size(-1));
  return masked_fill(x, lower ? gt(columns, edge) : lt(columns, edge), 0);
}

}  // namespace

Tensor flip(const Tensor& x, const Dims& axes) {
  check_defined("flip", x);
  return flipped(x, distinct_axes("flip", x, axes));
}

Tensor roll(const Tensor& x, const Dims& shifts, const Dims& axes) {
  check_defined("roll", x);
  if (shifts.rank() != axes.rank()) {
    throw ShapeError("roll", "a shift for each axis",
                     to_string(shifts) + " for axes " + to_string(axes));
  }
  for (const int64_t axis : axes) static_cast<void>(normalize_axis(axis, x.rank(), "roll"));
  Tensor y = x;
  for (int i = 0; i < axes.rank(); ++i) {
    const int64_t extent = y.size(axes[i]);
    if (extent == 0) continue;
    const int64_t split = (extent - shifts[i] % extent) % extent;
    y = cat({y.narrow(axes[i], split, extent - split), y.narrow(axes[i], 0, split)}, axes[i]);
  }
  return y.is_same(x) ? x.clone() : y;
}

Tensor repeat(const Tensor& x, const Dims& counts) {
  check_defined("repeat", x);
  if (counts.rank() < x.rank()) {
    throw ShapeError("repeat", "a count for each axis of " + to_string(x.shape()),
                     to_string(counts));
  }
  for (const int64_t count : counts) check_count("repeat", count);
  Shape shape = x.shape();
  while (shape.rank() < counts.rank()) shape.insert(0, 1);
  Tensor y = x.reshape(shape);
  for (int i = counts.rank() - 1; i >= 0; --i) {
    if (counts[i] != 1) y = repeated(y, i, counts[i], false);
  }
  return counts == Dims::filled(counts.rank(), 1) ? y.clone() : y;
}

Tensor repeat_interleave(const Tensor& x, int64_t count, int64_t axis) {
  check_defined("repeat_interleave", x);
  const int at = normalize_axis(axis, x.rank(), "repeat_interleave");
  check_count("repeat_interleave", count);
  return repeated(x, at, count, true);
}

Tensor diag(const Tensor& x, int64_t diagonal) {
  check_defined("diag", x);
  if (x.rank() != 1 && x.rank() != 2) {
    throw ShapeError("diag", "x [N] or [R, C]", to_string(x.shape()));
  }
  constexpr int64_t far = int64_t{1} << 30;
  const int64_t least = x.rank() == 1 ? -far : -x.size(0), most = x.rank() == 1 ? far : x.size(1);
  if (diagonal < least || diagonal > most) {
    throw ValueError("diag", "a diagonal in " + to_string(Dims{least, most}),
                     std::to_string(diagonal));
  }
  const int64_t down = std::max<int64_t>(-diagonal, 0), right = std::max<int64_t>(diagonal, 0);
  // Of a contiguous matrix, a view.
  const auto diagonal_of = [&](const Tensor& matrix) {
    const int64_t columns = matrix.size(1);
    const int64_t count = std::max<int64_t>(0, std::min(matrix.size(0) - down, columns - right));
    const int64_t first = count == 0 ? 0 : down * columns + right;
    const int64_t end = count == 0 ? 0 : first + (count - 1) * (columns + 1) + 1;
    return matrix.flatten().slice(0, first, end, columns + 1);
  };
  if (x.rank() == 2) return diagonal_of(x).clone();
  const int64_t n = x.size(0) + down + right;
  const Tensor y = zeros({n, n}, x.options());
  unrecorded([&] { return diagonal_of(y).copy_(x); });
  return record("diag", {x}, y,
                [diagonal](Backward&, const Tensor& g) { return Gradients{diag(g, diagonal)}; });
}

Tensor pad(const Tensor& x, const Dims& widths, Scalar value) {
  constexpr const char* op = "pad";
  check_defined(op, x);
  check_holds(op, x.dtype(), value);
  if (widths.rank() % 2 != 0 || widths.rank() > 2 * x.rank()) {
    throw ShapeError(op, "a pair of widths for each of the last axes of " + to_string(x.shape()),
                     to_string(widths));
  }
  Shape shape = x.shape();
  Dims before = Dims::filled(x.rank(), 0);
  Tensor kept = x;
  for (int i = 0; 2 * i < widths.rank(); ++i) {
    const int axis = x.rank() - 1 - i;
    const int64_t front = widths[2 * i], back = widths[2 * i + 1], extent = shape[axis];
    const auto cut = [extent](int64_t width) {
      return -std::clamp<int64_t>(width, -extent - 1, 0);
    };
    const int64_t first = cut(front), past = extent - cut(back);
    if (__builtin_add_overflow(shape[axis], front, &shape[axis]) ||
        __builtin_add_overflow(shape[axis], back, &shape[axis]) || shape[axis] < 0 ||
        first > past) {
      throw ShapeError(op, "widths that leave a part of " + to_string(x.shape()),
                       to_string(widths));
    }
    before[axis] = std::max<int64_t>(0, front);
    if (past - first != x.shape()[axis]) kept = kept.narrow(axis, first, past - first);
  }
  return padded(kept, shape, before, value);
}

Tensor tril(const Tensor& x, int64_t diagonal) { return triangle("tril", x, diagonal, true); }
Tensor triu(const Tensor& x, int64_t diagonal) { return triangle("triu", x, diagonal, false); }

Tensor Tensor::flip(const Dims& axes) const { return sash::flip(*this, axes); }
Tensor Tensor::roll(const Dims& shifts, const Dims& axes) const {
  return sash::roll(*this, shifts, axes);
}
Tensor Tensor::repeat(const Dims& counts) const { return sash::repeat(*this, counts); }
Tensor Tensor::repeat_interleave(int64_t count, int64_t axis) const {
  return sash::repeat_interleave(*this, count, axis);
}
Tensor Tensor::tril(int64_t diagonal) const { return sash::tril(*this, diagonal); }
Tensor Tensor::triu(int64_t diagonal) const { return sash::triu(*this, diagonal); }

}  // namespace sash
