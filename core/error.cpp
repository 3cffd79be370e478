#include "error.h"

#include <cstdio>

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

std::string to_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

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
