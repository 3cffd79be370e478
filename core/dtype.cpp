#include "dtype.h"

#include <ostream>

#include "error.h"
#include "quote.h"

namespace sash {

std::string_view name(DType dtype) {
  constexpr std::string_view names[kDTypeCount] = {"float32", "float64", "float16", "bfloat16",
                                                   "int32",   "int64",   "uint8",   "bool"};
  return names[static_cast<int>(dtype)];
}

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name(dtype); }

DType parse_dtype(std::string_view text) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (text == name(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  if (text == "f32") return DType::float32;
  if (text == "f64") return DType::float64;
  if (text == "f16") return DType::float16;
  if (text == "bf16") return DType::bfloat16;
  throw ValueError("parse_dtype",
                   "one of float32, float64, float16, bfloat16, int32, int64, uint8, bool",
                   in_quotes(text));
}

}  // namespace sash
