#include "linear_cross_entropy.h"

#include <algorithm>
#include <array>

#include "../index/index_checks.h"
#include "../kernels/linalg.h"
#include "../kernels/loss.h"
#include "../linalg/linear.h"
#include "../linalg/matmul.h"
#include "../op.h"
#include "cross_entropy.h"

namespace sash {

namespace kernels {
constinit decltype(cross_entropy_in_place) cross_entropy_in_place{"cross_entropy_in_place"};
constinit decltype(scale_gradient) scale_gradient{"scale_gradient"};
}  // namespace kernels

namespace {

constexpr const char* kLinear = "linear_cross_entropy";
constexpr int64_t kMostLogits = int64_t{1} << 29;

void check_arguments(const Tensor& x, const Tensor& weight, const Tensor& targets,
                     const LinearCrossEntropyOptions& options) {
  check_floating_pair(kLinear, x, weight);
  check_min_rank(kLinear, x, 2);
  check_rank(kLinear, weight, 2);
  check_index_tensor(kLinear, x, targets, "targets");
  if (x.size(-1) != weight.size(1)) {
    throw ShapeError(kLinear, "x [..., D] and weight [V, D] with one D", shapes_of(x, weight));
  }
  const Shape rows = without_axis(x, x.rank() - 1);
  if (targets.shape() != rows) {
    throw ShapeError(kLinear, "targets " + to_string(rows), to_string(targets.shape()));
  }
  if (options.reduction == Reduction::none) {
    throw ValueError(kLinear, "a mean or a sum", "Reduction::none");
  }
  check_probability(kLinear, "label smoothing", options.label_smoothing);
  check_not_negative(kLinear, "a chunk", options.chunk);
}

int64_t chunk_of(int64_t rows, int64_t classes, int64_t wanted) {
  if (wanted > 0 || rows == 0) return std::max<int64_t>(1, std::min(wanted, rows));
  const int64_t chunks = std::max<int64_t>(1, (rows * classes + kMostLogits - 1) / kMostLogits);
  constexpr int64_t kStep = 128;
  return std::min(rows, ((rows + chunks - 1) / chunks + kStep - 1) / kStep * kStep);
}

/// The sum of the losses, the number of rows that count, and the gradients of that sum.
struct Sums {
  Tensor loss, count;
  Tensor dx;  ///< undefined if not wanted
  Tensor dw;  ///< the same; of halves, float32
};

Sums sums_of(const Tensor& x, const Tensor& weight, const Tensor& targets,
             const LinearCrossEntropyOptions& options, bool want_x, bool want_w) {
  const int64_t rows = targets.numel(), classes = weight.size(0), depth = weight.size(1);
  const int64_t chunk = chunk_of(rows, classes, options.chunk);
  const TensorOptions statistics = row_statistics(x);
  const Tensor losses = empty({rows}, statistics);
  const Tensor logits = empty({chunk, classes}, x.options());
  Sums sums;
  if (want_x) sums.dx = empty({rows, depth}, x.options());
  if (want_w)
    sums.dw = rows > 0 ? empty(weight.shape(), statistics) : zeros(weight.shape(), statistics);
  const kernels::CrossEntropyRule rule{
      .ignore_index = options.ignore_index, .smoothing = options.label_smoothing, .mean = false};
  KernelContext context = kernel_context(x.device());
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t n = std::min(chunk, rows - first);
    const auto part = [&](const Tensor& t) { return t.narrow(0, first, n).tensor_view(); };
    const Tensor scores = logits.narrow(0, 0, n);
    const TensorView y = scores.tensor_view();
    kernels::linear_forward(context, part(x), weight.tensor_view(), nullptr, y);
    kernels::cross_entropy_in_place(context, y, part(targets), part(losses), rule, first);
    if (want_x) kernels::matmul(context, y, weight.tensor_view(), part(sums.dx), 1, 0);
    if (!want_w) continue;
    kernels::matmul(context, scores.mT().tensor_view(), part(x), sums.dw.tensor_view(), 1,
                    first == 0 ? 0 : 1);
  }
  sums.loss = sum(losses);
  sums.count = sum(ne(targets, options.ignore_index)).to(losses.dtype());
  return sums;
}

// Multiplied before it is rounded.
Tensor scaled(const Tensor& sum, const Tensor& factor, DType dtype) {
  if (!kernels::scale_gradient.has(sum.device().type)) {
    return (sum.to(factor.dtype()) * factor).to(dtype);
  }
  const Tensor y = empty(sum.shape(), {.dtype = dtype, .device = sum.device()});
  run_kernel(kernels::scale_gradient, sum, factor.expand(sum.shape()), y);
  return y;
}

}  // namespace

Tensor composite::linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                                       const LinearCrossEntropyOptions& options) {
  const Tensor logits = linear(detail::flatten_rows(x), weight);
  return sash::cross_entropy(logits.to(*row_statistics(x).dtype), targets.reshape({-1}),
                             {.ignore_index = options.ignore_index,
                              .label_smoothing = options.label_smoothing,
                              .reduction = options.reduction});
}

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const LinearCrossEntropyOptions& options) {
  if (Autocast cast(kLinear); cast) {
    return linear_cross_entropy(cast(x), cast(weight), targets, options);
  }
  check_arguments(x, weight, targets, options);
  const Tensor t = targets.reshape({-1}).contiguous();
  check_index_values(kLinear, t, weight.size(0), options.ignore_index);
  if (!use_fused(kernels::cross_entropy_in_place, x.device())) {
    return composite::linear_cross_entropy(x, weight, targets, options);
  }
  const TensorRef inputs[] = {x, weight};
  const bool recorded = detail::should_record(inputs);
  const Sums sums = unrecorded([&] {
    return sums_of(detail::flatten_rows(x), weight, t, options, recorded && x.requires_grad(),
                   recorded && weight.requires_grad());
  });
  const bool mean = options.reduction == Reduction::mean;
  const Tensor y = unrecorded([&] { return mean ? sums.loss / sums.count : sums.loss; });
  return record(
      kLinear, {x, weight}, y,
      [x = save(x), weight = save(weight), t = save(t), dx = save(sums.dx), dw = save(sums.dw),
       count = save(mean ? sums.count : Tensor()), options](Backward& pass, const Tensor& g) {
        const std::array<Tensor, 2> in{pass(x), pass(weight)};
        if (pass.create_graph()) {
          return gradients_of_composite(pass, g, composite::linear_cross_entropy, in, pass(t),
                                        options);
        }
        // Without targets the sums are 0, and so are the gradients.
        const Tensor n = pass(count), factor = n.defined() ? g / maximum(n, 1) : g;
        Gradients d(2);
        const Tensor wide = pass(dw);
        pass.beside(d, {1}, {factor, wide}, [&] {
          if (pass.needs(1)) d[1] = scaled(wide, factor, in[1].dtype());
        });
        if (pass.needs(0)) d[0] = scaled(pass(dx), factor, in[0].dtype()).view(in[0].shape());
        return d;
      });
}

}  // namespace sash
