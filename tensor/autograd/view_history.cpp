#include "../../core/backend/kernel.h"
#include "../copy.h"
#include "../factories.h"
#include "../kernels/gradients.h"
#include "../kernels/memory.h"
#include "../run_kernel.h"
#include "../tensor_impl.h"

namespace sash {
namespace {

// Where the elements of a view are among those of its base.
struct ViewLayout {
  Shape base_shape, shape;
  Strides base_strides, strides;
  int64_t offset;

  ViewLayout(const TensorImpl& base, const TensorImpl& view)
      : base_shape(base.shape),
        shape(view.shape),
        base_strides(base.strides),
        strides(view.strides),
        offset(view.offset - base.offset) {}

  /// Elements from the base's first to its last.
  Shape span() const {
    int64_t count = 1;
    for (int axis = 0; axis < base_shape.rank(); ++axis) {
      if (base_shape[axis] == 0) return {0};
      count += (base_shape[axis] - 1) * base_strides[axis];
    }
    return {count};
  }
  /// The shape without repeats along expanded axes.
  Shape once() const {
    Shape found = shape;
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (strides[axis] == 0 && shape[axis] > 1) found[axis] = 1;
    }
    return found;
  }
  Tensor base_of(const Tensor& memory) const {
    return make_view(memory, base_shape, base_strides, 0);
  }
  Tensor view_of(const Tensor& memory) const { return make_view(memory, shape, strides, offset); }
};

Tensor scatter_view(const Tensor& g, const ViewLayout& layout);

// A copy of x, laid out as the base is.
Tensor base_copy(const Tensor& x, const ViewLayout& layout) {
  Tensor memory = empty(layout.span(), x.options());
  copy_elements(x, layout.base_of(memory));
  return memory;
}

// The elements of x, which has the base's shape, that the view sees.
Tensor gather_view(const Tensor& x, const ViewLayout& layout) {
  const Tensor y = unrecorded([&] { return layout.view_of(base_copy(x, layout)); });
  return record("gather_view", {x}, y, [layout](Backward&, const Tensor& g) {
    return Gradients{scatter_view(g, layout)};
  });
}

// g summed over the axes along which the view is expanded, which keep extent 1.
Tensor sum_expanded(const Tensor& g, const Shape& shape) {
  if (g.shape() == shape) return g;
  const Tensor y = empty(shape, g.options());
  run_kernel(kernels::sum, g, y);
  return y;
}

// The gradient of `gather_view`: of the base's shape, zero where the view sees nothing.
Tensor scatter_view(const Tensor& g, const ViewLayout& layout) {
  const Tensor y = unrecorded([&] {
    const Tensor memory = zeros(layout.span(), g.options());
    ViewLayout once = layout;
    once.shape = layout.once();
    copy_elements(sum_expanded(g, once.shape), once.view_of(memory));
    return layout.base_of(memory);
  });
  return record("scatter_view", {g}, y, [layout](Backward&, const Tensor& gg) {
    return Gradients{gather_view(gg, layout)};
  });
}

// g, of the base's shape, with zeros where the view is. Its own gradient.
Tensor clear_view(const Tensor& g, const ViewLayout& layout) {
  const Tensor y = unrecorded([&] {
    const Tensor memory = base_copy(g, layout);
    run_kernel(kernels::fill, layout.view_of(memory), 0);
    return layout.base_of(memory);
  });
  return record("clear_view", {g}, y, [layout](Backward&, const Tensor& gg) {
    return Gradients{clear_view(gg, layout)};
  });
}

}  // namespace

Tensor replay_view(const Tensor& base, const TensorImpl& view) {
  const ViewLayout layout(base.impl(), view);
  if (overlaps_itself(layout.once(), view.strides)) {
    throw AutogradError("view",
                        "windows that overlap cannot be used after a write to the tensor that they "
                        "view; make them again");
  }
  return record(
      "view", {base}, make_view(base, view.shape, view.strides, view.offset),
      [layout](Backward&, const Tensor& g) { return Gradients{scatter_view(g, layout)}; });
}

void record_view_write(Tensor base, const Tensor& view) {
  auto backward = [layout = ViewLayout(base.impl(), view.impl())](Backward& pass, const Tensor& g) {
    Gradients grads(2);
    if (pass.needs(0)) grads[0] = clear_view(g, layout);
    if (pass.needs(1)) grads[1] = gather_view(g, layout);
    return grads;
  };
  const std::initializer_list<TensorRef> inputs{base, view};
  detail::attach_in_place(detail::make_node("write_view", std::move(backward)),
                          detail::as_inputs(inputs), base);
}

}  // namespace sash
