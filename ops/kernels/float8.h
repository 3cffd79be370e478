#pragma once

#include <cfloat>
#include <cstdint>
#include <optional>

#include "../../core/export.h"
#include "glu.h"

/// Casts to FP8 and products of FP8 matrices. The elements of FP8 matrices are stored as uint8.
namespace sash::kernels {

/// Formats of Micikevicius et al., "FP8 formats for deep learning", 2022. Casts saturate, but an
/// infinity stays one in E5M2, so that overflows of gradients show. E4M3 has none.
enum class Float8 {
  e4m3,  ///< 4 bits of exponent, 3 of mantissa; for the forward pass
  e5m2,  ///< 5 bits of exponent, 2 of mantissa; for gradients
};

/// The bits of E5M2's infinity, and of both formats' NaN.
inline constexpr uint32_t kFloat8Infinity = 0x7c, kFloat8NaN = 0x7f;

constexpr SASH_HOST_DEVICE float largest_of(Float8 format) {
  return format == Float8::e4m3 ? 448.0F : 57344.0F;
}

/// The scale of a tensor whose largest absolute value is `largest`: casts multiply by it. It is 1
/// if `largest` is 0, infinite or NaN, and at most 2^126, so that its reciprocal is not subnormal.
constexpr SASH_HOST_DEVICE float float8_scale(Float8 format, float largest) {
  if (!(largest > 0 && largest <= FLT_MAX)) return 1;
  const float scale = largest_of(format) / largest;
  return scale < 0x1p126F ? scale : 0x1p126F;
}

/// Casts z [R, C] to `format` with one scale for all of z. z is
/// - x, if there is no gate;
/// - glu(x) for x [R, 2 C], with a gate and E4M3;
/// - the gradient of x [R, C] from the gradient g [R, C / 2] of glu(x), with a gate and E5M2.
///
/// glu(x) and its gradient are rounded to the dtype of x first. `rows` [R, C] and `columns` [C, R]
/// get the elements and their transpose; either may be a null view. `inverse` [1], float32, gets
/// 1 / scale. NaN stays NaN. x and g are of float32 or a half; all views are contiguous and
/// aligned to 16 bytes, R and C are multiples of 16.
extern SASH_API Kernel<void(KernelContext&, View x, View g, std::optional<Gate> gate, Float8 format,
                            View rows, View columns, View inverse)>
    float8_cast;

/// y = (inverse_a a) (inverse_b b)' + bias: a [M, K] of `format`, b [N, K] of E4M3, y [M, N] and
/// bias [N] (or null) of float32 or a half. All views are contiguous and aligned to 16 bytes, all
/// extents are multiples of 16. For a of E4M3, CUDA uses the fast accumulation of tensor cores.
extern SASH_API Kernel<void(KernelContext&, View a, View inverse_a, Float8 format, View b,
                            View inverse_b, const TensorView* bias, View y)>
    float8_matmul;

}  // namespace sash::kernels
