#include "packed_heads.h"

#include "../../../tensor/copy.h"
#include "../../op.h"
#include "../../shape/concat.h"
#include "head_layout.h"

namespace sash {

namespace {

using detail::Packing;

// The gradient of the packed tensor from those of its parts: attention writes them into one.
Tensor packed_gradient(std::span<const Tensor> grads, const Shape& shape, const Packing& packing,
                       const TensorOptions& options) {
  if (Tensor whole = detail::whole_of(grads, packing); whole.defined()) return whole;
  Tensor packed = empty(shape, options);
  std::array<Tensor, 3> parts = detail::parts_of(packed, packing);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (grads[i].defined()) {
      copy_elements(grads[i], parts[i]);
    } else {
      parts[i].zero_();
    }
  }
  return packed;
}

// The same from recorded ops, for second derivatives.
Tensor recorded_packed_gradient(std::span<const Tensor> grads, const Shape& shape,
                                const Packing& packing, const TensorOptions& options) {
  std::vector<Tensor> rows;
  for (size_t i = 0; i < grads.size(); ++i) {
    const Shape part{shape[0], packing.heads_of(i), shape[1], packing.head_dim};
    rows.push_back((grads[i].defined() ? grads[i] : zeros(part, options)).transpose(1, 2));
  }
  return cat(rows, 2).view(shape);
}

}  // namespace

std::array<Tensor, 3> split_packed_heads(const Tensor& packed, int64_t heads, int64_t kv_heads) {
  const char* op = "split_packed_heads";
  check_defined(op, packed);
  check_rank(op, packed, 3);
  if (kv_heads == 0) kv_heads = heads;
  const Shape& shape = packed.shape();
  // More heads than features would overflow the sum.
  const bool fits = heads > 0 && heads <= shape[2] && kv_heads > 0 && kv_heads <= shape[2] &&
                    shape[2] % (heads + 2 * kv_heads) == 0;
  if (!fits) {
    throw ShapeError(op,
                     "a last extent divisible by " + std::to_string(heads) + " + 2 * " +
                         std::to_string(kv_heads),
                     to_string(shape));
  }
  const Packing packing{heads, kv_heads, shape[2] / (heads + 2 * kv_heads)};
  std::array<Tensor, 3> parts = detail::parts_of(packed, packing);
  record(
      op, {packed}, parts,
      [shape, packing, options = packed.options()](Backward& pass, std::span<const Tensor> grads) {
        const auto gradient = pass.create_graph() ? recorded_packed_gradient : packed_gradient;
        return Gradients{gradient(grads, shape, packing, options)};
      });
  return parts;
}

Tensor split_heads(const Tensor& x, int64_t heads) {
  check_rank("split_heads", x, 3);
  const Shape& shape = x.shape();
  if (heads <= 0 || shape[2] % heads != 0) {
    throw ShapeError("split_heads", "a last extent divisible by a positive number of heads",
                     to_string(shape) + " and " + std::to_string(heads) + " heads");
  }
  return x.reshape({shape[0], shape[1], heads, shape[2] / heads}).transpose(1, 2);
}

Tensor merge_heads(const Tensor& x) {
  check_rank("merge_heads", x, 4);
  const Shape& shape = x.shape();
  return x.transpose(1, 2).reshape({shape[0], shape[2], shape[1] * shape[3]});
}

}  // namespace sash
