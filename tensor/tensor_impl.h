#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <vector>

#include "../core/locks.h"
#include "autograd/node.h"
#include "tensor.h"

namespace sash {

/// Adds gradients to a non-leaf after `retain_grad`. Shared by the tensor and the op that made it.
class SASH_API RetainedGrad : public RefCounted {
 public:
  explicit RetainedGrad(TensorImpl& tensor) : tensor_(&tensor) {}
  /// Adds `g`, the gradient of an output of `node`, unless the tensor is gone or `node` no longer
  /// made it.
  void add(const Node& node, const Tensor& g);
  /// Called when the tensor is destroyed.
  void forget();

 private:
  SmallMutex mutex_;
  TensorImpl* tensor_;
};

/// The shared state behind a `Tensor`.
class SASH_API TensorImpl : public RefCounted {
 public:
  TensorImpl(Ref<Storage> storage, const Shape& shape, const Strides& strides, int64_t offset,
             DType dtype);
  ~TensorImpl() override;

  /// Looks at `is_stale()` first: another thread may be replacing `grad_fn_`.
  bool requires_grad() const { return is_variable || is_stale() || grad_fn_; }
  TensorView tensor_view() const;

  /// The recorded op that made it; null for leaves. A view whose base has been written to since is
  /// replayed first: its op is then a view of the base's new elements.
  const Ref<Node>& grad_fn() {
    if (is_stale()) refresh();
    return grad_fn_;
  }
  /// Which output of `grad_fn()`.
  uint32_t output_index() const { return output_index_; }
  /// Makes it an output of `node`. `retain_grad` then keeps the gradient of the new elements.
  void set_history(Ref<Node> node, uint32_t output);
  /// Marks its history as up to date with its base's.
  void sync_with_base() { base_sequence_.store(sequence_of(*base), std::memory_order_release); }
  /// Made while nothing was recorded: not part of the history of its base.
  void ignore_base() { base_sequence_.store(kIgnored, std::memory_order_release); }
  bool ignores_base() const {
    return base && base_sequence_.load(std::memory_order_acquire) == kIgnored;
  }

  Ref<Storage> storage;
  Shape shape;
  Strides strides;
  int64_t offset;  ///< of the first element, in elements
  DType dtype;

  // What `requires_grad_`, `record` and the backward pass keep.
  bool is_variable = false;         ///< a leaf that wants a gradient
  bool was_variable = false;        ///< was a variable; recorded ops may still lead to it
  SmallMutex mutex;                 ///< held to add to a leaf's grad, or to make a view's history
  Ref<TensorImpl> base;             ///< of a view: the tensor that is no view
  Ref<RetainedGrad> retained_grad;  ///< after `retain_grad` on a non-leaf
  Tensor grad;
  std::unique_ptr<std::vector<TensorHook>> hooks;

 private:
  friend class RetainedGrad;
  static constexpr uint64_t kIgnored = std::numeric_limits<uint64_t>::max();

  static uint64_t sequence_of(const TensorImpl& root) {
    return root.grad_fn_ ? root.grad_fn_->sequence() : 0;
  }
  // Whether a write was recorded on the base since this history was made.
  bool is_stale() const {
    if (!base || !base->grad_fn_) return false;
    const uint64_t known = base_sequence_.load(std::memory_order_acquire);
    return known != kIgnored && known != base->grad_fn_->sequence();
  }
  void refresh();

  uint32_t output_index_ = 0;
  Ref<Node> grad_fn_;
  std::atomic<uint64_t> base_sequence_{0};  // the base's op when the history was made
};

/// `ShapeError`, `DTypeError` or `DeviceError` unless `grad` can be a gradient of `x`.
SASH_API void check_gradient_of(const char* op, const Tensor& x, const Tensor& grad);

/// Throws `ValueError`: `dtype` cannot hold `value`.
[[noreturn]] SASH_API void throw_not_held(std::string_view op, DType dtype, Scalar value);

/// Whether elements may share memory: axes are expanded, or windows overlap.
SASH_API bool overlaps_itself(const Shape& shape, const Strides& strides);

/// A tensor over `base`'s storage; `offset` is absolute. Not recorded.
SASH_API Tensor make_view(const Tensor& base, const Shape& shape, const Strides& strides,
                          int64_t offset);

/// a + b, recorded as "add": two gradients of one tensor.
Tensor add_gradients(const Tensor& a, const Tensor& b);

/// A view of `base` like `view`, recorded as an op.
Tensor replay_view(const Tensor& base, const TensorImpl& view);
/// Records on `base` that the elements of `view`, one of its views, were replaced.
void record_view_write(Tensor base, const Tensor& view);

}  // namespace sash
