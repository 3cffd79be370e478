#include "../../../ops/kernels/index.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../shape/halves.h"

namespace sash::cpu {
namespace {

/// Elements of work per task.
constexpr int64_t kWork = 16384;

/// The lines along the last axis of a shape. `offset(line, strides, skip)` is the offset of the
/// first element of a line in a tensor of these strides, without the axis `skip`.
class Lines {
 public:
  explicit Lines(const Shape& shape) : shape_(shape), length_(shape.back()) {
    for (int i = 0; i + 1 < shape.rank(); ++i) count_ *= shape[i];
  }
  int64_t count() const { return count_; }
  int64_t length() const { return length_; }
  int64_t offset(int64_t line, const Strides& strides, int skip) const {
    int64_t at = 0;
    for (int axis = shape_.rank() - 2; axis >= 0; --axis) {
      if (axis != skip) at += line % shape_[axis] * strides[axis];
      line /= shape_[axis];
    }
    return at;
  }

 private:
  Shape shape_;
  int64_t length_;
  int64_t count_ = 1;
};

/// A negative index counts from the end.
int64_t from_start(int64_t index, int64_t extent) { return index + (extent & (index >> 63)); }

/// One line of n elements: y[k] = x[index[k] along the indexed axis, k along the last].
template <class T>
void gather_line(const T* x, int64_t extent, int64_t x_axis, int64_t x_last, const int64_t* index,
                 int64_t index_last, T* y, int64_t y_last, int64_t n) {
  if (index_last == 0) {
    x += from_start(*index, extent) * x_axis;
    if (x_last == 1 && y_last == 1) {
      std::copy_n(x, n, y);
    } else {
      for (int64_t k = 0; k < n; ++k) y[k * y_last] = x[k * x_last];
    }
    return;
  }
  for (int64_t k = 0; k < n; ++k) {
    y[k * y_last] = x[from_start(index[k * index_last], extent) * x_axis + k * x_last];
  }
}

template <class T>
void gather_as(View x, View index, View y, int axis) {
  if (index.numel() == 0) return;
  const Lines lines(index.shape);
  const int last = index.rank() - 1;
  const int64_t x_last = axis == last ? 0 : x.strides[last];
  const int64_t grain = std::max<int64_t>(1, kWork / lines.length());
  parallel_for_each(lines.count(), grain, [&](int64_t line) {
    gather_line(x.ptr<T>() + lines.offset(line, x.strides, axis), x.shape[axis], x.strides[axis],
                x_last, index.ptr<int64_t>() + lines.offset(line, index.strides, -1),
                index.strides[last], y.ptr<T>() + lines.offset(line, y.strides, -1),
                y.strides[last], lines.length());
  });
}

void gather(KernelContext&, View x, View index, View y, int axis) {
  dispatch_words(x.dtype, [&]<class Word>(TypeTag<Word>) { gather_as<Word>(x, index, y, axis); });
}

/// What `scatter_add` and `scatter` do with an element of y.
struct AddTo {
  void operator()(auto& y, auto x) const { y += x; }
};
struct Replace {
  void operator()(auto& y, auto x) const { y = x; }
};

/// The view with the indexed axis first. Elements that may go to one y differ in this axis only,
/// so one task can visit them in order.
TensorView axis_first(TensorView view, int axis) {
  const int64_t extent = view.shape[axis], stride = view.strides[axis];
  view.shape.erase(axis);
  view.strides.erase(axis);
  view.shape.insert(0, extent);
  view.strides.insert(0, stride);
  return view;
}

/// Visits columns [begin, end) of the lines that start at the given pointers, in the order of the
/// indexed axis.
template <class Write, class T>
void scatter_columns(T* y, View y_view, const int64_t* index, View index_view, const T* src,
                     View src_view, int64_t begin, int64_t end) {
  const int last = index_view.rank() - 1;
  const bool flat = last == 0;  // there is no other axis
  const int64_t y_last = flat ? 0 : y_view.strides[last];
  const int64_t index_last = flat ? 0 : index_view.strides[last];
  const int64_t src_last = flat ? 0 : src_view.strides[last];
  for (int64_t j = 0; j < index_view.shape[0]; ++j) {
    const int64_t* const i = index + j * index_view.strides[0];
    const T* const from = src + j * src_view.strides[0];
    for (int64_t k = begin; k < end; ++k) {
      const int64_t at = from_start(i[k * index_last], y_view.shape[0]);
      Write{}(y[at * y_view.strides[0] + k * y_last], from[k * src_last]);
    }
  }
}

template <class Write, class T>
void scatter_as(View y, View index, View src) {
  constexpr int64_t width = 64;
  Shape others = index.shape;
  others[0] = 1;
  if (others.rank() == 1) others.push_back(1);
  const Lines lines(others);
  const int64_t blocks = (lines.length() + width - 1) / width;
  const int64_t work = index.shape[0] * std::min(width, lines.length());
  parallel_for_each(lines.count() * blocks, kWork / work, [&](int64_t task) {
    const int64_t line = task / blocks, first = task % blocks * width;
    scatter_columns<Write>(y.ptr<T>() + lines.offset(line, y.strides, 0), y,
                           index.ptr<int64_t>() + lines.offset(line, index.strides, 0), index,
                           src.ptr<T>() + lines.offset(line, src.strides, 0), src, first,
                           std::min(first + width, lines.length()));
  });
}

void scatter_add(KernelContext& context, View y, View index, View src, int axis) {
  if (index.numel() == 0) return;
  FloatOperand from(context, src);
  FloatResult to(context, y);
  if (is_half(y.dtype)) kernels::copy(context, y, to.view());
  dispatch_numeric(to.view().dtype, "scatter_add", [&]<class T>(TypeTag<T>) {
    scatter_as<AddTo, T>(axis_first(to.view(), axis), axis_first(index, axis),
                         axis_first(from.view(), axis));
  });
  to.write();
}

void scatter(KernelContext&, View y, View index, View src, int axis) {
  if (index.numel() == 0) return;
  dispatch_words(y.dtype, [&]<class Word>(TypeTag<Word>) {
    scatter_as<Replace, Word>(axis_first(y, axis), axis_first(index, axis), axis_first(src, axis));
  });
}

void true_places(KernelContext&, View mask, View places) {
  constexpr int64_t piece = kWork;
  const int64_t count = mask.numel(), pieces = (count + piece - 1) / piece;
  const bool* const from = mask.ptr<bool>();
  std::vector<int64_t> starts(static_cast<size_t>(pieces) + 1);
  const auto end_of = [&](int64_t p) { return from + std::min(count, (p + 1) * piece); };
  parallel_for_each(pieces, 1, [&](int64_t p) {
    starts[static_cast<size_t>(p) + 1] = std::count(from + p * piece, end_of(p), true);
  });
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  parallel_for_each(pieces, 1, [&](int64_t p) {
    int64_t* to = places.ptr<int64_t>() + starts[static_cast<size_t>(p)];
    for (const bool* at = from + p * piece; at < end_of(p); ++at) {
      if (*at) *to++ = at - from;
    }
  });
}

}  // namespace

void register_gather() {
  kernels::gather.set(DeviceType::cpu, gather);
  kernels::scatter_add.set(DeviceType::cpu, scatter_add);
  kernels::scatter.set(DeviceType::cpu, scatter);
  kernels::true_places.set(DeviceType::cpu, true_places);
}

}  // namespace sash::cpu
