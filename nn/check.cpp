#include "check.h"

#include <cstdio>

namespace sash::nn {

std::string to_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

}  // namespace sash::nn
