#pragma once

#include <cxxabi.h>

#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <typeinfo>

#include <doctest/doctest.h>

#include <sash/tensor/tensor.h>

namespace sash::testing {

inline constexpr TensorOptions kInts{.dtype = DType::int64};
inline constexpr TensorOptions kBools{.dtype = DType::boolean};
inline constexpr TensorOptions kDoubles{.dtype = DType::float64};

/// The name of a class without `sash::`.
inline std::string type_name(const std::type_info& type) {
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr), std::free);
  const std::string name = text.get();
  return name.starts_with("sash::") ? name.substr(6) : name;
}

/// What `call` throws, as "ShapeError: the whole text".
inline std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return type_name(typeid(error)) + ": " + error.what();
  }
  return "nothing was thrown";
}

/// Checks that `call` throws an `E` (not a class derived from it) whose whole text is `message`.
template <class E>
void expect_error(const std::string& message, const std::function<void()>& call) {
  CHECK(thrown_by(call) == type_name(typeid(E)) + ": " + message);
}

/// A row of a table of wrong calls: the error's type and whole text, as in `thrown_by`.
struct WrongCall {
  std::string error;
  std::function<void()> call;
};

/// Checks each row.
inline void expect_errors(std::initializer_list<WrongCall> rows) {
  for (const auto& [error, call] : rows) CHECK(thrown_by(call) == error);
}

}  // namespace sash::testing
