#include "attention_mask.h"

#include <algorithm>
#include <atomic>

#include "../../../core/parallel.h"
#include "../../../tensor/autograd/grad_mode.h"
#include "../../../tensor/factories.h"
#include "../../../tensor/tensor_impl.h"
#include "bound_mask.h"

namespace sash {
namespace {

using Kind = MaskTerm::Kind;

}  // namespace

NumberedPart::NumberedPart(std::string name, int axes) : name_(std::move(name)), axes_(axes) {
  static std::atomic<uint64_t> next{1};
  number_ = next.fetch_add(1, std::memory_order_relaxed);
}

std::string NumberedPart::text() const {
  std::string text = name_ + "#" + std::to_string(number_);
  for (const Tensor& x : tensors()) text += "." + std::to_string(x.impl().storage->version());
  return text;
}

int64_t NumberedPart::extent(int axis) const {
  int64_t extent = 1;
  for (const Tensor& x : tensors()) {
    const int at = axis - axes_ + x.rank();
    if (axis < axes_ && at >= 0 && x.shape()[at] != 1) extent = x.shape()[at];
  }
  return extent;
}

bool NumberedPart::fits_heads(const MaskShape& shape) const {
  return (extent(0) == 1 || extent(0) == shape.batch) &&
         (extent(1) == 1 || extent(1) == shape.heads);
}

AttentionMask::AttentionMask(std::shared_ptr<const MaskPart> part) : term_(leaf(std::move(part))) {}

AttentionMask AttentionMask::causal() {
  static const AttentionMask mask = window(std::nullopt, 0);
  return mask;
}
AttentionMask AttentionMask::symmetric_window(int64_t w) { return window(w, w); }
AttentionMask AttentionMask::local(int64_t c) {
  if (c < 1)
    throw ValueError("attention_mask", "a local context of at least 1 key", std::to_string(c));
  return window(c / 2, c - c / 2 - 1);
}

AttentionMask AttentionMask::causal_window(int64_t keys) {
  if (keys >= 1) return window(keys - 1, 0);
  throw ValueError("attention_mask", "a causal window of at least 1 key", std::to_string(keys));
}
AttentionMask AttentionMask::dilated_window(std::optional<int64_t> left,
                                            std::optional<int64_t> right, int64_t dilation) {
  return dilated_window(left, right, std::vector<int64_t>{dilation});
}

AttentionMask operator&(const AttentionMask& a, const AttentionMask& b) {
  if (a.shows_all()) return b;
  if (b.shows_all() || is_same(a.term_, b.term_)) return a;
  return AttentionMask(join(Kind::both, a.term_, b.term_));
}

AttentionMask operator|(const AttentionMask& a, const AttentionMask& b) {
  if (a.shows_all() || is_same(a.term_, b.term_)) return a;
  if (b.shows_all()) return b;
  return AttentionMask(join(Kind::either, a.term_, b.term_));
}

std::string AttentionMask::to_string() const { return sash::to_string(*term_); }

bool AttentionMask::shows_all() const { return term_->shows_all; }

MaskExtents AttentionMask::extents() const { return extents_of(*term_); }

Tensor AttentionMask::to_dense(const MaskShape& shape, Device device) const {
  check_mask_shape(shape);
  const BoundMask mask(*term_, shape);
  const MaskExtents extents = this->extents();
  const int64_t batches = extents.per_batch ? shape.batch : 1;
  const int64_t heads = extents.per_head ? shape.heads : 1;
  const Tensor dense =
      empty({batches, heads, shape.queries, shape.keys}, {.dtype = DType::boolean, .device = kCPU});
  auto* const to = dense.tensor_view().ptr<uint8_t>();
  constexpr int64_t kRows = 64;
  parallel_for(batches * heads * shape.queries, kRows, [&](int64_t first, int64_t past) {
    for (int64_t row = first; row < past; ++row) {
      const int64_t head = row / shape.queries;
      for (int64_t key = 0; key < shape.keys; key += 64) {
        const uint64_t word = mask.row_bits({head / heads, head % heads}, row % shape.queries, key);
        const int64_t keys = std::min<int64_t>(64, shape.keys - key);
        for (int64_t n = 0; n < keys; ++n) to[row * shape.keys + key + n] = word >> n & 1;
      }
    }
  });
  const NoGradGuard no_grad;
  return dense.to(device);
}

Tensor AttentionMask::to_dense(int64_t queries, int64_t keys, Device device) const {
  return to_dense(shape_of(*term_, queries, keys), device);
}

}  // namespace sash
