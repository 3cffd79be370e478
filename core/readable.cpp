#include "readable.h"

#include <array>
#include <cmath>

namespace sash {
namespace {

// Three digits, and which of the steps by `base` they count.
std::string scaled(double value, double base, const char* const* names, int count) {
  int step = 0;
  while (step + 1 < count && std::abs(value) >= 0.9995 * base) {
    value /= base;
    ++step;
  }
  const double size = std::abs(value);
  const int digits = step == 0 || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return to_text(value, std::chars_format::fixed, digits) + names[step];
}

}  // namespace

std::string to_text(double value, std::chars_format format, int digits) {
  if (std::isnan(value)) return "nan";
  std::array<char, 400> text;  // 309 digits before the point, of the largest double
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, format, digits).ptr;
  return {text.data(), end};
}

std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  const int64_t first = value < 0 ? 1 : 0;
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

std::string with_prefix(double value) {
  constexpr const char* kNames[] = {"", " k", " M", " G", " T", " P", " E"};
  return scaled(value, 1000, kNames, 7);
}

std::string bytes_text(int64_t bytes) {
  constexpr const char* kNames[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
  return scaled(static_cast<double>(bytes), 1024, kNames, 7);
}

}  // namespace sash
