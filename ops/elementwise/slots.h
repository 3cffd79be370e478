#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "../kernels/elementwise.h"

/// For the sources that define the slots of the table's rows.
namespace sash::kernels {

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
