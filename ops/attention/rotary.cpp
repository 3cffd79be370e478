#include "rotary.h"

#include "../checks.h"
#include "../elementwise/binary.h"
#include "../shape/concat.h"
#include "packed_heads.h"

namespace sash {
namespace {

void check_arguments(const char* op, const Tensor& x, const RotaryAngles& angles) {
  check_defined(op, x);
  check_floating(op, x);
  check_rank(op, x, 4);
  const DType dtype = x.dtype() == DType::float64 ? DType::float64 : DType::float32;
  for (const Tensor* part : {&angles.cos, &angles.sin}) {
    check_defined(op, *part, "angles");
    check_same_device(op, x, *part);
    check_dtype(op, *part, dtype);
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

}  // namespace

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
  check_arguments("rotary", x, angles);
  return composite::rotary(x, angles, layout);
}

std::array<Tensor, 3> split_rotary_heads(const Tensor& packed, const RotaryAngles& angles,
                                         int64_t heads, int64_t kv_heads, RotaryLayout layout) {
  const auto [q, k, v] = split_packed_heads(packed, heads, kv_heads);
  return {rotary(q, angles, layout), rotary(k, angles, layout), v};
}

}  // namespace sash
