#include "op_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <sash/core/backend/backend.h>
#include <sash/core/backend/dispatch.h>
#include <sash/core/backend/kernel.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/tensor_impl.h>

#include "random_numbers.h"

namespace sash::testing {
namespace {

constexpr int64_t kGuard = 32;

DType dtype_of_input(const InputSpec& spec, DType dtype) { return spec.dtype.value_or(dtype); }

// FNV-1a.
uint64_t seed_of(const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

double away_from_kinks(double value, const InputSpec& spec) {
  for (const double kink : spec.kinks) {
    if (std::abs(value - kink) < 0.05) value = kink + (value < kink ? -0.05 : 0.05);
  }
  return value;
}

Array draw(const InputSpec& spec, bool whole, RandomNumbers& random) {
  Array x(spec.shape);
  const size_t n = x.values.size();
  if (!spec.elements.empty()) {
    if (spec.elements.size() != n) throw ValueError("draw", "one element for each index", "others");
    x.values = spec.elements;
    return x;
  }
  for (size_t i = 0; i < n; ++i) {
    const double u =
        spec.distinct ? (static_cast<double>(i) + 0.5) / static_cast<double>(n) : random.uniform();
    const double value = spec.low + (spec.high - spec.low) * u;
    x.values[i] = whole ? std::floor(value)
                        : static_cast<double>(static_cast<float>(away_from_kinks(value, spec)));
  }
  if (spec.distinct) {
    for (size_t i = n; i > 1; --i) std::swap(x.values[i - 1], x.values[random.below(i)]);
  }
  return x;
}

int expanded_axis(const Shape& shape) {
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] > 1) return axis;
  }
  return -1;
}

Strides strides_of(const Shape& shape, Layout layout) {
  const int rank = shape.rank();
  const auto swapped = [&](int a, int b) {
    Shape memory = shape;
    std::swap(memory[a], memory[b]);
    Strides strides = contiguous_strides(memory);
    std::swap(strides[a], strides[b]);
    return strides;
  };
  if (layout == Layout::transposed && rank >= 2) return swapped(rank - 2, rank - 1);
  if (layout == Layout::heads && rank >= 3) return swapped(1, 2);
  Shape memory = shape;
  if (layout == Layout::sliced && rank >= 1) memory[rank - 1] = 2 * shape.back() + 1;
  if (layout == Layout::padded && rank >= 1) memory[rank - 1] = shape.back() + 5;
  const int hidden = layout == Layout::expanded ? expanded_axis(shape) : -1;
  if (hidden >= 0) memory[hidden] = 1;
  Strides strides = contiguous_strides(memory);
  if (layout == Layout::sliced && rank >= 1) strides[rank - 1] = 2;
  if (hidden >= 0) strides[hidden] = 0;
  return strides;
}

int64_t offset_of(const Index& index, const Strides& strides) {
  int64_t offset = 0;
  for (int axis = 0; axis < index.rank(); ++axis) offset += index[axis] * strides[axis];
  return offset;
}

template <class T>
T sentinel() {
  if constexpr (std::numeric_limits<T>::has_quiet_NaN) return std::numeric_limits<T>::quiet_NaN();
  return T(1);
}

template <class T>
T element(double value) {
  if constexpr (sizeof(T) == 2) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
double number(T value) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<float>(value);
  } else {
    return static_cast<double>(value);
  }
}

std::vector<std::byte> memory_image(const Array& values, const Strides& strides, DType dtype) {
  int64_t last = 0;
  for_each_index(values.shape,
                 [&](const Index& index) { last = std::max(last, offset_of(index, strides)); });
  const int64_t total = 2 * kGuard + last + 1;
  std::vector<std::byte> image(static_cast<size_t>(total * size_of(dtype)));
  dispatch_all(dtype, "make_inputs", [&]<class T>(TypeTag<T>) {
    T* memory = reinterpret_cast<T*>(image.data());
    std::fill_n(memory, total, sentinel<T>());
    size_t next = 0;
    for_each_index(values.shape, [&](const Index& index) {
      memory[kGuard + offset_of(index, strides)] = element<T>(values.values[next++]);
    });
  });
  return image;
}

}  // namespace

Arrays input_values(const OpCase& op_case, DType dtype) {
  RandomNumbers random(seed_of(op_case.name()));
  Arrays values;
  for (const InputSpec& spec : op_case.inputs) {
    Array x = draw(spec, !is_floating(dtype_of_input(spec, dtype)), random);
    if (const int axis = expanded_axis(spec.shape); spec.layout == Layout::expanded && axis >= 0) {
      x = generate(x.shape, [&](const Index& index) { return x[replaced(index, axis, 0)]; });
    }
    if (dtype_of_input(spec, dtype) == DType::boolean) {
      for (double& value : x.values) value = value != 0 ? 1 : 0;
    }
    values.push_back(std::move(x));
  }
  return values;
}

double rounded(double value, DType dtype) {
  double result = 0;
  dispatch_all(dtype, "rounded", [&]<class T>(TypeTag<T>) { result = number(element<T>(value)); });
  return result;
}

GuardedInput::GuardedInput(const InputSpec& spec, const Array& values, DType dtype, Device device) {
  const Strides strides = strides_of(spec.shape, spec.layout);
  const DType own = dtype_of_input(spec, dtype);
  image_ = memory_image(values, strides, own);
  base_ = from_host(image_.data(), {static_cast<int64_t>(image_.size()) / size_of(own)}, own,
                    {.device = device});
  tensor_ = make_view(base_, spec.shape, strides, kGuard).detach();
  if (is_floating(own) && spec.requires_grad) tensor_.requires_grad_();
}

bool GuardedInput::intact() const {
  std::vector<std::byte> now(image_.size());
  const Device device = base_.device();
  const KernelContext context = kernel_context(device);
  backend(device.type)
      .copy(now.data(), kCPU, base_.tensor_view().data, device, static_cast<int64_t>(now.size()),
            context.stream);
  return now == image_;
}

std::vector<GuardedInput> make_inputs(const OpCase& op_case, DType dtype, Device device) {
  return make_inputs(op_case, input_values(op_case, dtype), dtype, device);
}

std::vector<GuardedInput> make_inputs(const OpCase& op_case, const Arrays& values, DType dtype,
                                      Device device) {
  std::vector<GuardedInput> inputs;
  for (size_t i = 0; i < values.size(); ++i) {
    inputs.emplace_back(op_case.inputs[i], values[i], dtype, device);
  }
  return inputs;
}

Tensors tensors(const std::vector<GuardedInput>& inputs) {
  Tensors list;
  for (const GuardedInput& input : inputs) list.push_back(input.tensor());
  return list;
}

Array to_array(const Tensor& tensor) {
  const Tensor host = tensor.device().is_cpu() ? tensor : tensor.to(kCPU);
  const TensorView view = host.tensor_view();
  Array array(view.shape);
  dispatch_all(view.dtype, "to_array", [&]<class T>(TypeTag<T>) {
    size_t next = 0;
    for_each_index(view.shape, [&](const Index& index) {
      array.values[next++] = number(view.ptr<T>()[offset_of(index, view.strides)]);
    });
  });
  return array;
}

Tensor to_tensor(const Array& array, DType dtype, Device device) {
  const std::vector<std::byte> image = memory_image(array, contiguous_strides(array.shape), dtype);
  return from_host(image.data() + kGuard * size_of(dtype), array.shape, dtype, {.device = device});
}

Arrays gradients_of(const OpCase& op_case, const Arrays& values, DType dtype, Device device,
                    const std::function<double()>& draw) {
  const std::vector<GuardedInput> inputs = make_inputs(op_case, values, dtype, device);
  const Tensors given = tensors(inputs);
  Tensors roots, cotangents, wanted;
  for (const Tensor& y : op_case.run(given)) {
    if (!is_floating(y.dtype()) || !y.requires_grad()) continue;
    roots.push_back(y);
    cotangents.push_back(
        to_tensor(generate(y.shape(), [&](const Index&) { return draw(); }), y.dtype(), device));
  }
  for (const Tensor& x : given) {
    if (x.requires_grad()) wanted.push_back(x);
  }
  Arrays found;
  for (const Tensor& g : grad(roots, wanted, cotangents, {}, true)) {
    found.push_back(g.defined() ? to_array(g) : Array(wanted[found.size()].shape()));
  }
  return found;
}

}  // namespace sash::testing
