#include "conv.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "../kernels/linalg.h"
#include "../op.h"
#include "../row_blocks.h"
#include "windows.h"

namespace sash {

constinit decltype(kernels::conv_forward) kernels::conv_forward{"conv_forward"};
constinit decltype(kernels::conv_weight_gradient) kernels::conv_weight_gradient{
    "conv_weight_gradient"};

namespace {

using kernels::SlidingWindows;

/// The shapes of a convolution: x [N, C, H, W], weight [O, C / groups, KH, KW], y [N, O, U, V].
struct Geometry {
  const char* op;
  SlidingWindows windows;
  int64_t groups;
  Shape x, weight, y;

  int64_t positions() const { return y[2] * y[3]; }
  int64_t depth() const { return weight[1] * weight[2] * weight[3]; }
};

/// What products are computed in.
TensorOptions work_options(const Tensor& x) {
  return {.dtype = row_dtype(x.device(), x.dtype()), .device = x.device()};
}

/// Some items of the batch as matrices per group: their windows as columns [C / groups kernel,
/// count positions], and results or their gradients as rows [O / groups, count positions].
class Block {
 public:
  Block(const Geometry& geometry, const TensorOptions& options, int64_t count)
      : geometry_(geometry),
        count_(count),
        columns_(empty({geometry.groups, geometry.depth(), count * geometry.positions()}, options)),
        rows_(
            empty({geometry.groups, geometry.y[1] / geometry.groups, count * geometry.positions()},
                  options)) {}

  /// Fills the columns with the windows of the items of x from `first` on.
  void unfold(KernelContext& context, const Tensor& x, int64_t first) const {
    TensorView items = narrow_first(x.tensor_view(), first, count_);
    Tensor wide;
    if (columns_.dtype() != x.dtype()) {
      wide = empty(items.shape, columns_.options());
      kernels::copy(context, items, wide.tensor_view());
      items = wide.tensor_view();
    }
    kernels::unfold_windows(context, items, geometry_.windows, windows());
  }
  TensorView columns() const { return columns_.tensor_view(); }
  TensorView rows() const { return rows_.tensor_view(); }
  /// The columns as windows [count, C, KH, KW, U, V].
  TensorView windows() const {
    const Shape &w = geometry_.weight, &y = geometry_.y;
    const int64_t line = count_ * geometry_.positions();
    TensorView view = columns();
    view.shape = {count_, geometry_.x[1], w[2], w[3], y[2], y[3]};
    view.strides = {geometry_.positions(), w[2] * w[3] * line, w[3] * line, line, y[3], 1};
    return view;
  }
  /// The rows as planes [count, O, U, V].
  TensorView planes() const {
    const Shape& y = geometry_.y;
    TensorView view = rows();
    view.shape = {count_, y[1], y[2], y[3]};
    view.strides = {geometry_.positions(), count_ * geometry_.positions(), y[3], 1};
    return view;
  }

 private:
  const Geometry& geometry_;
  int64_t count_;
  Tensor columns_, rows_;
};

/// Calls body(block, first, count) for all items, a block at a time: one that stays in the cache on
/// the CPU, one that bounds the memory on a card.
template <class F>
void for_each_block(const Geometry& geometry, const TensorOptions& options, F&& body) {
  const int64_t most = int64_t{1} << (options.device->is_cpu() ? 19 : 26);
  const int64_t item = geometry.groups * geometry.depth() * geometry.positions();
  const int64_t items = geometry.y[0],
                height = std::max<int64_t>(1, most / std::max<int64_t>(1, item));
  for (int64_t first = 0; first < items; first += height) {
    const int64_t count = std::min(height, items - first);
    body(Block(geometry, options, count), first, count);
  }
}

TensorView transposed(TensorView matrix) {
  std::swap(matrix.shape[1], matrix.shape[2]);
  std::swap(matrix.strides[1], matrix.strides[2]);
  return matrix;
}

Tensor contiguous_filters(const Tensor& weight) {
  return unrecorded([&] { return weight.to(*work_options(weight).dtype).contiguous(); });
}

/// The contiguous weight as a matrix per group, [groups, O / groups, C / groups kernel].
TensorView weight_matrix(const Tensor& weight, const Geometry& geometry) {
  return contiguous_view(weight,
                         {geometry.groups, geometry.y[1] / geometry.groups, geometry.depth()});
}

/// Whether one kernel computes these windows' products. Windows of one element are a plain product,
/// and halves are converted some items at a time.
bool is_fused(const SlidingWindows& windows, const Tensor& x) {
  if (windows.kernel[0] * windows.kernel[1] == 1) return false;
  for (const int axis : {0, 1}) {
    const int64_t longest = windows.dilation[axis] * (windows.kernel[axis] - 1);
    if (windows.padding[axis] < 0 || windows.padding[axis] > longest) return false;
  }
  return !is_half(x.dtype()) && use_fused(kernels::conv_forward, x.device());
}

/// The windows over y that give the gradient of x, if that is a convolution too, with the weight
/// turned by `turned`.
std::optional<SlidingWindows> gradient_windows(const Geometry& geometry) {
  SlidingWindows windows = geometry.windows;
  if (geometry.groups > 1 || windows.stride[0] != 1 || windows.stride[1] != 1) return {};
  for (const int axis : {0, 1}) {
    windows.padding[axis] =
        windows.dilation[axis] * (windows.kernel[axis] - 1) - windows.padding[axis];
  }
  return windows;
}

/// weight[o, c, i, j] as [c, o, -i, -j].
TensorView turned(TensorView weight) {
  for (const int axis : {2, 3}) {
    const int64_t last = (weight.shape[axis] - 1) * weight.strides[axis];
    weight.data = weight.ptr<char>() + last * size_of(weight.dtype);
    weight.strides[axis] *= -1;
  }
  std::swap(weight.shape[0], weight.shape[1]);
  std::swap(weight.strides[0], weight.strides[1]);
  return weight;
}

// The three below are linear in each operand, and each other's gradients.

Tensor input_gradient(const Tensor& g, const Tensor& weight, const Geometry& geometry);
Tensor weight_gradient(const Tensor& x, const Tensor& g, const Geometry& geometry);

Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
               const Geometry& geometry) {
  const Tensor filters = contiguous_filters(weight);
  const Tensor y = empty(geometry.y, x.options());
  KernelContext context = kernel_context(x.device());
  if (is_fused(geometry.windows, x)) {
    const TensorView row = bias.defined() ? bias.tensor_view() : TensorView();
    kernels::conv_forward(context, x.tensor_view(), filters.tensor_view(),
                          bias.defined() ? &row : nullptr, geometry.windows, geometry.groups,
                          y.tensor_view());
  } else {
    for_each_block(
        geometry, work_options(x), [&](const Block& block, int64_t first, int64_t count) {
          block.unfold(context, x, first);
          if (bias.defined()) {
            TensorView start = bias.tensor_view();
            start.shape = {1, start.shape[0], 1, 1};
            start.strides = {0, start.strides[0], 0, 0};
            kernels::copy(context, start, block.planes());
          }
          kernels::matmul(context, weight_matrix(filters, geometry), block.columns(), block.rows(),
                          1, bias.defined() ? 1 : 0);
          kernels::copy(context, block.planes(), narrow_first(y.tensor_view(), first, count));
        });
  }
  return record(
      geometry.op, {x, weight, bias}, y,
      [x = save_if(weight.requires_grad(), x), weight = save_if(x.requires_grad(), weight),
       geometry](Backward& pass, const Tensor& g) {
        return gradients_of(
            pass, [&] { return input_gradient(g, pass(weight), geometry); },
            [&] { return weight_gradient(pass(x), g, geometry); },
            [&] {
              return sum(g, {0, 2, 3});
            });
      });
}

Tensor input_gradient(const Tensor& g, const Tensor& weight, const Geometry& geometry) {
  const Tensor filters = contiguous_filters(weight);
  const Tensor dx = empty(geometry.x, g.options());
  KernelContext context = kernel_context(g.device());
  const std::optional<SlidingWindows> windows = gradient_windows(geometry);
  if (windows && is_fused(*windows, g)) {
    kernels::conv_forward(context, g.tensor_view(), turned(filters.tensor_view()), nullptr,
                          *windows, 1, dx.tensor_view());
  } else {
    for_each_block(
        geometry, work_options(g), [&](const Block& block, int64_t first, int64_t count) {
          kernels::copy(context, narrow_first(g.tensor_view(), first, count), block.planes());
          kernels::matmul(context, transposed(weight_matrix(filters, geometry)), block.rows(),
                          block.columns(), 1, 0);
          kernels::fold_windows(context, block.windows(), geometry.windows,
                                narrow_first(dx.tensor_view(), first, count));
        });
  }
  return record(
      "conv_input_gradient", {g, weight}, dx,
      [g = save_if(weight.requires_grad(), g), weight = save_if(g.requires_grad(), weight),
       geometry](Backward& pass, const Tensor& h) {
        return gradients_of(
            pass, [&] { return forward(h, pass(weight), {}, geometry); },
            [&] { return weight_gradient(h, pass(g), geometry); });
      });
}

Tensor weight_gradient(const Tensor& x, const Tensor& g, const Geometry& geometry) {
  const TensorOptions options = work_options(g);
  const Tensor sums =
      geometry.y[0] > 0 ? empty(geometry.weight, options) : zeros(geometry.weight, options);
  KernelContext context = kernel_context(g.device());
  constexpr int64_t kFewest = 16;  // filters and channels of a group, for which the kernel is fast
  const bool many = geometry.y[1] / geometry.groups + geometry.weight[1] >= kFewest;
  if (many && sums.numel() > 0 && g.numel() > 0 && is_fused(geometry.windows, x)) {
    const Tensor rows = unrecorded([&] { return g.contiguous(); });
    kernels::conv_weight_gradient(context, x.tensor_view(), rows.tensor_view(), geometry.windows,
                                  geometry.groups, sums.tensor_view());
  } else {
    for_each_block(geometry, options, [&](const Block& block, int64_t first, int64_t count) {
      block.unfold(context, x, first);
      kernels::copy(context, narrow_first(g.tensor_view(), first, count), block.planes());
      kernels::matmul(context, block.rows(), transposed(block.columns()),
                      weight_matrix(sums, geometry), 1, first > 0 ? 1 : 0);
    });
  }
  const Tensor dw = sums.to(g.dtype());
  return record("conv_weight_gradient", {x, g}, dw,
                [x = save_if(g.requires_grad(), x), g = save_if(x.requires_grad(), g), geometry](
                    Backward& pass, const Tensor& h) {
                  return gradients_of(
                      pass, [&] { return input_gradient(pass(g), h, geometry); },
                      [&] { return forward(pass(x), h, {}, geometry); });
                });
}

void check_arguments(const char* op, int axes, const Tensor& x, const Tensor& weight,
                     const Tensor& bias, int64_t groups) {
  check_floating_pair(op, x, weight);
  if (weight.rank() != axes + 2) {
    throw ShapeError(op, axes == 1 ? "weight [O, C / groups, K]" : "weight [O, C / groups, KH, KW]",
                     to_string(weight.shape()));
  }
  if (groups < 1) throw ValueError(op, "at least 1 group", std::to_string(groups));
  if (x.rank() == axes + 1 || x.rank() == axes + 2) {
    const int64_t channels = x.size(-axes - 1), out = weight.size(0);
    if (channels % groups != 0 || channels / groups != weight.size(1) || out % groups != 0) {
      throw ShapeError(op,
                       "channels C of x and O of weight that are split into " +
                           std::to_string(groups) + (groups == 1 ? " group" : " groups"),
                       shapes_of(x, weight));
    }
  }
  check_parameter(op, x, bias, {weight.size(0)});
}

Tensor run(const char* op, int axes, const Tensor& x, const Tensor& weight, const Tensor& bias,
           const Conv2dOptions& options) {
  if (Autocast cast(op); cast) return run(op, axes, cast(x), cast(weight), cast(bias), options);
  check_arguments(op, axes, x, weight, bias, options.groups);
  const HeightWidth kernel(axes == 1 ? 1 : weight.size(-2), weight.size(-1));
  SlidingWindows windows =
      detail::checked_windows(op, axes, kernel, options.stride, options.padding, options.dilation);
  const Tensor planes = detail::as_planes(op, axes, x, windows);
  const Tensor filters = axes == 1 ? weight.unsqueeze(2) : weight;
  const Shape shape{planes.size(0), weight.size(0), windows.count(0, planes.size(2)),
                    windows.count(1, planes.size(3))};
  const Tensor y = forward(planes, filters, bias,
                           {op, windows, options.groups, planes.shape(), filters.shape(), shape});
  return detail::from_planes(axes, y, x);
}

/// The extent of a transposed convolution along an axis, with its windows.
int64_t transposed_extent(const SlidingWindows& windows, int axis, int64_t extent, int64_t more) {
  constexpr const char* op = "conv_transpose2d";
  if (more < 0 || more >= windows.stride[axis]) {
    throw ValueError(
        op, "an output_padding below the stride of " + std::to_string(windows.stride[axis]),
        std::to_string(more));
  }
  int64_t y = 0, reach = 0;
  const bool huge =
      __builtin_mul_overflow(extent - 1, windows.stride[axis], &y) ||
      __builtin_mul_overflow(windows.kernel[axis] - 1, windows.dilation[axis], &reach) ||
      __builtin_add_overflow(reach, more + 1, &reach) || __builtin_add_overflow(y, reach, &y) ||
      windows.padding[axis] > y / 2;
  if (huge || (y -= 2 * windows.padding[axis]) < 1 || extent < 1) {
    throw ShapeError(op, "extents whose result is not empty",
                     std::to_string(extent) + " along axis " + std::to_string(axis - 2));
  }
  return y;
}

}  // namespace

Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose2dOptions& options) {
  constexpr const char* op = "conv_transpose2d";
  if (Autocast cast(op); cast) {
    return conv_transpose2d(cast(x), cast(weight), cast(bias), options);
  }
  check_floating_pair(op, x, weight);
  if (options.groups < 1) throw ValueError(op, "at least 1 group", std::to_string(options.groups));
  if (x.rank() != 3 && x.rank() != 4) {
    throw ShapeError(op, "x [N, C, H, W] or [C, H, W]", to_string(x.shape()));
  }
  const bool fits =
      weight.rank() == 4 && weight.size(0) == x.size(-3) && weight.size(0) % options.groups == 0;
  if (!fits) {
    throw ShapeError(op,
                     "weight [C, O / groups, KH, KW], with C channels of x in " +
                         std::to_string(options.groups) +
                         (options.groups == 1 ? " group" : " groups"),
                     shapes_of(x, weight));
  }
  const int64_t channels = weight.size(1) * options.groups;
  check_parameter(op, x, bias, {channels});
  if (bias.defined() && row_dtype(x.device(), x.dtype()) != x.dtype()) {  // to round once
    constexpr DType wide = DType::float32;
    return conv_transpose2d(x.to(wide), weight.to(wide), bias.to(wide), options).to(x.dtype());
  }
  const SlidingWindows windows = detail::checked_windows(
      op, 2, {weight.size(2), weight.size(3)}, options.stride, options.padding, options.dilation);
  const Tensor batch = x.rank() == 3 ? x.unsqueeze(0) : x;
  const Shape shape{batch.size(0), channels,
                    transposed_extent(windows, 0, x.size(-2), options.output_padding.height),
                    transposed_extent(windows, 1, x.size(-1), options.output_padding.width)};
  const Geometry geometry{op, windows, options.groups, shape, weight.shape(), batch.shape()};
  const Tensor planes = input_gradient(batch, weight, geometry);
  const Tensor y = bias.defined() ? planes + bias.view({channels, 1, 1}) : planes;
  return x.rank() == 3 ? y.squeeze(0) : y;
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv1dOptions& options) {
  return run("conv1d", 1, x, weight, bias,
             {.stride = options.stride,
              .padding = options.padding,
              .dilation = options.dilation,
              .groups = options.groups});
}

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options) {
  return run("conv2d", 2, x, weight, bias, options);
}

}  // namespace sash
