#include "promotion.h"

#include <cmath>

#include "../../tensor/tensor_impl.h"

namespace sash {
namespace {

int category(DType dtype) {
  if (dtype == DType::boolean) return 0;
  return is_integral(dtype) ? 1 : 2;
}

/// The dtype of operands that come first and of others, which count only for their category.
DType combined(DType first, DType other) {
  return category(other) > category(first) ? other : first;
}

}  // namespace

DType promote_types(DType a, DType b) {
  if (a == b) return a;
  if (category(a) != category(b)) return category(a) > category(b) ? a : b;
  if (size_of(a) != size_of(b)) return size_of(a) > size_of(b) ? a : b;
  return DType::float32;  // float16 and bfloat16
}

DType result_type(const Tensor& a, const Tensor& b) {
  const DType p = a.dtype(), q = b.dtype();
  if (p == q) return p;
  if ((a.rank() > 0) == (b.rank() > 0)) return promote_types(p, q);
  return a.rank() > 0 ? combined(p, q) : combined(q, p);
}

DType result_type(const Tensor& x, Scalar value) {
  const DType dtype = x.dtype();
  if (is_floating(dtype)) return dtype;
  if (!value.is_integer()) return default_dtype();
  return combined(dtype, DType::int64);
}

void check_holds(const char* op, DType dtype, Scalar value) {
  const bool whole = value.is_integer() || std::trunc(value.to_double()) == value.to_double();
  if (!value.fits(dtype) || (is_integral(dtype) && !whole)) throw_not_held(op, dtype, value);
}

Scalar negated(DType dtype, Scalar value) {
  if (is_floating(dtype) || !value.is_integer()) return -value.to_double();
  const uint64_t wrapped = -value.to<uint64_t>();
  if (dtype == DType::int32) return static_cast<int32_t>(wrapped);
  if (dtype == DType::uint8) return static_cast<uint8_t>(wrapped);
  return static_cast<int64_t>(wrapped);
}

bool can_cast(DType from, DType to) { return category(from) <= category(to); }

}  // namespace sash
