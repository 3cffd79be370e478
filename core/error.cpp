#include "error.h"

#include "readable.h"

namespace sash {
namespace {

std::string prefixed(std::string_view op, std::string_view message) {
  std::string text(op);
  if (!text.empty()) text += ": ";
  return text += message;
}

std::string expectation(std::string_view expected, std::string_view got) {
  std::string text("expected ");
  text += expected;
  text += ", got ";
  return text += got;
}

}  // namespace

Error::Error(std::string_view op, std::string_view message)
    : std::runtime_error(prefixed(op, message)), op_(op) {}

Error::Error(std::string_view op, std::string_view expected, std::string_view got)
    : Error(op, expectation(expected, got)) {}

void Error::set_module(std::string_view name) {
  const std::string_view text = what();
  if (name.empty() || !text.starts_with(op_)) return;
  std::string placed = "in ";
  placed.append(name).append(": ").append(text);
  std::runtime_error::operator=(std::runtime_error(placed));
}

void Error::append(std::string_view note) {
  std::string text = what();
  text.append("; ").append(note);
  std::runtime_error::operator=(std::runtime_error(text));
}

std::string to_text(double value) { return to_text(value, std::chars_format::general, 6); }

// Out of line, so that each type's information lives once, in libsash.
Error::~Error() = default;
ShapeError::~ShapeError() = default;
DTypeError::~DTypeError() = default;
DeviceError::~DeviceError() = default;
IndexError::~IndexError() = default;
ValueError::~ValueError() = default;
AutogradError::~AutogradError() = default;
NotImplemented::~NotImplemented() = default;
OutOfMemory::~OutOfMemory() = default;
IoError::~IoError() = default;
FormatError::~FormatError() = default;

}  // namespace sash
