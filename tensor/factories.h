#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "tensor.h"

namespace sash {

class Generator;

/// Uninitialised elements.
SASH_API Tensor empty(const Shape& shape, const TensorOptions& options = {});
SASH_API Tensor zeros(const Shape& shape, const TensorOptions& options = {});
SASH_API Tensor ones(const Shape& shape, const TensorOptions& options = {});
/// `ValueError` if an integer dtype is named that cannot hold `value`.
SASH_API Tensor full(const Shape& shape, Scalar value, const TensorOptions& options = {});
SASH_API Tensor empty_like(const Tensor& like);
SASH_API Tensor zeros_like(const Tensor& like);
SASH_API Tensor ones_like(const Tensor& like);
SASH_API Tensor full_like(const Tensor& like, Scalar value);
/// A 0-dimensional tensor.
SASH_API Tensor scalar_tensor(Scalar value, const TensorOptions& options = {});
/// start, start + step, ... below (above, for a negative step) stop. int64 if all three are
/// integers and no dtype is named. `ValueError` for a step of 0, bounds that are not finite, or
/// more elements than int64 counts.
SASH_API Tensor arange(Scalar start, Scalar stop, Scalar step = 1,
                       const TensorOptions& options = {});
/// From 0.
SASH_API Tensor arange(Scalar stop, const TensorOptions& options = {});
/// `steps` numbers from start to stop, both included, evenly spaced; floating. `ValueError` for
/// fewer than 0 steps, or ends whose difference no double holds.
SASH_API Tensor linspace(double start, double stop, int64_t steps,
                         const TensorOptions& options = {});
/// The n x n identity matrix.
SASH_API Tensor eye(int64_t n, const TensorOptions& options = {});

/// Uniform in [0, 1), also after rounding to a half. Draws from the device's generator (random.h).
SASH_API Tensor rand(const Shape& shape, const TensorOptions& options = {});
/// Standard normal.
SASH_API Tensor randn(const Shape& shape, const TensorOptions& options = {});
SASH_API Tensor rand_like(const Tensor& like);
SASH_API Tensor randn_like(const Tensor& like);
/// Uniform integers in [low, high), any of int64; int64 if no dtype is named, or int32 where that
/// holds the bounds (else `ValueError`). Of n = high - low numbers, some are likelier than others
/// by a factor of at most 1 + n / 2^64, or 1 + n / 2^32 for n up to 2^20.
SASH_API Tensor randint(int64_t low, int64_t high, const Shape& shape,
                        const TensorOptions& options = {});
// The same from a generator of one's own (random.h).
SASH_API Tensor rand(const Shape& shape, Generator& generator, const TensorOptions& options = {});
SASH_API Tensor randn(const Shape& shape, Generator& generator, const TensorOptions& options = {});
SASH_API Tensor randint(int64_t low, int64_t high, const Shape& shape, Generator& generator,
                        const TensorOptions& options = {});

/// A tensor of dtype `dtype` whose elements are copied from host memory, then cast if
/// `options.dtype` is another. `ValueError` if that is an integer dtype and one does not fit. Of
/// booleans, any byte other than 0 is true.
SASH_API Tensor from_host(const void* elements, const Shape& shape, DType dtype,
                          const TensorOptions& options = {});

namespace detail {

/// What `tensor` takes elements from: every type of a dtype, and all other integers.
template <class T>
concept Number = Element<T> ||(std::integral<T> && sizeof(T) <= 8);

/// The element type of a vector's T.
template <Number T>
using VectorElement =
    std::conditional_t<Element<T>, T,
                       std::conditional_t<(sizeof(T) < sizeof(int32_t)), int32_t, int64_t>>;
/// The element type of literals of type T, of which floats and doubles go on to `default_dtype()`.
template <Number T>
using LiteralElement =
    std::conditional_t<std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, uint8_t>,
                       int64_t, T>;
/// The type in memory: a bool is a byte, since `std::vector<bool>` has no elements to point to.
template <class To>
using Stored = std::conditional_t<std::same_as<To, bool>, uint8_t, To>;

[[noreturn]] SASH_API void throw_beyond_int64(uint64_t value);
[[noreturn]] SASH_API void throw_ragged(int64_t expected, int64_t got);

template <class To, class T>
Stored<To> stored(T value) {
  if constexpr (std::same_as<To, int64_t> && std::unsigned_integral<T>) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      throw_beyond_int64(value);
    }
  }
  return static_cast<Stored<To>>(value);
}

/// Values on their way into a tensor.
template <class To>
struct Values {
  std::vector<Stored<To>> elements{};
  Shape shape{};

  template <class T>
  void append(const T& value, int /*axis*/ = 0) {
    elements.push_back(stored<To>(value));
  }
  template <class T>
  void append(const std::initializer_list<T>& list, int axis = 0) {
    const auto extent = static_cast<int64_t>(list.size());
    if (axis == shape.rank()) shape.push_back(extent);
    if (shape[axis] != extent) throw_ragged(shape[axis], extent);
    for (const T& item : list) append(item, axis + 1);
  }
};

template <class To, class List>
Tensor from_list(const List& list, const TensorOptions& options) {
  Values<To> values;
  values.append(list);
  return from_host(values.elements.data(), values.shape, dtype_of<To>, options);
}

template <class T, class List>
Tensor from_literals(const List& list, TensorOptions options) {
  if (std::is_floating_point_v<T> && !options.dtype) options.dtype = default_dtype();
  return from_list<LiteralElement<T>>(list, options);
}

/// Stands first in the template parameters of `tensor` of literals, so that `tensor<double>` means
/// the other one.
enum class Literals { deduced };

}  // namespace detail

/// Copies `values` (row-major) into a tensor of their own type, or of `options.dtype` if named.
/// Integers that no dtype has go into int32 below 32 bits (`short`, `char`), else int64
/// (`unsigned`, `size_t`). `ShapeError` unless `shape` has as many elements; `ValueError` if an
/// integer is beyond int64 or `options.dtype`.
template <detail::Number T>
Tensor tensor(const std::vector<T>& values, const Shape& shape, const TensorOptions& options = {}) {
  if (sash::numel(shape) != static_cast<int64_t>(values.size())) {
    throw ShapeError("tensor", "a shape of " + std::to_string(values.size()) + " elements",
                     to_string(shape));
  }
  using To = detail::VectorElement<T>;
  if constexpr (std::same_as<detail::Stored<To>, T>) {
    return from_host(values.data(), shape, dtype_of<To>, options);
  } else {
    detail::Values<To> converted;
    for (const T value : values) converted.append(value);
    return from_host(converted.elements.data(), shape, dtype_of<To>, options);
  }
}

/// The same of one axis.
template <detail::Number T>
Tensor tensor(const std::vector<T>& values) {
  return tensor(values, static_cast<int64_t>(values.size()));
}

/// A tensor of literals, of as many axes as there are braces, up to three:
///
///     tensor({0.5, 1.5})          // default_dtype() [2]
///     tensor({{1, 2}, {3, 4}})    // int64 [2, 2]
///     tensor({true, false})       // bool [2]
///
/// As with `torch::tensor`, `float` and `double` become `default_dtype()`, integers int64 (but
/// `uint8_t` stays), bools and halves stay, and `options.dtype` overrides that. `ShapeError` if
/// lists of one depth differ in length; `ValueError` if an integer is beyond int64 or
/// `options.dtype`.
template <detail::Literals = detail::Literals::deduced, detail::Number T>
Tensor tensor(std::initializer_list<T> values, const TensorOptions& options = {}) {
  return detail::from_literals<T>(values, options);
}
template <detail::Literals = detail::Literals::deduced, detail::Number T>
Tensor tensor(std::initializer_list<std::initializer_list<T>> values,
              const TensorOptions& options = {}) {
  return detail::from_literals<T>(values, options);
}
template <detail::Literals = detail::Literals::deduced, detail::Number T>
Tensor tensor(std::initializer_list<std::initializer_list<std::initializer_list<T>>> values,
              const TensorOptions& options = {}) {
  return detail::from_literals<T>(values, options);
}

/// One number, of rank 0, by the same rules: `tensor(3.0)`.
template <detail::Literals = detail::Literals::deduced, detail::Number T>
Tensor tensor(T value, TensorOptions options = {}) {
  if (std::is_floating_point_v<T> && !options.dtype) options.dtype = default_dtype();
  const detail::Stored<detail::LiteralElement<T>> element =
      detail::stored<detail::LiteralElement<T>>(value);
  return from_host(&element, {}, dtype_of<detail::LiteralElement<T>>, options);
}

/// The same of a named type: `tensor<double>({1, 2})` is float64 whatever the default.
template <Element T>
Tensor tensor(std::initializer_list<std::type_identity_t<T>> values,
              const TensorOptions& options = {}) {
  return detail::from_list<T>(values, options);
}
template <Element T>
Tensor tensor(std::initializer_list<std::initializer_list<std::type_identity_t<T>>> values,
              const TensorOptions& options = {}) {
  return detail::from_list<T>(values, options);
}
template <Element T>
Tensor tensor(
    std::initializer_list<std::initializer_list<std::initializer_list<std::type_identity_t<T>>>>
        values,
    const TensorOptions& options = {}) {
  return detail::from_list<T>(values, options);
}

/// A contiguous copy of `host`, a CPU tensor, in page-locked memory of the CUDA backend: copies of
/// it and of its contiguous views to CUDA (`to`) run asynchronously on the current stream. It may
/// be released before they are done; to write to it, wait for them first (`synchronize`). Not
/// differentiable. Throws `DeviceError` if `host` is elsewhere or CUDA cannot be used, and
/// `AutogradError` if `host` requires grad while ops are recorded.
SASH_API Tensor pin_memory(const Tensor& host);

/// Wraps memory of the caller's on `device` without copying; `release` runs when the last tensor
/// that shares it goes. Saved tensors and compiled masks do not notice what the caller writes
/// there, unless it calls `data<T>()` for each write. Booleans must be bytes of 0 and 1:
/// `ValueError` for others on the CPU; on a card they are not looked at, and results are undefined.
SASH_API Tensor from_blob(void* data, const Shape& shape, DType dtype, Device device = kCPU,
                          std::function<void()> release = {});

}  // namespace sash
