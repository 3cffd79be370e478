#include "factories.h"

#include <cmath>
#include <limits>

#include "../core/backend/backend.h"
#include "../core/backend/dispatch.h"
#include "../core/error.h"
#include "autograd/grad_mode.h"
#include "boolean_bytes.h"
#include "kernels/memory.h"
#include "run_kernel.h"
#include "tensor_impl.h"

namespace sash {
namespace {

Tensor marked(Tensor tensor, const TensorOptions& options) {
  if (options.requires_grad) tensor.requires_grad_();
  return tensor;
}

int64_t bytes_of(const char* op, const Shape& shape, DType dtype) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(numel(shape), size_of(dtype), &bytes)) {
    throw ShapeError(op, "fewer than 2^63 bytes", to_string(shape));
  }
  return bytes;
}

Tensor allocate(const Shape& shape, DType dtype, Device device) {
  const int64_t bytes = bytes_of("empty", shape, dtype);
  return Tensor(make_ref<TensorImpl>(make_ref<Storage>(bytes, device), shape,
                                     contiguous_strides(shape), 0, dtype));
}

Tensor wrapped(void* data, int64_t bytes, const Shape& shape, DType dtype, Device device,
               std::function<void()> release) {
  return Tensor(make_ref<TensorImpl>(make_ref<Storage>(data, bytes, device, std::move(release)),
                                     shape, contiguous_strides(shape), 0, dtype));
}

void check_held(const char* op, const void* elements, int64_t count, DType from, DType to) {
  dispatch_all(from, op, [&]<class T>(TypeTag<T>) {
    for (const T& x : std::span(static_cast<const T*>(elements), static_cast<size_t>(count))) {
      const auto value = static_cast<std::conditional_t<sizeof(T) == 2, float, T>>(x);
      if (!holds(to, value)) throw_not_held(op, to, value);
    }
  });
}

/// ceil((stop - start) / step), or 0.
int64_t arange_count(Scalar start, Scalar stop, Scalar step) {
  constexpr auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (start.is_integer() && stop.is_integer() && step.is_integer()) {
    const auto from = start.to<int64_t>(), to = stop.to<int64_t>(), by = step.to<int64_t>();
    if (by > 0 ? from >= to : from <= to) return 0;
    // Differences of int64 need 64 bits and no sign.
    const auto less = [](int64_t a, int64_t b) {
      return static_cast<uint64_t>(a) - static_cast<uint64_t>(b);
    };
    const uint64_t span = by > 0 ? less(to, from) : less(from, to);
    const uint64_t stride = by > 0 ? less(by, 0) : less(0, by);
    const uint64_t count = (span - 1) / stride + 1;
    if (count <= most) return static_cast<int64_t>(count);
    throw ValueError("arange", "at most " + std::to_string(most) + " elements",
                     std::to_string(count));
  }
  const double span = std::ceil((stop.to_double() - start.to_double()) / step.to_double());
  if (!(span > 0)) return 0;
  if (span < static_cast<double>(most)) return static_cast<int64_t>(span);
  throw ValueError("arange", "at most " + std::to_string(most) + " elements", to_text(span));
}

void check_arange_held(Scalar start, Scalar step, int64_t count, DType dtype) {
  if (count == 0) return;
  const auto last = static_cast<uint64_t>(count - 1);
  const Scalar end =
      start.is_integer() && step.is_integer()
          ? Scalar(static_cast<int64_t>(start.to<uint64_t>() + last * step.to<uint64_t>()))
          : Scalar(start.to_double() + static_cast<double>(last) * step.to_double());
  for (const Scalar& value : {start, end}) {
    if (!value.fits(dtype)) throw_not_held("arange", dtype, value);
  }
}

}  // namespace

namespace detail {

void throw_beyond_int64(uint64_t value) {
  throw ValueError("tensor", "integers below 2^63", std::to_string(value));
}

void throw_ragged(int64_t expected, int64_t got) {
  throw ShapeError("tensor", "lists of " + std::to_string(expected) + " at this depth",
                   "one of " + std::to_string(got));
}

}  // namespace detail

Tensor empty(const Shape& shape, const TensorOptions& options) {
  return marked(allocate(shape, options.dtype.value_or(default_dtype()),
                         options.device ? *options.device : default_device()),
                options);
}

Tensor full(const Shape& shape, Scalar value, const TensorOptions& options) {
  const DType dtype = options.dtype.value_or(default_dtype());
  if (!value.fits(dtype)) throw_not_held("full", dtype, value);
  Tensor y = empty(shape, options);
  run_kernel(kernels::fill, y, value);
  return y;
}

Tensor zeros(const Shape& shape, const TensorOptions& options) { return full(shape, 0, options); }
Tensor ones(const Shape& shape, const TensorOptions& options) { return full(shape, 1, options); }
Tensor empty_like(const Tensor& like) { return empty(like.shape(), like.options()); }
Tensor zeros_like(const Tensor& like) { return zeros(like.shape(), like.options()); }
Tensor ones_like(const Tensor& like) { return ones(like.shape(), like.options()); }
Tensor full_like(const Tensor& like, Scalar value) {
  return full(like.shape(), value, like.options());
}
Tensor scalar_tensor(Scalar value, const TensorOptions& options) {
  return full({}, value, options);
}

Tensor arange(Scalar start, Scalar stop, Scalar step, const TensorOptions& options) {
  if (step.to_double() == 0) throw ValueError("arange", "a step other than 0", "0");
  if (!std::isfinite(start.to_double()) || !std::isfinite(stop.to_double()) ||
      std::isnan(step.to_double())) {
    throw ValueError("arange", "finite bounds and a step", "one that is infinite or NaN");
  }
  const bool integral = start.is_integer() && stop.is_integer() && step.is_integer();
  TensorOptions typed = options;
  if (!typed.dtype) typed.dtype = integral ? DType::int64 : default_dtype();
  const int64_t count = arange_count(start, stop, step);
  check_arange_held(start, step, count, *typed.dtype);
  Tensor y = empty({count}, typed);
  run_kernel(kernels::arange, y, start, step);
  return y;
}

Tensor arange(Scalar stop, const TensorOptions& options) { return arange(0, stop, 1, options); }

Tensor linspace(double start, double stop, int64_t steps, const TensorOptions& options) {
  const DType dtype = options.dtype.value_or(default_dtype());
  if (!is_floating(dtype)) throw DTypeError("linspace", "a floating dtype", name(dtype));
  if (steps < 0) throw ValueError("linspace", "at least 0 steps", std::to_string(steps));
  if (!std::isfinite(stop - start)) {
    throw ValueError("linspace", "ends with a finite difference",
                     to_text(start) + " and " + to_text(stop));
  }
  Tensor y = empty({steps}, options);
  if (steps == 0) return y;
  KernelContext context = kernel_context(y.device());
  const double step = steps > 1 ? (stop - start) / static_cast<double>(steps - 1) : 0;
  kernels::arange(context, y.tensor_view(), start, step);
  if (steps > 1) kernels::fill(context, make_view(y, {}, {}, steps - 1).tensor_view(), stop);
  return y;
}

Tensor eye(int64_t n, const TensorOptions& options) {
  TensorOptions plain = options;
  plain.requires_grad = false;
  const Tensor y = zeros({n, n}, plain);
  run_kernel(kernels::fill, make_view(y, {n}, {n + 1}, 0), 1);
  return marked(y, options);
}

Tensor from_host(const void* elements, const Shape& shape, DType dtype,
                 const TensorOptions& options) {
  const Device device = options.device ? *options.device : default_device();
  if (!elements && numel(shape) > 0) throw ValueError("from_host", "memory", "a null pointer");
  if (dtype != DType::boolean && options.dtype && is_integral(*options.dtype)) {
    check_held("from_host", elements, numel(shape), dtype, *options.dtype);
  }
  const bool boolean = dtype == DType::boolean;
  Tensor y = allocate(shape, boolean ? DType::uint8 : dtype, device);
  const KernelContext context = kernel_context(device);
  backend(device.type)
      .copy(y.tensor_view().data, device, elements, kCPU, y.numel() * size_of(dtype),
            context.stream);
  if (boolean) y = y.to(DType::boolean);  // bytes other than 0 become 1
  if (options.dtype) y = y.to(*options.dtype);
  return marked(y, options);
}

Tensor pin_memory(const Tensor& host) {
  if (!host.device().is_cpu()) {
    throw DeviceError("pin_memory", "a tensor on cpu", to_string(host.device()));
  }
  if (grad_enabled() && host.requires_grad()) {
    throw AutogradError("pin_memory", "a tensor without a gradient, or one under NoGradGuard",
                        "one that requires grad");
  }
  Backend& owner = backend(DeviceType::cuda);
  const int64_t bytes = bytes_of("pin_memory", host.shape(), host.dtype());
  void* memory = owner.allocate_host(bytes);
  const Tensor y = wrapped(memory, bytes, host.shape(), host.dtype(), kCPU, [memory, bytes] {
    backend(DeviceType::cuda).deallocate_host(memory, bytes);
  });
  run_kernel(kernels::copy, host, y);
  return y;
}

Tensor from_blob(void* data, const Shape& shape, DType dtype, Device device,
                 std::function<void()> release) {
  const int64_t bytes = bytes_of("from_blob", shape, dtype);
  if (!data && bytes > 0) throw ValueError("from_blob", "memory", "a null pointer");
  if (dtype == DType::boolean && device.is_cpu()) {
    const auto bad = first_not_boolean({data, dtype, device, shape, contiguous_strides(shape)});
    if (bad) throw ValueError("from_blob", "booleans of 0 and 1", std::to_string(*bad));
  }
  return wrapped(data, bytes, shape, dtype, device, std::move(release));
}

}  // namespace sash
