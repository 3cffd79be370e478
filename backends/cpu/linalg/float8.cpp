#include "../../../ops/kernels/float8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "../../../core/parallel.h"
#include "../shape/halves.h"
#include "gemm.h"

namespace sash::cpu {
namespace {

using kernels::Float8;
using kernels::Gate;

struct Layout {
  int mantissa, least;  ///< bits of the mantissa; exponent of the least normal number
};
constexpr Layout layout_of(Float8 format) {
  return format == Float8::e4m3 ? Layout{3, -6} : Layout{2, -14};
}

/// x to nearest even, saturating. Counts steps of the mantissa, which a sum with 1.5 * 2^23 rounds.
uint8_t to_float8(float x, Float8 format) {
  if (std::isnan(x)) return kernels::kFloat8NaN;
  const uint32_t sign = std::signbit(x) ? 0x80 : 0;
  if (format == Float8::e5m2 && std::isinf(x)) {
    return static_cast<uint8_t>(sign | kernels::kFloat8Infinity);
  }
  const auto [mantissa, least] = layout_of(format);
  const float size = std::min(std::abs(x), kernels::largest_of(format));
  const int exponent = std::max(static_cast<int>(std::bit_cast<uint32_t>(size) >> 23) - 127, least);
  const auto per_step =
      std::bit_cast<float>(static_cast<uint32_t>(127 + mantissa - exponent) << 23);
  const uint32_t steps = std::bit_cast<uint32_t>(size * per_step + 0x1.8p23F) & 0xff;
  return static_cast<uint8_t>(sign |
                              ((static_cast<uint32_t>(exponent - least) << mantissa) + steps));
}

float from_float8(uint8_t bits, Float8 format) {
  const auto [mantissa, least] = layout_of(format);
  const int size = bits & 0x7f, exponent = std::max((size >> mantissa) - 1, 0);
  const int steps = size - (exponent << mantissa);
  float value = std::ldexp(static_cast<float>(steps), exponent + least - mantissa);
  if (size == kernels::kFloat8NaN) value = NAN;
  if (format == Float8::e5m2 && size == kernels::kFloat8Infinity) value = INFINITY;
  return (bits & 0x80) != 0 ? -value : value;
}

/// The largest absolute value. As bits, a NaN is above an infinity.
float largest(const float* x, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffU);
  }
  return std::bit_cast<float>(most);
}

void float8_cast(KernelContext& context, View x, View g, std::optional<Gate> gate, Float8 format,
                 View rows, View columns, View inverse) {
  TensorView source = x;
  std::optional<Workspace> memory;
  if (gate) {
    if (!g.data) source.shape[1] /= 2;
    source.strides = contiguous_strides(source.shape);
    memory.emplace(context, source.numel() * size_of(x.dtype));
    source.data = memory->ptr<void>();
    g.data ? kernels::glu_backward(context, x, g, source, *gate)
           : kernels::glu_forward(context, x, source, *gate);
  }
  const FloatOperand in(context, source);
  const auto* const z = in.view().ptr<const float>();
  const int64_t height = source.shape[0], width = source.shape[1];
  const float scale = kernels::float8_scale(format, largest(z, height * width));
  *inverse.ptr<float>() = 1 / scale;
  parallel_for_each(height, 16, [&](int64_t i) {
    for (int64_t j = 0; j < width; ++j) {
      const uint8_t element = to_float8(z[i * width + j] * scale, format);
      if (rows.data) rows.ptr<uint8_t>()[i * width + j] = element;
      if (columns.data) columns.ptr<uint8_t>()[j * height + i] = element;
    }
  });
}

/// Writes the elements of an FP8 matrix times 1 / scale.
void widen(View x, View inverse, Float8 format, float* to) {
  std::array<float, 256> values{};
  for (size_t i = 0; i < 256; ++i) {
    values[i] = from_float8(static_cast<uint8_t>(i), format) * *inverse.ptr<const float>();
  }
  const auto* const from = x.ptr<const uint8_t>();
  std::transform(from, from + x.numel(), to, [&](uint8_t bits) { return values[bits]; });
}

void float8_matmul(KernelContext& context, View a, View inverse_a, Float8 format, View b,
                   View inverse_b, const TensorView* bias, View y) {
  const int64_t m = y.shape[0], n = y.shape[1], k = a.shape[1];
  const Workspace memory(context, (m + n) * k * size_of(DType::float32));
  auto *const left = memory.ptr<float>(), *const right = left + m * k;
  widen(a, inverse_a, format, left);
  widen(b, inverse_b, Float8::e4m3, right);
  const FloatOperand row(context, bias ? *bias : TensorView());
  FloatResult out(context, y);
  gemm<float>(context, {.m = m,
                        .n = n,
                        .k = k,
                        .a = {left, k, 1},
                        .b = {right, 1, k},
                        .c = {out.view().ptr<float>(), n, 1},
                        .bias = bias ? row.view().ptr<const float>() : nullptr});
  out.write();
}

}  // namespace

void register_float8() {
  kernels::float8_cast.set(DeviceType::cpu, float8_cast);
  kernels::float8_matmul.set(DeviceType::cpu, float8_matmul);
}

}  // namespace sash::cpu
