#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <optional>
#include <vector>

#include "../core/backend/tensor_view.h"
#include "../core/error.h"
#include "../core/ref.h"
#include "../core/scalar.h"
#include "storage.h"

namespace sash {

class Node;
class Tensor;
class TensorImpl;
class TensorIndex;
struct Chosen;

/// How a new tensor is made: `zeros({2, 3}, {.dtype = DType::float64, .requires_grad = true})`.
struct TensorOptions {
  std::optional<DType> dtype{};    ///< default: `default_dtype()`
  std::optional<Device> device{};  ///< default: `default_device()`
  bool requires_grad = false;
};

/// Floating dtype of tensors and parameters made without naming one; float32 at first.
SASH_API DType default_dtype();
SASH_API void set_default_dtype(DType dtype);

/// What `Tensor::backward` may be asked to do besides accumulating gradients.
struct BackwardOptions {
  bool retain_graph = false;  ///< keep what the graph saved, for another pass
  /// Record the pass itself, for second derivatives (implies retain). `backward` then leaves
  /// gradients that own their graph, a cycle until `zero_grad`; `sash::grad` does not.
  bool create_graph = false;
};

using TensorHook = std::function<Tensor(const Tensor& grad)>;

/// A strided n-dimensional array on some device, and its place in the graph of recorded ops.
///
/// A `Tensor` is a handle: copies share elements, gradient and history. A default-constructed one
/// is undefined, and asking it for anything but `defined()` throws `ValueError`. Members marked
/// (recorded) are differentiable; all but the copies are defined in `ops/`.
class SASH_API Tensor {
 public:
  Tensor() noexcept;
  explicit Tensor(Ref<TensorImpl> impl);
  ~Tensor();
  Tensor(const Tensor&);
  Tensor(Tensor&&) noexcept;
  Tensor& operator=(const Tensor&) &;
  Tensor& operator=(Tensor&&) & noexcept;
  /// Assigning to an expression writes elements: `x[0] = y` is `x[0].copy_(y)` and `x[0] = 1` is
  /// `x[0].fill_(1)`, while `x = y` makes the variable x name y's tensor. `ValueError` if nothing
  /// else shares the elements, so that the write would be lost: `(a + b) = y`.
  Tensor& operator=(const Tensor& source) &&;
  Tensor& operator=(Scalar value) &&;

  bool defined() const { return static_cast<bool>(impl_); }
  /// Whether both handles name the same tensor (not: equal elements).
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }

  const Shape& shape() const;
  const Strides& strides() const;
  int rank() const { return shape().rank(); }
  int64_t size(int64_t axis) const;
  int64_t numel() const;
  DType dtype() const;
  Device device() const;
  bool is_contiguous() const;
  /// `dtype` and `device`, for making a tensor alike.
  TensorOptions options() const;

  // ---- elements -----------------------------------------------------------------------------

  /// The elements as kernels see them.
  TensorView tensor_view() const;
  /// Pointer to the first element, on the tensor's own device: `data<const float>()` to read,
  /// `data<float>()` to write. The latter counts as one write in place, so that saved tensors and
  /// compiled masks notice; call it again before writing later. `DTypeError` unless T matches.
  template <class T>
  requires Element<std::remove_const_t<T>> T* data() const {
    return static_cast<T*>(data_checked(dtype_of<std::remove_const_t<T>>, !std::is_const_v<T>));
  }
  /// The one element of a one-element tensor, converted to T (fractions are cut off on the way to
  /// an integer); waits for the device. `ValueError` if an integer T cannot hold it.
  template <Element T>
  T item() const;
  /// All elements in row-major order, each converted as `item` does; waits for the device.
  template <Element T>
  std::vector<T> to_vector() const;

  // ---- copies (recorded) --------------------------------------------------------------------

  Tensor clone() const;       ///< fresh contiguous memory
  Tensor contiguous() const;  ///< this tensor if it is contiguous, else a clone
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;
  Tensor to(Device device, DType dtype) const;  ///< cast first if that moves fewer bytes

  // ---- views (recorded): share memory with this tensor ---------------------------------------
  // Extents and axes stand in braces or alone: `x.view({2, -1})`, `x.view(2, -1)`.
  // Writing to a view in place writes to this tensor. A view that would change nothing (`reshape`,
  // `flatten` and `expand` to the same shape, `squeeze` of nothing) is this tensor itself, as are
  // `contiguous()` and `to` where they have nothing to do: `clone()` is what always copies.

  /// The same elements under another shape; one extent may be -1. `ShapeError` if the strides do
  /// not allow it without a copy.
  Tensor view(const Shape& shape) const;
  template <std::integral... More>
  Tensor view(int64_t a, int64_t b, More... more) const {
    return view(Shape{a, b, static_cast<int64_t>(more)...});
  }
  /// `view` where possible, else a copy.
  Tensor reshape(const Shape& shape) const;
  template <std::integral... More>
  Tensor reshape(int64_t a, int64_t b, More... more) const {
    return reshape(Shape{a, b, static_cast<int64_t>(more)...});
  }
  Tensor flatten(int64_t first_axis = 0, int64_t last_axis = -1) const;
  Tensor permute(const Dims& axes) const;
  template <std::integral... More>
  Tensor permute(int64_t a, int64_t b, More... more) const {
    return permute(Dims{a, b, static_cast<int64_t>(more)...});
  }
  Tensor transpose(int64_t axis_a, int64_t axis_b) const;
  /// `transpose(-2, -1)`.
  Tensor mT() const { return transpose(-2, -1); }
  Tensor squeeze() const;              ///< without all axes of extent 1
  Tensor squeeze(int64_t axis) const;  ///< without that axis if its extent is 1, else this tensor
  Tensor unsqueeze(int64_t axis) const;
  /// Repeats axes of extent 1 without copying; -1 keeps an extent. In-place ops refuse the result
  /// where elements share memory.
  Tensor expand(const Shape& shape) const;
  template <std::integral... More>
  Tensor expand(int64_t a, int64_t b, More... more) const {
    return expand(Shape{a, b, static_cast<int64_t>(more)...});
  }
  /// Elements `start, start + step, ...` below `stop` of an axis; negative bounds count from the
  /// end, and bounds beyond it are clamped.
  Tensor slice(int64_t axis, int64_t start, std::optional<int64_t> stop = {},
               int64_t step = 1) const;
  /// `slice(axis, start, start + length)`, but bounds outside the axis throw `IndexError`.
  Tensor narrow(int64_t axis, int64_t start, int64_t length) const;
  /// One index of an axis, which disappears.
  Tensor select(int64_t axis, int64_t index) const;
  /// `select(0, index)`.
  Tensor operator[](int64_t index) const { return select(0, index); }
  Tensor movedim(int64_t from, int64_t to) const;  ///< axis `from` becomes axis `to`
  /// Windows of `size` elements along an axis, `step` apart: a new last axis.
  Tensor unfold(int64_t axis, int64_t size, int64_t step) const;
  std::vector<Tensor> split(int64_t length, int64_t axis = 0) const;
  std::vector<Tensor> split(const std::vector<int64_t>& lengths, int64_t axis = 0) const;
  std::vector<Tensor> chunk(int64_t count, int64_t axis = 0) const;
  std::vector<Tensor> unbind(int64_t axis = 0) const;

  // ---- parts of several axes (recorded; ops/index/indexing.h) ---------------------------------

  /// `x[{Slice(0, 3), kEllipsis, kNewAxis, -1}]`: a view, unless a tensor is among the indices.
  Tensor operator[](std::initializer_list<TensorIndex> indices) const;
  /// The slices that an int64 tensor names, or the elements where a bool tensor is true; a copy.
  Tensor operator[](const Tensor& index) const;
  /// Replaces the elements `x[indices]` by `values`, which broadcast, or adds these to them.
  Tensor& index_put_(std::initializer_list<TensorIndex> indices, const Tensor& values,
                     bool accumulate = false);
  Tensor& index_put_(std::initializer_list<TensorIndex> indices, Scalar value);

  // ---- ops of one main operand (recorded): each is the function of its name in ops/ -----------

  Tensor operator-() const;
  Tensor operator~() const { return logical_not(); }

  Tensor abs() const;
  Tensor ceil() const;
  Tensor clamp(std::optional<Scalar> low, std::optional<Scalar> high = {}) const;
  Tensor cos() const;
  Tensor erf() const;
  Tensor exp() const;
  Tensor expm1() const;
  Tensor floor() const;
  Tensor gelu() const;
  Tensor isfinite() const;
  Tensor isinf() const;
  Tensor isnan() const;
  Tensor log() const;
  Tensor log1p() const;
  Tensor log2() const;
  Tensor logical_not() const;
  Tensor masked_fill(const Tensor& mask, Scalar value) const;
  Tensor neg() const;
  Tensor pow(Scalar exponent) const;
  Tensor reciprocal() const;
  Tensor relu() const;
  Tensor round() const;
  Tensor rsqrt() const;
  Tensor sigmoid() const;
  Tensor sign() const;
  Tensor silu() const;
  Tensor sin() const;
  Tensor softplus() const;
  Tensor sqrt() const;
  Tensor square() const;
  Tensor tanh() const;

  Tensor sum() const;
  Tensor sum(const Dims& axes, bool keepdim = false) const;
  Tensor mean() const;
  Tensor mean(const Dims& axes, bool keepdim = false) const;
  Tensor var(const Dims& axes = {}, int64_t correction = 1, bool keepdim = false) const;
  Tensor amax(const Dims& axes = {}, bool keepdim = false) const;
  Tensor amin(const Dims& axes = {}, bool keepdim = false) const;
  Tensor max() const;
  Tensor median() const;
  Tensor min() const;
  Tensor prod(const Dims& axes = {}, bool keepdim = false) const;
  Tensor any(const Dims& axes = {}, bool keepdim = false) const;
  Tensor all(const Dims& axes = {}, bool keepdim = false) const;
  Tensor norm(double p = 2, const Dims& axes = {}, bool keepdim = false) const;
  Tensor std(const Dims& axes = {}, int64_t correction = 1, bool keepdim = false) const;
  Tensor argmax(int64_t axis = -1, bool keepdim = false) const;
  Tensor argmin(int64_t axis = -1, bool keepdim = false) const;
  Tensor logsumexp(const Dims& axes = {}, bool keepdim = false) const;
  Tensor cumsum(int64_t axis) const;
  Tensor cumprod(int64_t axis) const;
  Tensor softmax(int64_t axis = -1) const;
  Tensor log_softmax(int64_t axis = -1) const;
  Tensor matmul(const Tensor& other) const;

  Tensor flip(const Dims& axes) const;
  template <std::integral... More>
  Tensor flip(int64_t a, int64_t b, More... more) const {
    return flip(Dims{a, b, static_cast<int64_t>(more)...});
  }
  Tensor roll(const Dims& shifts, const Dims& axes) const;
  Tensor repeat(const Dims& counts) const;
  template <std::integral... More>
  Tensor repeat(int64_t a, int64_t b, More... more) const {
    return repeat(Dims{a, b, static_cast<int64_t>(more)...});
  }
  Tensor repeat_interleave(int64_t count, int64_t axis) const;
  Tensor repeat_interleave(const Tensor& counts, int64_t axis) const;
  Tensor tril(int64_t diagonal = 0) const;
  Tensor triu(int64_t diagonal = 0) const;

  Tensor gather(int64_t axis, const Tensor& index) const;
  Tensor scatter(int64_t axis, const Tensor& index, const Tensor& src) const;
  Tensor scatter_add(int64_t axis, const Tensor& index, const Tensor& src) const;
  Tensor index_select(int64_t axis, const Tensor& index) const;
  Tensor index_add(int64_t axis, const Tensor& index, const Tensor& src) const;
  Tensor nonzero() const;
  Tensor masked_select(const Tensor& mask) const;
  Tensor argsort(int64_t axis = -1, bool descending = false) const;
  Chosen max(int64_t axis, bool keepdim = false) const;
  Chosen median(int64_t axis, bool keepdim = false) const;
  Chosen min(int64_t axis, bool keepdim = false) const;
  Chosen sort(int64_t axis = -1, bool descending = false) const;
  Chosen topk(int64_t k, int64_t axis = -1, bool largest = true) const;

  // ---- in place (recorded): the result replaces this tensor's elements ------------------------
  // A write through a view is recorded on the tensor it views and on all views of that, and a write
  // to a tensor on its views. While recording, `AutogradError` on a leaf that requires grad or a
  // view of one, and, if a graph is involved, on a view that was made while nothing was recorded.

  Tensor& add_(const Tensor& other, Scalar alpha = 1);  ///< x += alpha other
  Tensor& sub_(const Tensor& other);
  Tensor& mul_(const Tensor& other);
  Tensor& div_(const Tensor& other);
  Tensor& add_(Scalar value);
  Tensor& sub_(Scalar value);
  Tensor& mul_(Scalar value);
  Tensor& div_(Scalar value);
  Tensor& operator+=(const Tensor& other) { return add_(other); }
  Tensor& operator-=(const Tensor& other) { return sub_(other); }
  Tensor& operator*=(const Tensor& other) { return mul_(other); }
  Tensor& operator/=(const Tensor& other) { return div_(other); }
  Tensor& operator+=(Scalar value) { return add_(value); }
  Tensor& operator-=(Scalar value) { return sub_(value); }
  Tensor& operator*=(Scalar value) { return mul_(value); }
  Tensor& operator/=(Scalar value) { return div_(value); }
  Tensor& fill_(Scalar value);
  Tensor& zero_() { return fill_(0); }
  Tensor& masked_fill_(const Tensor& mask, Scalar value);
  /// Takes the elements of `source`, broadcast and cast, from any device.
  Tensor& copy_(const Tensor& source);

  // ---- autograd -------------------------------------------------------------------------------

  bool requires_grad() const;
  /// Whether passes from now on give this leaf a gradient. `DTypeError` unless floating,
  /// `AutogradError` on a non-leaf.
  Tensor& requires_grad_(bool value = true);
  /// Whether no recorded op made it.
  bool is_leaf() const;
  /// The accumulated gradient; undefined until a backward pass reaches this leaf.
  Tensor grad() const;
  void set_grad(const Tensor& grad);
  /// Drops the gradient.
  void zero_grad();
  /// Keeps the gradient of a non-leaf too: after hooks, summed over backward passes, and after an
  /// in-place write that of the new elements. `sash::grad` keeps none.
  void retain_grad();
  /// Runs `hook` on this tensor's total gradient in each backward pass; a defined result, of the
  /// same shape, dtype and device (`AutogradError`), replaces it. Hooks run in the order of
  /// registration. After an in-place write, those of a non-leaf still see the old elements'
  /// gradient. A hook must not write to the gradient in place: other branches of the graph may
  /// share its memory.
  void register_hook(TensorHook hook);
  /// Runs `hook` in each backward pass, as soon as the pass has added this leaf's whole gradient to
  /// `grad`, while it computes the gradients of other leaves. `sash::grad` runs none.
  /// `AutogradError` on a tensor that is no leaf that requires grad.
  void register_post_accumulate_grad_hook(std::function<void()> hook);
  /// The same elements without history.
  Tensor detach() const;

  /// Accumulates d(this)/d(leaf) into the gradient of each leaf. This tensor has one element.
  void backward(BackwardOptions options = {}) const;
  /// The same with `grad` = d(objective)/d(this), for any shape.
  void backward(const Tensor& grad, BackwardOptions options = {}) const;

  /// The shared state; for the tape and the ops.
  TensorImpl& impl() const;
  const Ref<TensorImpl>& impl_ref() const { return impl_; }

 private:
  void* data_checked(DType dtype, bool writes) const;

  Ref<TensorImpl> impl_;
};

// ---- operators, element by element with broadcasting: the functions of ops/elementwise/
// -----------

/// Arithmetic (recorded): `add`, `sub`, `mul`, `div` and `remainder`.
SASH_API Tensor operator+(const Tensor& a, const Tensor& b);
SASH_API Tensor operator+(const Tensor& a, Scalar b);
SASH_API Tensor operator+(Scalar a, const Tensor& b);
SASH_API Tensor operator-(const Tensor& a, const Tensor& b);
SASH_API Tensor operator-(const Tensor& a, Scalar b);
SASH_API Tensor operator-(Scalar a, const Tensor& b);
SASH_API Tensor operator*(const Tensor& a, const Tensor& b);
SASH_API Tensor operator*(const Tensor& a, Scalar b);
SASH_API Tensor operator*(Scalar a, const Tensor& b);
SASH_API Tensor operator/(const Tensor& a, const Tensor& b);
SASH_API Tensor operator/(const Tensor& a, Scalar b);
SASH_API Tensor operator/(Scalar a, const Tensor& b);
SASH_API Tensor operator%(const Tensor& a, const Tensor& b);
SASH_API Tensor operator%(const Tensor& a, Scalar b);
SASH_API Tensor operator%(Scalar a, const Tensor& b);

/// Comparisons: bool tensors. `is_same` tells whether two handles name one tensor.
SASH_API Tensor operator==(const Tensor& a, const Tensor& b);
SASH_API Tensor operator==(const Tensor& a, Scalar b);
SASH_API Tensor operator==(Scalar a, const Tensor& b);
SASH_API Tensor operator!=(const Tensor& a, const Tensor& b);
SASH_API Tensor operator!=(const Tensor& a, Scalar b);
SASH_API Tensor operator!=(Scalar a, const Tensor& b);
SASH_API Tensor operator<(const Tensor& a, const Tensor& b);
SASH_API Tensor operator<(const Tensor& a, Scalar b);
SASH_API Tensor operator<(Scalar a, const Tensor& b);
SASH_API Tensor operator<=(const Tensor& a, const Tensor& b);
SASH_API Tensor operator<=(const Tensor& a, Scalar b);
SASH_API Tensor operator<=(Scalar a, const Tensor& b);
SASH_API Tensor operator>(const Tensor& a, const Tensor& b);
SASH_API Tensor operator>(const Tensor& a, Scalar b);
SASH_API Tensor operator>(Scalar a, const Tensor& b);
SASH_API Tensor operator>=(const Tensor& a, const Tensor& b);
SASH_API Tensor operator>=(const Tensor& a, Scalar b);
SASH_API Tensor operator>=(Scalar a, const Tensor& b);

/// `logical_and` and `logical_or` of bool tensors.
SASH_API Tensor operator&(const Tensor& a, const Tensor& b);
SASH_API Tensor operator|(const Tensor& a, const Tensor& b);

/// `Tensor::backward` from several outputs at once. `grad_outputs` may be empty for one-element
/// outputs.
SASH_API void backward(const std::vector<Tensor>& outputs,
                       const std::vector<Tensor>& grad_outputs = {}, BackwardOptions options = {});

/// d(sum of outputs . grad_outputs)/d(input) for each input, leaving every `grad()` alone.
/// `grad_outputs` may be empty for one-element outputs. An input that no output depends on gives an
/// undefined tensor if `allow_unused`, else `AutogradError`.
SASH_API std::vector<Tensor> grad(const std::vector<Tensor>& outputs,
                                  const std::vector<Tensor>& inputs,
                                  const std::vector<Tensor>& grad_outputs = {},
                                  BackwardOptions options = {}, bool allow_unused = false);

/// The elements as nested lists with aligned columns, then dtype, shape, device, and whether and
/// how it takes part in a graph:
///
///     [[1.5000, 2.0000],
///      [3.0000, 4.0000]] float32 [2, 2] cpu grad_fn=<add>
///
/// Of more than 1000 elements, each axis shows its first and last three. "undefined" for an
/// undefined tensor.
SASH_API std::string to_string(const Tensor& tensor);
SASH_API std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

}  // namespace sash
