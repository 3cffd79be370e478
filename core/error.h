#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "export.h"

namespace sash {

/// Base class of every exception that sash throws on purpose.
/// `what()` is "op: expected X, got Y"; `op()` is the name of the function that threw. If the call
/// of a named module throws, the text begins with the module: "in layers.0.linear1: op: ...".
class SASH_API Error : public std::runtime_error {
 public:
  Error(std::string_view op, std::string_view message);
  Error(std::string_view op, std::string_view expected, std::string_view got);
  Error(const Error&) = default;
  ~Error() override;

  const std::string& op() const noexcept { return op_; }

  /// Prefixes "in <name>: ", unless a submodule has put its name there already.
  void set_module(std::string_view name);
  /// Appends "; <note>", such as the file.
  void append(std::string_view note);

 private:
  std::string op_;
};

/// Extents that do not fit together, or a rank or axis that is out of place.
class SASH_API ShapeError : public Error {
 public:
  using Error::Error;
  ~ShapeError() override;
};

/// A dtype that the function does not take, or two dtypes that differ where they may not.
class SASH_API DTypeError : public Error {
 public:
  using Error::Error;
  ~DTypeError() override;
};

/// Tensors on different devices, a device that is absent, or text that names none.
class SASH_API DeviceError : public Error {
 public:
  using Error::Error;
  ~DeviceError() override;
};

/// An index outside the extent it indexes.
class SASH_API IndexError : public Error {
 public:
  using Error::Error;
  ~IndexError() override;
};

/// An argument whose value makes no sense: a probability of 2, an empty list, an unknown name.
class SASH_API ValueError : public Error {
 public:
  using Error::Error;
  ~ValueError() override;
};

/// Misuse of the tape: an overwritten saved tensor, a second backward pass, a cut gradient.
class SASH_API AutogradError : public Error {
 public:
  using Error::Error;
  ~AutogradError() override;
};

/// A function that exists but has no kernel for this device or dtype.
class SASH_API NotImplemented : public Error {
 public:
  using Error::Error;
  ~NotImplemented() override;
};

/// An allocation failed; the message gives the bytes asked for, used and free.
class SASH_API OutOfMemory : public Error {
 public:
  using Error::Error;
  ~OutOfMemory() override;
};

/// A file could not be opened, read, written or renamed.
class SASH_API IoError : public Error {
 public:
  using Error::Error;
  ~IoError() override;
};

/// A file was read but its content breaks its format.
class SASH_API FormatError : public Error {
 public:
  using Error::Error;
  ~FormatError() override;
};

/// `value` as messages print it: "0.1", "1e-05".
SASH_API std::string to_text(double value);

}  // namespace sash
