#include <map>

#include "../../kernels/attention.h"
#include "../../op.h"
#include "mask_part.h"
#include "text_positions.h"

/// Parts that are data: tensors that give each query a range of keys.
namespace sash {

constinit decltype(kernels::row_bounds) kernels::row_bounds{"row_bounds"};

namespace {

void check_data(const Tensor& data, const char* what, int rank) {
  check_defined(kMask, data, what);
  check_dtype(kMask, data, DType::int32, what);
  if (rank > 0) check_rank(kMask, data, rank);
}

// Bounds [B or 1, H or 1, S_q, 2] in host memory.
class RangeRule final : public MaskRule {
 public:
  RangeRule(const MaskShape& shape, Tensor bounds)
      : keys_{0, shape.keys},
        extents_(bounds.shape()),
        bounds_(std::move(bounds)),
        ends_(bounds_.tensor_view().ptr<const int32_t>()) {}

  void key_ranges(MaskHead head, IndexRange queries, KeyRanges& keys) const override {
    IndexRange all{keys_.past, 0};
    for (int64_t i = queries.first; i < queries.past; ++i) {
      const IndexRange range = of(head, i);
      if (range.empty()) continue;
      all = {std::min(all.first, range.first), std::max(all.past, range.past)};
    }
    if (!all.empty()) keys.push_back(all);
  }
  Coverage coverage(MaskHead head, IndexRange queries, IndexRange keys) const override {
    bool any = false, all = true;
    for (int64_t i = queries.first; i < queries.past; ++i) {
      const IndexRange seen = intersect(of(head, i), keys);
      any = any || !seen.empty();
      all = all && seen.size() == keys.size();
    }
    return coverage_of(any, all);
  }
  uint64_t row_bits(MaskHead head, int64_t query, int64_t key) const override {
    return bits_of(of(head, query), key);
  }

 private:
  IndexRange of(MaskHead head, int64_t query) const {
    const int64_t b = extents_[0] == 1 ? 0 : head.batch, h = extents_[1] == 1 ? 0 : head.head;
    const int64_t at = ((b * extents_[1] + h) * extents_[2] + query) * 2;
    return {ends_[at], ends_[at + 1]};
  }

  IndexRange keys_;
  Shape extents_;
  Tensor bounds_;
  const int32_t* ends_;
};

// What the parts share. The rule runs the CPU's `row_bounds` on host copies of the tensors.
class Data : public NumberedPart {
 public:
  using NumberedPart::NumberedPart;

  bool is_data() const override { return true; }
  void narrow(KernelContext& context, const MaskShape& shape, bool narrow,
              const TensorView& bounds) const override {
    kernels::RowBoundsParams params{shape.queries, shape.keys};
    OptionalViews<2> views;
    give(params, views, {bounds.shape[0], bounds.shape[1], shape.queries});
    kernels::row_bounds(context, params, narrow, bounds);
  }
  std::unique_ptr<MaskRule> bind(const MaskShape& shape) const override {
    const NoGradGuard no_grad;
    const Shape extents = bounds_shape(shape);
    const Tensor bounds =
        empty({extents[0], extents[1], extents[2], 2}, {.dtype = DType::int32, .device = kCPU});
    KernelContext context = kernel_context(kCPU);
    on_host()->narrow(context, shape, false, bounds.tensor_view());
    return std::make_unique<RangeRule>(shape, bounds);
  }

 protected:
  virtual std::shared_ptr<const MaskPart> on_host() const = 0;
  // Sets the tensors of the params; `ranges` is [B or 1, H or 1, S_q].
  virtual void give(kernels::RowBoundsParams& params, OptionalViews<2>& views,
                    const Shape& ranges) const = 0;
};

class KeyLengths final : public Data {
 public:
  explicit KeyLengths(const Tensor& lengths) : Data("key_lengths", 1), lengths_(lengths) {
    check_data(lengths_, "lengths", 1);
  }
  SmallVector<Tensor, 2> tensors() const override { return {lengths_}; }
  Shape bounds_shape(const MaskShape& shape) const override {
    if (lengths_.size(0) != shape.batch) {
      throw ShapeError(kMask, "a length for each of " + std::to_string(shape.batch) + " batches",
                       sash::to_string(lengths_.shape()));
    }
    return {shape.batch, 1, shape.queries};
  }

 protected:
  std::shared_ptr<const MaskPart> on_host() const override {
    return std::make_shared<KeyLengths>(lengths_.to(kCPU));
  }
  void give(kernels::RowBoundsParams& params, OptionalViews<2>& views,
            const Shape&) const override {
    params.lengths = views(lengths_.contiguous());
  }

 private:
  Tensor lengths_;
};

class Packed final : public Data {
 public:
  explicit Packed(const Tensor& cu_seqlens) : Data("packed", 0), cu_seqlens_(cu_seqlens) {
    check_data(cu_seqlens_, "cu_seqlens", 1);
    if (cu_seqlens_.size(0) >= 1) return;
    throw ShapeError(kMask, "cu_seqlens [n + 1]", sash::to_string(cu_seqlens_.shape()));
  }
  SmallVector<Tensor, 2> tensors() const override { return {cu_seqlens_}; }
  Shape bounds_shape(const MaskShape& shape) const override {
    if (shape.queries != shape.keys) {
      throw ShapeError(kMask, "packed queries and keys of one length",
                       std::to_string(shape.queries) + " and " + std::to_string(shape.keys));
    }
    return {1, 1, shape.queries};
  }

 protected:
  std::shared_ptr<const MaskPart> on_host() const override {
    return std::make_shared<Packed>(cu_seqlens_.to(kCPU));
  }
  void give(kernels::RowBoundsParams& params, OptionalViews<2>& views,
            const Shape&) const override {
    params.cu_seqlens = views(cu_seqlens_.contiguous());
  }

 private:
  Tensor cu_seqlens_;
};

class RowRanges final : public Data {
 public:
  RowRanges(const Tensor& first, const Tensor& past)
      : Data("row_ranges", 3), first_(first), past_(past) {
    for (const Tensor* tensor : {&first_, &past_}) {
      check_data(*tensor, "ranges", 0);
      if (tensor->rank() >= 1 && tensor->rank() <= 3) continue;
      throw ShapeError(kMask, "ranges [S_q], [H, S_q] or [B, H, S_q]",
                       sash::to_string(tensor->shape()));
    }
    check_same_device(kMask, first_, past_);
    broadcast_shapes(first_.shape(), past_.shape(), kMask);  // throws if they do not fit
  }
  SmallVector<Tensor, 2> tensors() const override { return {first_, past_}; }
  Shape bounds_shape(const MaskShape& shape) const override {
    if (!fits_heads(shape) || (extent(2) != 1 && extent(2) != shape.queries)) {
      throw ShapeError(kMask,
                       "ranges that broadcast to [" + std::to_string(shape.batch) + ", " +
                           std::to_string(shape.heads) + ", " + std::to_string(shape.queries) + "]",
                       sash::to_string(first_.shape()) + " and " + sash::to_string(past_.shape()));
    }
    return {extent(0), extent(1), shape.queries};
  }

 protected:
  std::shared_ptr<const MaskPart> on_host() const override {
    return std::make_shared<RowRanges>(first_.to(kCPU), past_.to(kCPU));
  }
  void give(kernels::RowBoundsParams& params, OptionalViews<2>& views,
            const Shape& ranges) const override {
    params.first = views(first_.expand(ranges));
    params.past = views(past_.expand(ranges));
  }

 private:
  Tensor first_, past_;
};

// The first token of each one's text, int64 [tokens]; undefined: all are one text. `known` has
// those of parts.
Tensor starts_of(const MaskTerm& term, int64_t tokens, std::map<const MaskPart*, Tensor>& known) {
  if (term.kind != MaskTerm::Kind::part) {
    const Tensor a = starts_of(*term.left, tokens, known);
    const Tensor b = starts_of(*term.right, tokens, known);
    const bool both = term.kind == MaskTerm::Kind::both;
    if (!a.defined() || !b.defined()) return !both ? Tensor() : a.defined() ? a : b;
    return a.is_same(b) ? a : both ? maximum(a, b) : minimum(a, b);
  }
  if (!dynamic_cast<const Packed*>(term.part.get())) return {};
  Tensor& starts = known[term.part.get()];
  if (starts.defined()) return starts;
  const Device device = term.part->tensors()[0].device();
  const Tensor bounds = empty({1, 1, tokens, 2}, {.dtype = DType::int32, .device = device});
  KernelContext context = kernel_context(device);
  term.part->narrow(context, {1, 1, tokens, tokens}, false, bounds.tensor_view());
  starts = bounds.reshape({tokens, 2}).select(1, 0).to(DType::int64);
  return starts;
}

}  // namespace

AttentionMask AttentionMask::key_lengths(const Tensor& lengths) {
  return AttentionMask(std::make_shared<KeyLengths>(lengths));
}
AttentionMask AttentionMask::packed(const Tensor& cu_seqlens) {
  return AttentionMask(std::make_shared<Packed>(cu_seqlens));
}
AttentionMask AttentionMask::row_ranges(const Tensor& first, const Tensor& past) {
  return AttentionMask(std::make_shared<RowRanges>(first, past));
}

Tensor positions_in_texts(const std::vector<AttentionMask>& masks, int64_t tokens) {
  const NoGradGuard no_grad;
  std::map<const MaskPart*, Tensor> known;
  Tensor first;
  for (const AttentionMask& mask : masks) {
    const Tensor starts = starts_of(mask.term(), tokens, known);
    if (!starts.defined()) return {};
    first = !first.defined() || first.is_same(starts) ? starts : minimum(first, starts);
  }
  return first.defined() ? arange(tokens, {.device = first.device()}) - first : first;
}

void check_positions(const std::string& op, const Tensor& positions, const Tensor& tokens) {
  check_dtype(op.c_str(), positions, DType::int64, "positions");
  check_same_device(op.c_str(), tokens, positions);
  if (positions.shape() == tokens.shape() || positions.shape() == Shape{tokens.size(1)}) return;
  throw ShapeError(op, "positions [T] or [B, T] of tokens " + to_string(tokens.shape()),
                   to_string(positions.shape()));
}

}  // namespace sash
