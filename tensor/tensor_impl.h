#pragma once

#include <memory>
#include <vector>

#include "node.h"
#include "tensor.h"

namespace sash {

/// The shared state behind a `Tensor`.
class SASH_API TensorImpl : public RefCounted {
 public:
  TensorImpl(Ref<Storage> storage, const Shape& shape, const Strides& strides, int64_t offset,
             DType dtype);
  ~TensorImpl() override;

  bool requires_grad() const { return is_variable || grad_fn; }
  TensorView tensor_view() const;

  Ref<Storage> storage;
  Shape shape;
  Strides strides;
  int64_t offset;  ///< of the first element, in elements
  DType dtype;

  // What `requires_grad_`, `record` and the backward pass keep.
  bool is_variable = false;   ///< a leaf that wants a gradient
  bool is_view = false;       ///< shares memory with a tensor made earlier
  bool keeps_grad = false;    ///< `retain_grad` on a non-leaf
  uint32_t view_version = 0;  ///< the storage's version when the view was made
  uint32_t output_index = 0;  ///< which output of `grad_fn`
  Ref<Node> grad_fn;          ///< the recorded op that made it; null for leaves
  Ref<TensorImpl> base;       ///< of a view: the tensor that is no view
  Tensor grad;
  std::unique_ptr<std::vector<TensorHook>> hooks;
};

/// `ShapeError`, `DTypeError` or `DeviceError` unless `grad` can be a gradient of `x`.
SASH_API void check_gradient_of(const char* op, const Tensor& x, const Tensor& grad);

/// `ValueError`: `value` is none of `dtype`'s.
[[noreturn]] SASH_API void throw_not_held(std::string_view op, DType dtype, Scalar value);

/// A tensor over `base`'s storage; `offset` is absolute. Not recorded.
SASH_API Tensor make_view(const Tensor& base, const Shape& shape, const Strides& strides,
                          int64_t offset);

}  // namespace sash
