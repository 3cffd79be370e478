#include "cross_entropy.h"

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../checks.h"
#include "../elementwise/binary.h"
#include "../elementwise/compare.h"
#include "../elementwise/unary.h"
#include "../elementwise/where.h"
#include "../index/gather.h"
#include "../index/index_checks.h"
#include "../kernels/loss.h"
#include "../norm/softmax.h"
#include "../reduce/reduce.h"
#include "../rows.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                      const TensorView&, const TensorView&, const CrossEntropyRule&)>
    cross_entropy_forward{"cross_entropy_forward"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                      const TensorView&, const TensorView&, const TensorView&,
                      const CrossEntropyRule&)>
    cross_entropy_backward{"cross_entropy_backward"};
}  // namespace kernels

namespace {

constexpr const char* kOp = "cross_entropy";

/// The logits with their classes last, as kernels read them.
Tensor classes_last(const Tensor& logits, int axis) {
  if (axis == logits.rank() - 1) return logits;
  Dims axes;
  for (int i = 0; i < logits.rank(); ++i) {
    if (i != axis) axes.push_back(i);
  }
  axes.push_back(axis);
  return logits.permute(axes);
}

std::string expected_targets(const Tensor& logits, const Tensor& targets, int axis) {
  const auto shape_for = [&](int classes) {
    Shape shape = logits.shape();
    shape.erase(classes);
    return shape;
  };
  const std::string text = "targets " + to_string(shape_for(axis));
  const bool as_in_pytorch = logits.rank() == 3 && axis == 2 && targets.shape() == shape_for(1);
  if (!as_in_pytorch) return text;
  return text + ", or class_axis = 1 for logits [N, C, T]";
}

/// Throws unless all fits together; returns the axis of the classes.
int check_arguments(const Tensor& logits, const Tensor& targets,
                    const CrossEntropyOptions& options) {
  check_defined(kOp, logits);
  check_floating(kOp, logits);
  check_index_tensor(kOp, logits, targets);
  if (logits.rank() != 2 && logits.rank() != 3) {
    throw ShapeError(kOp, "logits [N, C] or [B, T, C]", to_string(logits.shape()));
  }
  const int axis = normalize_axis(options.class_axis, logits.rank(), kOp);
  Shape rows = logits.shape();
  rows.erase(axis);
  if (targets.shape() != rows) {
    throw ShapeError(kOp, expected_targets(logits, targets, axis), to_string(targets.shape()));
  }
  check_probability(kOp, "label smoothing", options.label_smoothing);
  return axis;
}

// The logits' gradient from what the forward pass kept.
Tensor fused_backward(const Tensor& logits, const Tensor& targets, const Tensor& stats,
                      const Tensor& count, const Tensor& grad,
                      const kernels::CrossEntropyRule& rule) {
  const int64_t rows = targets.numel(), classes = logits.shape().back();
  const Tensor g = grad.contiguous();
  const Tensor dx = empty_like(logits);
  KernelContext context = kernel_context(logits.device());
  kernels::cross_entropy_backward(context, matrix_view(logits, rows, classes), vector_view(targets),
                                  matrix_view(stats, rows, 2), vector_view(g), vector_view(count),
                                  matrix_view(dx, rows, classes), rule);
  return dx;
}

Tensor reduced(const Tensor& losses, const Tensor& count, Reduction reduction) {
  if (reduction == Reduction::none) return losses;
  return reduction == Reduction::sum ? sum(losses) : sum(losses) / count;
}

}  // namespace

namespace composite {

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  const double s = options.label_smoothing;
  const int axis = normalize_axis(options.class_axis, logits.rank(), kOp);
  const Tensor x = classes_last(logits, axis).to(*row_statistics(logits).dtype);
  const Tensor ignored = eq(targets, options.ignore_index);
  const Tensor safe = masked_fill(targets, ignored, 0);
  const Tensor logp = composite::log_softmax(x);
  Tensor losses = gather(logp, -1, safe.unsqueeze(-1)).squeeze(-1) * (s - 1);
  if (s > 0) losses = losses - mean(logp, {-1}) * s;
  const Tensor count = sum(logical_not(ignored)).to(x.dtype());
  return reduced(masked_fill(losses, ignored, 0), count, options.reduction).to(logits.dtype());
}

}  // namespace composite

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& given) {
  const int axis = check_arguments(logits, targets, given);
  CrossEntropyOptions options = given;
  options.class_axis = -1;
  const Tensor x = classes_last(logits, axis).contiguous(), t = targets.contiguous();
  const int64_t rows = t.numel(), classes = x.shape().back();
  check_index_values(kOp, t, classes, options.ignore_index);
  if (!use_fused(kernels::cross_entropy_forward, x.device())) {
    return composite::cross_entropy(x, t, options);
  }
  const kernels::CrossEntropyRule rule{options.ignore_index, options.label_smoothing};
  const Tensor losses = empty(t.shape(), row_statistics(x));
  const Tensor stats = empty({rows, 2}, row_statistics(x));
  const Tensor count = empty({}, row_statistics(x));
  KernelContext context = kernel_context(x.device());
  kernels::cross_entropy_forward(context, matrix_view(x, rows, classes), vector_view(t),
                                 vector_view(losses), matrix_view(stats, rows, 2),
                                 vector_view(count), rule);
  const Tensor y = [&] {
    const NoGradGuard no_grad;
    return reduced(losses, count, options.reduction).to(x.dtype());
  }();
  const Tensor divisor = options.reduction == Reduction::mean ? count : Tensor();
  return record(
      kOp, {x}, y,
      [x = save(x), t = save(t), stats = save(stats), divisor = save(divisor), rule, options](
          Backward& pass, const Tensor& g) {
        const Tensor in = pass(x), classes_of = pass(t);
        if (!pass.create_graph() && use_fused(kernels::cross_entropy_backward, g.device())) {
          return Gradients{fused_backward(in, classes_of, pass(stats), pass(divisor), g, rule)};
        }
        return differentiate(
            [&](std::span<const Tensor> inputs) {
              return composite::cross_entropy(inputs[0], classes_of, options);
            },
            {&in, 1}, g, pass);
      });
}

}  // namespace sash
