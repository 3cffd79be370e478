#include "../../../tensor/autograd/grad_mode.h"
#include "../../checks.h"
#include "mask_part.h"

/// Parts that decide each pair separately: predicates and bool tensors.
namespace sash {
namespace {

class PairsRule : public MaskRule {
 public:
  explicit PairsRule(const MaskShape& shape) : shape_(shape) {}

  void key_ranges(MaskHead, IndexRange, KeyRanges& keys) const override {
    if (shape_.keys > 0) keys.push_back({0, shape_.keys});
  }
  Coverage coverage(MaskHead, IndexRange, IndexRange) const override { return Coverage::partial; }

 protected:
  // Bit n is visible(n), for key `key` + n within the keys.
  template <class F>
  uint64_t collect(int64_t key, F visible) const {
    const int64_t keys = std::min<int64_t>(64, shape_.keys - key);
    uint64_t bits = 0;
    for (int64_t n = 0; n < keys; ++n) bits |= uint64_t{visible(n)} << n;
    return bits;
  }

 private:
  MaskShape shape_;
};

class PredicateRule final : public PairsRule {
 public:
  PredicateRule(const MaskShape& shape, const std::function<bool(const MaskIndex&)>& visible)
      : PairsRule(shape), visible_(visible) {}
  uint64_t row_bits(MaskHead head, int64_t query, int64_t key) const override {
    return collect(key, [&](int64_t n) {
      return visible_({head.batch, head.head, query, key + n});
    });
  }

 private:
  std::function<bool(const MaskIndex&)> visible_;
};

class Predicate final : public NumberedPart {
 public:
  Predicate(std::function<bool(const MaskIndex&)> visible, MaskExtents extents)
      : NumberedPart("predicate", 0), visible_(std::move(visible)), extents_(extents) {
    if (!visible_) throw ValueError(kMask, "a predicate", "an empty function");
  }
  MaskExtents extents() const override { return extents_; }
  std::unique_ptr<MaskRule> bind(const MaskShape& shape) const override {
    return std::make_unique<PredicateRule>(shape, visible_);
  }

 private:
  std::function<bool(const MaskIndex&)> visible_;
  MaskExtents extents_;
};

class TensorRule final : public PairsRule {
 public:
  /// `visible` is a bool tensor on the host, expanded to [B or 1, H or 1, S_q, S_k].
  TensorRule(const MaskShape& shape, Tensor visible)
      : PairsRule(shape), visible_(std::move(visible)), view_(visible_.tensor_view()) {}
  uint64_t row_bits(MaskHead head, int64_t query, int64_t key) const override {
    const Strides& step = view_.strides;
    const int64_t b = view_.shape[0] == 1 ? 0 : head.batch, h = view_.shape[1] == 1 ? 0 : head.head;
    const uint8_t* from =
        view_.ptr<const uint8_t>() + b * step[0] + h * step[1] + query * step[2] + key * step[3];
    return collect(key, [&](int64_t n) { return from[n * step[3]] != 0; });
  }

 private:
  Tensor visible_;
  TensorView view_;
};

class Visible final : public NumberedPart {
 public:
  explicit Visible(const Tensor& visible) : NumberedPart("tensor", 4), visible_(visible) {
    check_defined(kMask, visible_);
    check_dtype(kMask, visible_, DType::boolean);
    if (visible_.rank() <= 4) return;
    throw ShapeError(kMask, "a tensor that broadcasts to [B, H, S_q, S_k]",
                     sash::to_string(visible_.shape()));
  }
  SmallVector<Tensor, 2> tensors() const override { return {visible_}; }
  void check_meaning(const MaskShape& shape) const override {
    const int64_t n = shape.batch;
    if (visible_.rank() != 2 || n == 1 || extent(2) != n || extent(3) != n) return;
    if (shape.queries != n || shape.keys != n) return;
    const std::string text = std::to_string(n);
    throw ShapeError(kMask,
                     "a bool mask of more axes, since B = S_q = S_k = " + text + ": [1, 1, " +
                         text + ", " + text + "] for pairs of query and key, [" + text +
                         ", 1, 1, " + text + "] for padding of each sequence",
                     sash::to_string(visible_.shape()));
  }

  std::unique_ptr<MaskRule> bind(const MaskShape& shape) const override {
    const Shape whole{shape.batch, shape.heads, shape.queries, shape.keys};
    for (int axis = 0; axis < 4; ++axis) {
      if (extent(axis) == 1 || extent(axis) == whole[axis]) continue;
      throw ShapeError(kMask, "a mask that broadcasts to " + sash::to_string(whole),
                       sash::to_string(visible_.shape()));
    }
    const NoGradGuard no_grad;
    return std::make_unique<TensorRule>(
        shape, visible_.to(kCPU).expand({extent(0), extent(1), shape.queries, shape.keys}));
  }

 private:
  Tensor visible_;
};

}  // namespace

AttentionMask::AttentionMask(const Tensor& visible)
    : AttentionMask(std::make_shared<Visible>(visible)) {}
AttentionMask AttentionMask::predicate(std::function<bool(const MaskIndex&)> visible,
                                       MaskExtents extents) {
  return AttentionMask(std::make_shared<Predicate>(std::move(visible), extents));
}

}  // namespace sash
