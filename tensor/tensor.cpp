#include "tensor.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "../core/backend/dispatch.h"
#include "../core/runtime.h"
#include "../core/small_vector.h"
#include "autograd/grad_mode.h"
#include "factories.h"
#include "graph.h"
#include "kernels/memory.h"
#include "tensor_impl.h"

namespace sash {

namespace kernels {
constinit decltype(fill) fill{"fill"};
constinit decltype(copy) copy{"copy"};
constinit decltype(arange) arange{"arange"};
}  // namespace kernels

namespace {
constinit thread_local bool grad_is_enabled = true;
}  // namespace

DType default_dtype() { return runtime().default_dtype.load(std::memory_order_relaxed); }

void set_default_dtype(DType dtype) {
  if (!is_floating(dtype)) throw DTypeError("set_default_dtype", "a floating dtype", name(dtype));
  runtime().default_dtype.store(dtype, std::memory_order_relaxed);
}

bool grad_enabled() { return grad_is_enabled; }
void set_grad_enabled(bool enabled) { grad_is_enabled = enabled; }

// ---- TensorImpl ---------------------------------------------------------------------------------

TensorImpl::TensorImpl(Ref<Storage> storage_, const Shape& shape_, const Strides& strides_,
                       int64_t offset_, DType dtype_)
    : storage(std::move(storage_)),
      shape(shape_),
      strides(strides_),
      offset(offset_),
      dtype(dtype_) {}

TensorImpl::~TensorImpl() {
  if (retained_grad) retained_grad->forget();
}

void TensorImpl::set_history(Ref<Node> node, uint32_t output) {
  grad_fn_ = std::move(node);
  output_index_ = output;
  if (retained_grad) grad_fn_->add_hook({output, nullptr, retained_grad});
}

void TensorImpl::refresh() {
  Ref<Node> before = nullptr;  // destroyed after the lock
  const std::lock_guard lock(mutex);
  if (!is_stale()) return;
  const EnableGradGuard recording;
  const Tensor again = replay_view(Tensor(base), *this);
  before = grad_fn_;
  again.impl().grad_fn_->set_sequence(sequence_of(*base) + 1);
  set_history(again.impl().grad_fn_, 0);
  sync_with_base();
}

void RetainedGrad::add(const Node& node, const Tensor& g) {
  Tensor before, sum = g;
  for (;;) {
    Tensor now;  // like the others, destroyed without the lock
    {
      const std::lock_guard lock(mutex_);
      if (!tensor_ || tensor_->is_stale() || tensor_->grad_fn_.get() != &node) return;
      if (tensor_->grad.is_same(before)) return std::swap(tensor_->grad, sum);
      now = tensor_->grad;
    }
    before = std::move(now);
    sum = add_gradients(before, g);
  }
}

void RetainedGrad::forget() {
  const std::lock_guard lock(mutex_);
  tensor_ = nullptr;
}

TensorView TensorImpl::tensor_view() const {
  auto* bytes = static_cast<char*>(storage->data());
  return {bytes ? bytes + offset * size_of(dtype) : nullptr, dtype, storage->device(), shape,
          strides};
}

void throw_not_held(std::string_view op, DType dtype, Scalar value) {
  throw ValueError(
      op, "a value of " + std::string(name(dtype)),
      value.is_integer() ? std::to_string(value.to<int64_t>()) : to_text(value.to_double()));
}

bool overlaps_itself(const Shape& shape, const Strides& strides) {
  SmallVector<std::pair<int64_t, int64_t>, kMaxRank> axes;  // stride, last index
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] == 0) return false;
    if (shape[axis] > 1) axes.push_back({std::abs(strides[axis]), shape[axis] - 1});
  }
  std::sort(axes.begin(), axes.end());
  int64_t reach = 0;  // of the axes with smaller strides
  for (const auto& [stride, last] : axes) {
    if (stride <= reach) return true;
    reach += stride * last;
  }
  return false;
}

Tensor make_view(const Tensor& base, const Shape& shape, const Strides& strides, int64_t offset) {
  const TensorImpl& from = base.impl();
  auto impl = make_ref<TensorImpl>(from.storage, shape, strides, offset, from.dtype);
  impl->base = from.base ? from.base : base.impl_ref();
  if (!grad_enabled() || from.ignores_base()) {
    impl->ignore_base();
  } else {
    impl->sync_with_base();
  }
  return Tensor(std::move(impl));
}

// ---- Tensor -------------------------------------------------------------------------------------

Tensor::Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}
Tensor::Tensor() noexcept = default;
Tensor::~Tensor() = default;
Tensor::Tensor(const Tensor&) = default;
Tensor::Tensor(Tensor&&) noexcept = default;
Tensor& Tensor::operator=(const Tensor&) & = default;
Tensor& Tensor::operator=(Tensor&&) & noexcept = default;

TensorImpl& Tensor::impl() const {
  if (!impl_) throw ValueError("tensor", "a defined tensor", "an undefined one");
  return *impl_;
}

const Shape& Tensor::shape() const { return impl().shape; }
const Strides& Tensor::strides() const { return impl().strides; }
int64_t Tensor::size(int64_t axis) const { return shape()[normalize_axis(axis, rank(), "size")]; }
int64_t Tensor::numel() const { return sash::numel(shape()); }
DType Tensor::dtype() const { return impl().dtype; }
Device Tensor::device() const { return impl().storage->device(); }
bool Tensor::is_contiguous() const { return sash::is_contiguous(shape(), strides()); }
TensorOptions Tensor::options() const { return {.dtype = dtype(), .device = device()}; }
TensorView Tensor::tensor_view() const { return impl().tensor_view(); }

void* Tensor::data_checked(DType wanted, bool writes) const {
  if (dtype() != wanted) throw DTypeError("data", name(wanted), name(dtype()));
  if (writes) impl().storage->bump_version();
  return tensor_view().data;
}

namespace {

template <class T, class From>
T converted(const char* op, From value) {
  if constexpr (sizeof(From) == 2) {
    return converted<T>(op, static_cast<float>(value));
  } else if constexpr (sizeof(T) == 2) {
    return T(static_cast<float>(value));
  } else {
    if (!holds(dtype_of<T>, value)) throw_not_held(op, dtype_of<T>, value);
    return static_cast<T>(value);
  }
}

template <class T>
std::vector<T> elements(const char* op, const Tensor& x) {
  const NoGradGuard no_grad;
  const Tensor host = x.to(kCPU).contiguous();
  std::vector<T> values;
  values.reserve(static_cast<size_t>(host.numel()));
  const TensorView view = host.tensor_view();
  dispatch_all(view.dtype, op, [&]<class From>(TypeTag<From>) {
    const From* from = view.ptr<From>();
    for (int64_t i = 0, n = host.numel(); i < n; ++i) values.push_back(converted<T>(op, from[i]));
  });
  return values;
}

}  // namespace

template <Element T>
std::vector<T> Tensor::to_vector() const {
  return elements<T>("to_vector", *this);
}

template <Element T>
T Tensor::item() const {
  if (numel() != 1) throw ShapeError("item", "one element", "shape " + to_string(shape()));
  return elements<T>("item", *this)[0];
}

template SASH_API std::vector<float> Tensor::to_vector<float>() const;
template SASH_API float Tensor::item<float>() const;
template SASH_API std::vector<double> Tensor::to_vector<double>() const;
template SASH_API double Tensor::item<double>() const;
template SASH_API std::vector<float16> Tensor::to_vector<float16>() const;
template SASH_API float16 Tensor::item<float16>() const;
template SASH_API std::vector<bfloat16> Tensor::to_vector<bfloat16>() const;
template SASH_API bfloat16 Tensor::item<bfloat16>() const;
template SASH_API std::vector<int> Tensor::to_vector<int>() const;
template SASH_API int Tensor::item<int>() const;
template SASH_API std::vector<long> Tensor::to_vector<long>() const;
template SASH_API long Tensor::item<long>() const;
template SASH_API std::vector<long long> Tensor::to_vector<long long>() const;
template SASH_API long long Tensor::item<long long>() const;
template SASH_API std::vector<unsigned char> Tensor::to_vector<unsigned char>() const;
template SASH_API unsigned char Tensor::item<unsigned char>() const;
template SASH_API std::vector<bool> Tensor::to_vector<bool>() const;
template SASH_API bool Tensor::item<bool>() const;

// ---- autograd state -----------------------------------------------------------------------------

bool Tensor::requires_grad() const { return impl().requires_grad(); }
bool Tensor::is_leaf() const { return !impl().grad_fn(); }

Tensor& Tensor::requires_grad_(bool value) {
  if (value && !is_floating(dtype())) {
    throw DTypeError("requires_grad_", "a floating dtype", name(dtype()));
  }
  if (!is_leaf()) {
    if (value) return *this;
    throw AutogradError("requires_grad_", "a leaf", "the output of a recorded op; use detach()");
  }
  impl().was_variable |= impl().is_variable && !value;
  impl().is_variable = value;
  if (value) impl().base = nullptr;  // a leaf is no view
  return *this;
}

Tensor Tensor::grad() const {
  detail::note_gradient(impl(), true);
  return impl().grad;
}

void check_gradient_of(const char* op, const Tensor& x, const Tensor& grad) {
  if (grad.shape() != x.shape()) {
    throw ShapeError(op, "a gradient of shape " + to_string(x.shape()), to_string(grad.shape()));
  }
  if (grad.dtype() != x.dtype()) {
    throw DTypeError(op, "a gradient of dtype " + std::string(name(x.dtype())), name(grad.dtype()));
  }
  if (grad.device() != x.device()) {
    throw DeviceError(op, "a gradient on " + to_string(x.device()), to_string(grad.device()));
  }
}

void Tensor::set_grad(const Tensor& grad) {
  if (grad.defined()) check_gradient_of("set_grad", *this, grad);
  detail::note_gradient(impl(), false);
  // Backward passes add into it.
  impl().grad =
      grad.defined() && overlaps_itself(grad.shape(), grad.strides()) ? grad.clone() : grad;
}

void Tensor::zero_grad() {
  detail::note_gradient(impl(), false);
  impl().grad = Tensor();
}

void Tensor::retain_grad() {
  if (!requires_grad()) {
    throw AutogradError("retain_grad", "a tensor that requires grad", "one that does not");
  }
  if (is_leaf() || impl().retained_grad) return;
  impl().retained_grad = make_ref<RetainedGrad>(impl());
  impl().grad_fn()->add_hook({impl().output_index(), nullptr, impl().retained_grad});
}

void Tensor::register_hook(TensorHook hook) {
  if (!requires_grad()) {
    throw AutogradError("register_hook", "a tensor that requires grad", "one that does not");
  }
  if (!hook) throw ValueError("register_hook", "a hook", "an empty function");
  if (is_leaf()) {
    auto& hooks = impl().hooks;
    if (!hooks) hooks = std::make_unique<std::vector<TensorHook>>();
    hooks->push_back(std::move(hook));
    return;
  }
  impl().grad_fn()->add_hook({impl().output_index(), std::move(hook), nullptr});
}

Tensor Tensor::detach() const {
  const TensorImpl& from = impl();
  return Tensor(
      make_ref<TensorImpl>(from.storage, from.shape, from.strides, from.offset, from.dtype));
}

}  // namespace sash
