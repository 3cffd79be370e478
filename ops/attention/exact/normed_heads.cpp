#include "normed_heads.h"

#include "../../../tensor/autograd/gradient_memory.h"
#include "../../kernels/normed_heads.h"
#include "../../op.h"
#include "../../shape/concat.h"
#include "packed_heads.h"

namespace sash {

namespace kernels {
constinit decltype(normed_heads_forward) normed_heads_forward{"normed_heads_forward"};
constinit decltype(normed_heads_backward) normed_heads_backward{"normed_heads_backward"};
}  // namespace kernels

namespace {

using kernels::NormedHeadsParams;

constexpr const char* kNormedHeads = "split_normed_heads";

/// A head of 2^k pairs of vectors, rotated as a whole or not at all.
bool fits_kernel(const Tensor& head, const HeadNorms& norms, const RotaryAngles& angles,
                 RotaryLayout layout) {
  const int64_t vector = 16 / static_cast<int64_t>(size_of(head.dtype())), width = head.size(3);
  const int64_t lanes = width / (2 * vector);
  const bool rotates = angles.cos.defined();
  return use_fused(kernels::normed_heads_forward, head.device()) &&
         norms.q_weight.dtype() == head.dtype() && norms.k_weight.dtype() == head.dtype() &&
         width % (2 * vector) == 0 && lanes > 0 && lanes <= 32 && (lanes & (lanes - 1)) == 0 &&
         (!rotates || (layout == RotaryLayout::half_split && 2 * angles.cos.size(-1) == width));
}

/// Angles as the kernel takes them, contiguous and aligned; undefined if there are none.
RotaryAngles for_kernel(const RotaryAngles& angles) {
  if (!angles.cos.defined()) return {};
  const RotaryAngles x = detail::angles_of_batch(angles);
  return {aligned_contiguous(x.cos), aligned_contiguous(x.sin)};
}

/// Contiguous packed [B, S, N D] as [B, S, N, D].
TensorView by_head(const Tensor& packed, const NormedHeadsParams& params) {
  const int64_t count = params.heads + 2 * params.kv_heads;
  return contiguous_view(packed, {packed.size(0), packed.size(1), count, packed.size(2) / count});
}

struct Operands {
  Tensor x, q_weight, k_weight, rstd;  // contiguous and aligned
  RotaryAngles angles;
};

// Over g if nothing else sees it.
Gradients fused_backward(const Operands& in, const Tensor& g, const NormedHeadsParams& params,
                         bool wants_weights) {
  const NoGradGuard no_grad;
  const bool fits = g.is_contiguous() && is_aligned(g);
  Gradients d{fits ? overwritable(g) : aligned_contiguous(g), {}, {}};
  const Tensor dy = fits ? g : d[0];
  if (wants_weights) {
    for (size_t i = 1; i < 3; ++i) d[i] = empty(in.q_weight.shape(), in.q_weight.options());
  }
  const RotaryAngles angles = for_kernel(in.angles);
  run_kernel(kernels::normed_heads_backward, by_head(in.x, params), in.q_weight, in.k_weight,
             in.rstd, angles.cos, angles.sin, by_head(dy, params), by_head(d[0], params), d[1],
             d[2], params);
  return d;
}

Tensor packed_again(const std::array<Tensor, 3>& parts, const Shape& shape) {
  return cat({parts[0].transpose(1, 2), parts[1].transpose(1, 2), parts[2].transpose(1, 2)}, 2)
      .reshape(shape);
}

// packed with its queries and keys normalised and rotated.
Tensor fused(const Tensor& packed, const HeadNorms& norms, const RotaryAngles& angles,
             const NormedHeadsParams& params) {
  const Tensor x = aligned_contiguous(packed), q_weight = aligned_contiguous(norms.q_weight),
               k_weight = aligned_contiguous(norms.k_weight);
  const Tensor y = empty(x.shape(), x.options());
  const Tensor rstd =
      empty({x.size(0), x.size(1), params.heads + params.kv_heads}, row_statistics(x));
  {
    const NoGradGuard no_grad;
    const RotaryAngles turn = for_kernel(angles);
    run_kernel(kernels::normed_heads_forward, by_head(x, params), q_weight, k_weight, turn.cos,
               turn.sin, by_head(y, params), rstd, params);
  }
  return record(
      kNormedHeads, {x, q_weight, k_weight}, y,
      [x = save(x), q = save(q_weight), k = save(k_weight), rstd = save(rstd),
       cos = save(angles.cos), sin = save(angles.sin), options = norms.options,
       params](Backward& pass, const Tensor& g) {
        const RotaryAngles turn{pass(cos), pass(sin)};
        if (!pass.create_graph()) {
          return fused_backward({pass(x), pass(q), pass(k), pass(rstd), turn}, g, params,
                                pass.needs(1) || pass.needs(2));
        }
        const auto plain = [&](const Tensor& in, const Tensor& of_q, const Tensor& of_k) {
          return packed_again(composite::split_normed_heads(in, {of_q, of_k, options}, params.heads,
                                                            params.kv_heads, turn),
                              in.shape());
        };
        return gradients_of_composite(pass, g, plain, std::array{pass(x), pass(q), pass(k)});
      });
}

}  // namespace

namespace composite {

std::array<Tensor, 3> split_normed_heads(const Tensor& packed, const HeadNorms& norms,
                                         int64_t heads, int64_t kv_heads,
                                         const RotaryAngles& angles, RotaryLayout layout) {
  const auto [q, k, v] = split_packed_heads(packed, heads, kv_heads);
  const auto normed = [&](const Tensor& x, const Tensor& weight) {
    const Tensor y = sash::rms_norm(x.transpose(1, 2), {x.size(3)}, weight, norms.options);
    const Tensor by_head = y.transpose(1, 2).to(x.dtype());
    return angles.cos.defined() ? sash::rotary(by_head, angles, layout) : by_head;
  };
  return {normed(q, norms.q_weight), normed(k, norms.k_weight), v};
}

}  // namespace composite

std::array<Tensor, 3> split_normed_heads(const Tensor& packed, const HeadNorms& norms,
                                         int64_t heads, int64_t kv_heads,
                                         const RotaryAngles& angles, RotaryLayout layout) {
  for (const Tensor* weight : {&norms.q_weight, &norms.k_weight}) {
    check_defined(kNormedHeads, *weight, "a weight");
    check_same_device(kNormedHeads, packed, *weight);
  }
  const std::array<Tensor, 3> plain = split_packed_heads(packed, heads, kv_heads);
  const Tensor& q = plain[0];
  const int64_t keys = plain[1].size(1);
  check_shape(kNormedHeads, norms.q_weight, {q.size(3)});
  check_shape(kNormedHeads, norms.k_weight, {q.size(3)});
  if (angles.cos.defined()) detail::check_rotary(kNormedHeads, q, angles);
  if (!fits_kernel(q, norms, angles, layout)) {
    return composite::split_normed_heads(packed, norms, heads, kv_heads, angles, layout);
  }
  const Tensor y = fused(packed, norms, angles,
                         {.heads = heads,
                          .kv_heads = keys,
                          .eps = norms.options.eps,
                          .unit_offset = norms.options.unit_offset});
  return split_packed_heads(y, heads, keys);
}

}  // namespace sash
