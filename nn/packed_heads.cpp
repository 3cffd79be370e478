#include "packed_heads.h"

#include "../ops/checks.h"
#include "../ops/concat.h"
#include "../tensor/factories.h"
#include "../tensor/node.h"
#include "../tensor/tensor_impl.h"

namespace sash::nn {

std::array<Tensor, 3> split_packed_heads(const Tensor& packed, int64_t heads) {
  check_defined("split_packed_heads", packed);
  check_rank("split_packed_heads", packed, 3);
  const Shape shape = packed.shape();
  if (heads <= 0 || shape[2] % (3 * heads) != 0) {
    throw ShapeError("split_packed_heads",
                     "a last extent divisible by 3 * " + std::to_string(heads), to_string(shape));
  }
  const int64_t batch = shape[0], length = shape[1], dim = shape[2] / 3 / heads;
  const Strides step = packed.strides();
  std::array<Tensor, 3> parts;
  for (int64_t i = 0; i < 3; ++i) {
    parts[static_cast<size_t>(i)] =
        make_view(packed, {batch, heads, length, dim}, {step[0], dim * step[2], step[1], step[2]},
                  packed.impl().offset + i * heads * dim * step[2]);
  }
  record("split_packed_heads", {packed}, parts, [shape](Backward&, std::span<const Tensor> grads) {
    std::vector<Tensor> rows;  // [B, S, heads, D] each
    const Tensor* some = nullptr;
    for (const Tensor& g : grads) some = g.defined() ? &g : some;
    for (const Tensor& g : grads) {
      rows.push_back((g.defined() ? g : zeros_like(*some)).transpose(1, 2));
    }
    return Gradients{stack(rows, 2).view(shape)};
  });
  return parts;
}

Tensor split_heads(const Tensor& x, int64_t heads) {
  const Shape& shape = x.shape();
  return x.reshape({shape[0], shape[1], heads, shape[2] / heads}).transpose(1, 2);
}

Tensor merge_heads(const Tensor& x) {
  const Shape& shape = x.shape();
  return x.transpose(1, 2).reshape({shape[0], shape[2], shape[1] * shape[3]});
}

}  // namespace sash::nn
