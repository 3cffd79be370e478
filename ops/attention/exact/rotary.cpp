#include "rotary.h"

#include "../../../tensor/autograd/gradient_memory.h"
#include "../../kernels/rotary.h"
#include "../../op.h"
#include "../../shape/concat.h"
#include "head_layout.h"
#include "packed_heads.h"

namespace sash {

constinit decltype(kernels::rotary) kernels::rotary{"rotary"};

namespace {

using kernels::RotaryParams;

// y = x turned, both [B, S, H, D]; nothing is recorded.
void turn(const Tensor& x, const Tensor& y, const RotaryAngles& angles,
          const RotaryParams& params) {
  const NoGradGuard no_grad;
  const auto [cos, sin] = detail::angles_of_batch(angles);
  run_kernel(kernels::rotary, detail::with_unit_rows(x), cos.contiguous(), sin.contiguous(), y,
             params);
}

struct SavedAngles {
  Saved cos, sin;
  RotaryAngles operator()(Backward& pass) const { return {pass(cos), pass(sin)}; }
};

// The gradient of a turn is the turn back.
Tensor turned(const Tensor& x, const RotaryAngles& angles, RotaryParams params) {
  const Tensor y = detail::empty_in_layout_of(x, x.size(3));
  turn(x.transpose(1, 2), y.transpose(1, 2), angles, params);
  params.back = !params.back;
  return record(
      "rotary", {x}, y,
      [saved = SavedAngles{save(angles.cos), save(angles.sin)}, params](
          Backward& pass, const Tensor& g) { return Gradients{turned(g, saved(pass), params)}; });
}

// The same of packed heads [B, S, N D], into y, which may be the same memory.
Tensor turned_packed(const Tensor& packed, const Tensor& y, const RotaryAngles& angles,
                     int64_t head_dim, RotaryParams params) {
  const auto by_head = [&](const Tensor& t) {
    const NoGradGuard no_grad;
    return t.reshape({t.size(0), t.size(1), t.size(2) / head_dim, head_dim});
  };
  turn(by_head(packed), by_head(y), angles, params);
  params.back = !params.back;
  return record(
      "split_rotary_heads", {packed}, y,
      [saved = SavedAngles{save(angles.cos), save(angles.sin)}, head_dim, params](Backward& pass,
                                                                                  const Tensor& g) {
        return Gradients{turned_packed(g, overwritable(g), saved(pass), head_dim, params)};
      });
}

}  // namespace

namespace detail {

void check_rotary(const char* op, const Tensor& x, const RotaryAngles& angles) {
  check_defined(op, x);
  check_floating(op, x);
  check_rank(op, x, 4);
  for (const Tensor* part : {&angles.cos, &angles.sin}) {
    check_defined(op, *part, "angles");
    check_same_device(op, x, *part);
    check_dtype(op, *part, *row_statistics(x).dtype);
  }
  check_same_shape(op, angles.cos, angles.sin);
  const Shape& shape = angles.cos.shape();
  const int rank = shape.rank();
  const bool fits = (rank == 2 || (rank == 3 && shape[0] == x.size(0))) &&
                    shape[rank - 2] == x.size(2) && shape[rank - 1] <= x.size(3) / 2;
  if (fits) return;
  throw ShapeError(op, "angles [S, n] or [B, S, n] with 2 n <= D for x [B, H, S, D]",
                   to_string(shape) + " and " + to_string(x.shape()));
}

RotaryAngles angles_of_batch(const RotaryAngles& angles) {
  if (angles.cos.rank() == 3) return angles;
  return {angles.cos.unsqueeze(0), angles.sin.unsqueeze(0)};
}

}  // namespace detail

namespace composite {

Tensor rotary(const Tensor& x, const RotaryAngles& angles, RotaryLayout layout) {
  const int64_t pairs = angles.cos.size(-1), rest = x.size(3) - 2 * pairs;
  const auto of_heads = [](const Tensor& t) { return t.rank() == 3 ? t.unsqueeze(1) : t; };
  const Tensor cos = of_heads(angles.cos), sin = of_heads(angles.sin);
  const bool halves = layout == RotaryLayout::half_split;
  const Tensor turning = x.narrow(3, 0, 2 * pairs);
  const Tensor split =
      halves ? Tensor() : turning.reshape({x.size(0), x.size(1), x.size(2), pairs, 2});
  const Tensor a = halves ? turning.narrow(3, 0, pairs) : split.select(4, 0);
  const Tensor b = halves ? turning.narrow(3, pairs, pairs) : split.select(4, 1);
  const Tensor first = (a * cos - b * sin).to(x.dtype());
  const Tensor second = (a * sin + b * cos).to(x.dtype());
  Tensor turned = halves ? cat({first, second}, 3) : stack({first, second}, 4);
  turned = turned.reshape(turning.shape());
  return rest == 0 ? turned : cat({turned, x.narrow(3, 2 * pairs, rest)}, 3);
}

}  // namespace composite

Tensor rotary(const Tensor& x, const RotaryAngles& angles, RotaryLayout layout) {
  detail::check_rotary("rotary", x, angles);
  if (!use_fused(kernels::rotary, x.device())) return composite::rotary(x, angles, layout);
  return turned(x, angles,
                {.heads = x.size(1), .interleaved = layout == RotaryLayout::interleaved});
}

std::array<Tensor, 3> split_rotary_heads(Tensor packed, const RotaryAngles& angles, int64_t heads,
                                         int64_t kv_heads, RotaryLayout layout) {
  RotaryParams params{.interleaved = layout == RotaryLayout::interleaved};
  int64_t head_dim = 0;
  {
    const std::array<Tensor, 3> plain = split_packed_heads(packed, heads, kv_heads);
    const auto& [q, k, v] = plain;
    detail::check_rotary("split_rotary_heads", q, angles);
    if (!use_fused(kernels::rotary, packed.device())) {
      return {composite::rotary(q, angles, layout), composite::rotary(k, angles, layout), v};
    }
    head_dim = q.size(3);
    params.heads = heads + k.size(1);
  }
  const Tensor y = owns_alone(packed) ? packed.detach() : empty(packed.shape(), packed.options());
  return split_packed_heads(turned_packed(packed, y, angles, head_dim, params), heads,
                            params.heads - heads);
}

}  // namespace sash
