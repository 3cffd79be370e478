#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "../checks.h"

/// Checks of index tensors. Values are checked here on the CPU only; CUDA kernels set a flag, which
/// is thrown at the next synchronisation.
namespace sash {

/// "[1, 2]": the place of element number `flat` of a contiguous tensor of shape `shape`.
inline std::string position_of(int64_t flat, const Shape& shape) {
  Dims at = shape;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    at[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return to_string(at);
}

/// Throws `DTypeError` or `DeviceError` unless `index` is int64 on the device of `x`. `what` names
/// the argument.
inline void check_index_tensor(const char* op, const Tensor& x, const Tensor& index,
                               const char* what = "indices") {
  check_defined(op, index, what);
  check_same_device(op, x, index);
  check_dtype(op, index, DType::int64, what);
}

/// `IndexError` naming the first value of the contiguous `index` outside [-extent, extent) and its
/// place.
inline void check_signed_index_values(const char* op, const Tensor& index, int64_t extent) {
  if (!index.device().is_cpu()) return;
  const int64_t* const begin = index.data<const int64_t>();
  const int64_t* const end = begin + index.numel();
  const int64_t* const bad = std::find_if(
      begin, end, [extent](int64_t value) { return value < -extent || value >= extent; });
  if (bad == end) return;
  throw IndexError(op,
                   "indices in [" + std::to_string(-extent) + ", " + std::to_string(extent) + ")",
                   std::to_string(*bad) + " at " + position_of(bad - begin, index.shape()));
}

/// `IndexError` naming the first value of the contiguous `index` outside [0, extent) and its
/// place; `ignored`, if given, is allowed too.
inline void check_index_values(const char* op, const Tensor& index, int64_t extent,
                               std::optional<int64_t> ignored = {}) {
  if (!index.device().is_cpu()) return;
  const int64_t* const begin = index.data<const int64_t>();
  const int64_t* const end = begin + index.numel();
  const int64_t spared = ignored.value_or(0);
  const bool spare = ignored.has_value();
  const int64_t* const bad = std::find_if(begin, end, [=](int64_t value) {
    return static_cast<uint64_t>(value) >= static_cast<uint64_t>(extent) &&
           !(spare && value == spared);
  });
  if (bad == end) return;
  throw IndexError(op,
                   "indices in [0, " + std::to_string(extent) + ")" +
                       (spare ? " or " + std::to_string(spared) : ""),
                   std::to_string(*bad) + " at " + position_of(bad - begin, index.shape()));
}

}  // namespace sash
