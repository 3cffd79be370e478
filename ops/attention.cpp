#include "attention.h"

#include <array>
#include <cmath>
#include <limits>

#include "../tensor/factories.h"
#include "../tensor/node.h"
#include "../tensor/random.h"
#include "binary.h"
#include "checks.h"
#include "compare.h"
#include "dropout.h"
#include "kernels/attention.h"
#include "matmul.h"
#include "softmax.h"
#include "where.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                      const AttentionParams&, const TensorView&, const TensorView&)>
    attention_forward{"attention_forward"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                      const TensorView&, const TensorView&, const TensorView&,
                      const AttentionParams&, const TensorView&, const TensorView&,
                      const TensorView&)>
    attention_backward{"attention_backward"};
}  // namespace kernels

namespace {

constexpr const char* kOp = "attention";

// One call, with its mask compiled and its random numbers drawn.
struct Call {
  double scale;
  AttentionMask::Term mask;  // visible, if defined, is [B, H, S_q, S_k] by strides
  double dropout;
  PhiloxState philox;
};

Shape weights_shape(const Tensor& q, const Tensor& k) {
  return {q.size(0), q.size(1), q.size(2), k.size(2)};
}

void check_shapes(const Tensor& q, const Tensor& k, const Tensor& v) {
  for (const Tensor* x : {&q, &k, &v}) check_rank(kOp, *x, 4);
  const bool heads = k.size(1) == 0 ? q.size(1) == 0 : q.size(1) % k.size(1) == 0;
  const bool fits = q.size(0) == k.size(0) && q.size(0) == v.size(0) && k.size(1) == v.size(1) &&
                    heads && k.size(2) == v.size(2) && q.size(3) == k.size(3);
  if (!fits) {
    throw ShapeError(
        kOp,
        "q [B, H, S_q, D], k [B, H_kv, S_k, D], v [B, H_kv, S_k, D_v], H a multiple "
        "of H_kv",
        to_string(q.shape()) + ", " + to_string(k.shape()) + " and " + to_string(v.shape()));
  }
  for (const Tensor* x : {&q, &v}) {
    if (x->size(3) > 0) continue;
    throw ShapeError(kOp, "heads of at least one feature", to_string(x->shape()));
  }
}

Tensor expand_mask(const Tensor& mask, const Tensor& q, const Tensor& k) {
  check_same_device(kOp, q, mask);
  const Shape shape = weights_shape(q, k);
  bool fits = mask.rank() <= 4;
  for (int axis = 0; fits && axis < mask.rank(); ++axis) {
    const int64_t extent = mask.shape()[axis];
    fits = extent == 1 || extent == shape[axis + 4 - mask.rank()];
  }
  if (!fits) {
    throw ShapeError(kOp, "a mask that broadcasts to " + to_string(shape), to_string(mask.shape()));
  }
  return mask.expand(shape);
}

Call prepare(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  check_compatible(kOp, q, k);
  check_compatible(kOp, q, v);
  check_floating(kOp, q);
  check_shapes(q, k, v);
  if (!(options.dropout >= 0 && options.dropout <= 1)) {
    throw ValueError(kOp, "a dropout probability in [0, 1]", to_text(options.dropout));
  }
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  if (!std::isfinite(scale)) throw ValueError(kOp, "a finite scale", to_text(scale));
  AttentionMask::Term mask = options.mask.compile(q.size(2), k.size(2), q.device());
  if (mask.visible.defined()) mask.visible = expand_mask(mask.visible, q, k);
  return {scale, mask, options.dropout, {}};
}

// q [B, H, S, D] as [B, H_kv, H / H_kv, S, D].
Tensor grouped(const Tensor& q, int64_t groups) {
  const int64_t heads = groups == 0 ? 0 : q.size(1) / groups;
  return q.reshape({q.size(0), groups, heads, q.size(2), q.size(3)});
}

Tensor from_plain_ops(const Tensor& q, const Tensor& k, const Tensor& v, const Call& call) {
  const Shape shape = weights_shape(q, k);
  const Tensor scores = matmul(grouped(q, k.size(1)), k.unsqueeze(2).mT()) * call.scale;
  Tensor weights = scores.reshape(shape);
  const AttentionMask::Term& mask = call.mask;
  if (mask.causal || mask.visible.defined()) {
    AttentionMask visible = mask.visible.defined() ? AttentionMask(mask.visible) : AttentionMask();
    if (mask.causal) visible = visible & AttentionMask::causal();
    const Tensor hidden = logical_not(visible.to_dense(shape[2], shape[3], q.device()));
    weights = masked_fill(weights, hidden, -std::numeric_limits<double>::infinity());
  }
  weights = softmax(weights, -1);
  if (call.dropout > 0) weights = dropout_with(weights, call.dropout, call.philox);
  return matmul(grouped(weights, k.size(1)), v.unsqueeze(2))
      .reshape({q.size(0), q.size(1), q.size(2), v.size(3)});
}

// Kernels read heads of any strides, but whole rows.
Tensor with_unit_rows(const Tensor& x) {
  const NoGradGuard no_grad;
  return x.size(3) == 1 || x.strides()[3] == 1 ? x : x.contiguous();
}

// The kernels' parameters; they borrow the mask from `call`.
class Params {
 public:
  explicit Params(const Call& call) {
    params_ = {call.scale, call.mask.causal, nullptr, call.dropout, call.philox};
    if (!call.mask.visible.defined()) return;
    mask_ = call.mask.visible.tensor_view();
    params_.mask = &mask_;
  }
  Params(const Params&) = delete;
  Params& operator=(const Params&) = delete;
  const kernels::AttentionParams& get() const { return params_; }

 private:
  TensorView mask_;
  kernels::AttentionParams params_;
};

Gradients fused_backward(const Tensor& g, const std::array<Tensor, 3>& inputs, const Tensor& out,
                         const Tensor& lse, const Call& call) {
  const Tensor q = with_unit_rows(inputs[0]), k = with_unit_rows(inputs[1]),
               v = with_unit_rows(inputs[2]);
  Gradients gradients{empty_like(q), empty_like(k), empty_like(v)};
  KernelContext context = kernel_context(q.device());
  kernels::attention_backward(context, with_unit_rows(g).tensor_view(), q.tensor_view(),
                              k.tensor_view(), v.tensor_view(), out.tensor_view(),
                              lse.tensor_view(), Params(call).get(), gradients[0].tensor_view(),
                              gradients[1].tensor_view(), gradients[2].tensor_view());
  return gradients;
}

Tensor fused_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Call& call) {
  const Tensor out = empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
  TensorOptions numbers = q.options();
  if (numbers.dtype != DType::float64) numbers.dtype = DType::float32;
  const Tensor lse = empty({q.size(0), q.size(1), q.size(2)}, numbers);
  KernelContext context = kernel_context(q.device());
  kernels::attention_forward(context, with_unit_rows(q).tensor_view(),
                             with_unit_rows(k).tensor_view(), with_unit_rows(v).tensor_view(),
                             Params(call).get(), out.tensor_view(), lse.tensor_view());
  return record(
      "attention", {q, k, v}, out,
      [q = save(q), k = save(k), v = save(v), out = save_output(out), lse,
       visible = save(call.mask.visible), call](Backward& pass, const Tensor& g) {
        const std::array<Tensor, 3> inputs{pass(q), pass(k), pass(v)};
        pass(visible);  // throws if the mask was overwritten
        if (!pass.create_graph()) {
          return fused_backward(g, inputs, pass(out), lse, call);
        }
        return differentiate(
            [&call](std::span<const Tensor> x) { return from_plain_ops(x[0], x[1], x[2], call); },
            inputs, g, pass);
      });
}

bool has_fused(Device device) {
  return fused(kernels::attention_forward, device) && fused(kernels::attention_backward, device);
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options) {
  Call call = prepare(q, k, v, options);
  if (call.dropout > 0) call.philox = next_philox(q.device(), numel(weights_shape(q, k)));
  return has_fused(q.device()) ? fused_attention(q, k, v, call) : from_plain_ops(q, k, v, call);
}

Tensor composite::attention(const Tensor& q, const Tensor& k, const Tensor& v,
                            const AttentionOptions& options, PhiloxState philox) {
  Call call = prepare(q, k, v, options);
  call.philox = philox;
  return from_plain_ops(q, k, v, call);
}

}  // namespace sash
