#pragma once

#include "../../core/scalar.h"
#include "../../tensor/tensor.h"

/// The dtype that ops of operands of several dtypes compute in: promotion as in PyTorch.
///
/// Dtypes have categories, bool < integers < floating. Of two categories the higher one's dtype is
/// taken; within one the wider dtype, and float32 for float16 with bfloat16:
///
///     float32 with int64          float32       uint8 with int32       int32
///     float32 with float64        float64       bool with uint8        uint8
///     bfloat16 with float32       float32       bool with float16      float16
///
/// Tensors with axes come first, then 0-dimensional tensors, then scalars: an operand that comes
/// later counts only if its category is higher. A floating scalar then stands for
/// `default_dtype()`, an integer for int64:
///
///     float32 [3] with float64 []   float32     int64 [3] with 0.5     default_dtype()
///     int64 [3] with float64 []     float64     float16 [3] with 0.1   float16
///     uint8 [3] with int64 []       uint8       bool [3] with 2        int64
///
/// Integers wrap, and stay in their dtype in arithmetic, powers and matrix products. Sums, products
/// and cumulative sums of integers and bool are int64. Of two bool, a + b is "or" and a b is "and".
///
/// Elementwise arithmetic, comparisons, `where`, `cat` and `stack` cast their operands so, and each
/// gradient arrives in its operand's own dtype. Products and fused ops do not: they ask for one
/// dtype.
namespace sash {

/// The dtype of two tensors that both have axes.
SASH_API DType promote_types(DType a, DType b);

SASH_API DType result_type(const Tensor& a, const Tensor& b);
SASH_API DType result_type(const Tensor& x, Scalar value);

/// Whether an op that computes in `from` may write its result to a tensor of dtype `to`. It may not
/// if the category of `to` is lower.
SASH_API bool can_cast(DType from, DType to);

/// For ops: `ValueError` unless `dtype` can hold `value` without losing its fraction.
SASH_API void check_holds(const char* op, DType dtype, Scalar value);
/// For ops: -value, to be added to elements of `dtype`; integers wrap.
SASH_API Scalar negated(DType dtype, Scalar value);

}  // namespace sash
