#include "head_layout.h"

#include "../../../tensor/autograd/grad_mode.h"
#include "../../../tensor/factories.h"
#include "../../../tensor/tensor_impl.h"

namespace sash::detail {
namespace {

// Strides of [B, H, S, width] in rows of `row` elements, one for each token.
Strides strides_in_rows(const Shape& shape, int64_t width, int64_t row) {
  return {shape[2] * row, width, row, 1};
}

// A tensor over the elements of `memory` that is no view of it.
Tensor laid_out(const Tensor& memory, const Shape& shape, const Strides& strides, int64_t offset) {
  return Tensor(
      make_ref<TensorImpl>(memory.impl().storage, shape, strides, offset, memory.dtype()));
}

// Whether part `i` lies where `parts_of` has it in a contiguous packed tensor from `start` on.
bool is_part(const Tensor& x, size_t i, const Packing& packing, int64_t start) {
  const int64_t before =
      i == 0 ? 0 : packing.heads + (static_cast<int64_t>(i) - 1) * packing.kv_heads;
  return x.strides() == strides_in_rows(x.shape(), packing.head_dim, packing.width()) &&
         x.impl().offset == start + before * packing.head_dim;
}

bool are_parts(std::span<const Tensor> parts, const Packing& packing) {
  const TensorImpl& q = parts[0].impl();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].impl().storage != q.storage || parts[i].dtype() != q.dtype) return false;
    if (!is_part(parts[i], i, packing, q.offset)) return false;
  }
  return true;
}

}  // namespace

std::array<Tensor, 3> parts_of(const Tensor& packed, const Packing& packing) {
  const Shape& shape = packed.shape();
  const Strides& step = packed.strides();
  const int64_t head_step = packing.head_dim * step[2];
  std::array<Tensor, 3> parts;
  int64_t offset = packed.impl().offset;
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = make_view(packed, {shape[0], packing.heads_of(i), shape[1], packing.head_dim},
                         {step[0], head_step, step[1], step[2]}, offset);
    offset += packing.heads_of(i) * head_step;
  }
  return parts;
}

Tensor whole_of(std::span<const Tensor> parts, const Packing& packing) {
  for (const Tensor& part : parts) {
    if (!part.defined()) return {};
  }
  if (!are_parts(parts, packing)) return {};
  const Shape shape{parts[0].size(0), parts[0].size(2), packing.width()};
  return laid_out(parts[0], shape, contiguous_strides(shape), parts[0].impl().offset);
}

Tensor with_unit_rows(const Tensor& x) {
  const NoGradGuard no_grad;
  return x.size(3) == 1 || x.strides()[3] == 1 ? x : x.contiguous();
}

Tensor grouped_heads(const Tensor& x, int64_t kv_heads) {
  const int64_t shared = kv_heads == 0 ? 0 : x.size(1) / kv_heads;
  return x.reshape({x.size(0), kv_heads, shared, x.size(2), x.size(3)});
}

Tensor empty_in_layout_of(const Tensor& x, int64_t width) {
  const Shape shape{x.size(0), x.size(1), x.size(2), width};
  const Tensor memory = empty(shape, x.options());
  if (x.size(1) == 1 || x.size(2) == 1 || x.strides()[1] >= x.strides()[2]) return memory;
  return laid_out(memory, shape, strides_in_rows(shape, width, shape[1] * width), 0);
}

std::array<Tensor, 3> empty_gradients(const std::array<Tensor, 3>& qkv) {
  const auto& [q, k, v] = qkv;
  const Packing packing{q.size(1), k.size(1), q.size(3)};
  std::array<Tensor, 3> gradients;
  if (q.numel() > 0 && v.size(3) == q.size(3) && are_parts(qkv, packing)) {
    const Tensor whole = empty({q.size(0), q.size(2), packing.width()}, q.options());
    const std::array<Tensor, 3> parts = parts_of(whole, packing);
    for (size_t i = 0; i < parts.size(); ++i) {
      gradients[i] = laid_out(whole, parts[i].shape(), parts[i].strides(), parts[i].impl().offset);
    }
    return gradients;
  }
  for (size_t i = 0; i < qkv.size(); ++i) {
    gradients[i] = empty_in_layout_of(qkv[i], qkv[i].size(3));
  }
  return gradients;
}

}  // namespace sash::detail
