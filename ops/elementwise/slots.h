#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "../../tensor/tensor.h"
#include "../kernels/elementwise.h"

/// Makes the slots of the table's rows, in the sources that define them.
namespace sash::kernels {

/// The dtype in which the kernels of a row compute operands of `dtype`. Cast back to `dtype`, the
/// result is the same.
inline DType working_dtype(op::Dtypes dtypes, DType dtype) {
  if (is_floating(dtype)) return dtype;
  if (dtypes == op::Dtypes::cast_to_floating) return default_dtype();
  if (dtypes == op::Dtypes::floating_or_int64) return DType::int64;
  return dtypes == op::Dtypes::numbers && dtype == DType::uint8 ? DType::int32 : dtype;
}

/// "add" becomes "add_scalar".
template <class Op>
inline constexpr auto kScalarName = [] {
  constexpr std::string_view name = Op::row.name, suffix = "_scalar";
  std::array<char, name.size() + suffix.size() + 1> text{};
  std::copy(name.begin(), name.end(), text.begin());
  std::copy(suffix.begin(), suffix.end(), text.begin() + name.size());
  return text;
}();

/// A slot for each row, in the list's order.
template <class Slot, class... Ops>
constexpr Slots<Slot, op::List<Ops...>> make_slots(op::List<Ops...>) {
  if constexpr (std::is_same_v<Slot, ScalarKernel>) {
    return {Slot{kScalarName<Ops>.data()}...};
  } else {
    return {Slot{Ops::row.name}...};
  }
}

}  // namespace sash::kernels
