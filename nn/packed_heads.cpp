#include "packed_heads.h"

#include "../ops/checks.h"
#include "../ops/concat.h"
#include "../ops/copy.h"
#include "../tensor/factories.h"
#include "../tensor/node.h"
#include "../tensor/tensor_impl.h"

namespace sash::nn {

namespace {

// Queries, keys and values of packed [B, S, 3 heads D], each [B, heads, S, D].
std::array<Tensor, 3> parts_of(const Tensor& packed, int64_t heads) {
  const Shape& shape = packed.shape();
  const Strides& step = packed.strides();
  const int64_t dim = shape[2] / 3 / heads;
  std::array<Tensor, 3> parts;
  int64_t offset = packed.impl().offset;
  for (Tensor& part : parts) {
    part = make_view(packed, {shape[0], heads, shape[1], dim},
                     {step[0], dim * step[2], step[1], step[2]}, offset);
    offset += heads * dim * step[2];
  }
  return parts;
}

// The gradient of the packed tensor, made from those of its parts.
Tensor packed_gradient(std::span<const Tensor> grads, const Shape& shape, int64_t heads,
                       const TensorOptions& options) {
  Tensor packed = empty(shape, options);
  std::array<Tensor, 3> parts = parts_of(packed, heads);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (grads[i].defined()) {
      copy_elements(grads[i], parts[i]);
    } else {
      parts[i].zero_();
    }
  }
  return packed;
}

// The same from recorded ops.
Tensor recorded_packed_gradient(std::span<const Tensor> grads, const Shape& shape, int64_t heads,
                                const TensorOptions& options) {
  const Shape part{shape[0], heads, shape[1], shape[2] / 3 / heads};
  std::vector<Tensor> rows;
  for (const Tensor& g : grads) {
    rows.push_back((g.defined() ? g : zeros(part, options)).transpose(1, 2));
  }
  return stack(rows, 2).view(shape);
}

}  // namespace

std::array<Tensor, 3> split_packed_heads(const Tensor& packed, int64_t heads) {
  check_defined("split_packed_heads", packed);
  check_rank("split_packed_heads", packed, 3);
  const Shape& shape = packed.shape();
  if (heads <= 0 || shape[2] % (3 * heads) != 0) {
    throw ShapeError("split_packed_heads",
                     "a last extent divisible by 3 * " + std::to_string(heads), to_string(shape));
  }
  std::array<Tensor, 3> parts = parts_of(packed, heads);
  record("split_packed_heads", {packed}, parts,
         [shape, heads, options = packed.options()](Backward& pass, std::span<const Tensor> grads) {
           const auto gradient = pass.create_graph() ? recorded_packed_gradient : packed_gradient;
           return Gradients{gradient(grads, shape, heads, options)};
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
