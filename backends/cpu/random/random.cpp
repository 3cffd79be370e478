#include "../../../tensor/kernels/random.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../../../ops/kernels/random.h"
#include "../elementwise/elementwise.h"

namespace sash::cpu {
namespace {

/// Calls `f(i, block, lane)` for i in [0, n): the Philox block and the lane of element flat + i.
template <class F>
void for_each_draw(const PhiloxState& state, uint64_t base, int64_t flat, int64_t n, F&& f) {
  PhiloxBlock block{};
  for (int64_t i = 0; i < n; ++i) {
    const auto element = static_cast<uint64_t>(flat + i);
    const auto lane = static_cast<size_t>(element % 4);
    if (i == 0 || lane == 0) block = philox(state.seed, base + element / 4);
    f(i, block, lane);
  }
}

/// float16 and bfloat16 are drawn in float32 and rounded.
template <class T>
using draw_t = std::conditional_t<sizeof(T) == 2, float, T>;

template <class F>
void dispatch_drawn(DType dtype, const char* op, F&& f) {
  sash::detail::dispatch_over<float, double, float16, bfloat16>(dtype, op, f);
}

/// y[i] = transform(block i / 4, lane i % 4), where i is the row-major index.
template <class T, class F>
void draw(View y, const PhiloxState& state, F transform) {
  const uint64_t base = (state.base ? *state.base : 0) + state.offset;
  for_each_block<T>(
      Order::row_major,
      [&](int64_t flat, int64_t n, T* out) {
        for_each_draw(state, base, flat, n, [&](int64_t i, const PhiloxBlock& block, size_t lane) {
          out[i] = static_cast<T>(transform(block, lane));
        });
      },
      y);
}

/// Box and Muller, "A note on the generation of random normal deviates", 1958.
template <class T>
T normal(const PhiloxBlock& block, size_t lane) {
  constexpr T unit = static_cast<T>(0x1p-32);
  constexpr T two_pi = static_cast<T>(6.283185307179586476925);
  const size_t pair = lane & 2;
  const T u1 = (static_cast<T>(block.lane[pair]) + 1) * unit;
  const T angle = two_pi * (static_cast<T>(block.lane[pair + 1]) * unit);
  return std::sqrt(-2 * std::log(u1)) * ((lane & 1) == 0 ? std::cos(angle) : std::sin(angle));
}

void random_uniform(KernelContext&, View y, PhiloxState state, double low, double high) {
  dispatch_drawn(y.dtype, "random_uniform", [&]<class T>(TypeTag<T>) {
    using C = draw_t<T>;
    const C from = static_cast<C>(low), width = static_cast<C>(high - low);
    const C last = static_cast<C>(kernels::last_below<T>(low, high));
    draw<T>(y, state, [from, width, last](const PhiloxBlock& block, size_t lane) {
      return std::min(from + width * uniform_from_bits<C>(block.lane[lane]), last);
    });
  });
}

void random_normal(KernelContext&, View y, PhiloxState state, double mean, double std) {
  dispatch_drawn(y.dtype, "random_normal", [&]<class T>(TypeTag<T>) {
    using C = draw_t<T>;
    const C centre = static_cast<C>(mean), scale = static_cast<C>(std);
    draw<T>(y, state, [centre, scale](const PhiloxBlock& block, size_t lane) {
      return centre + scale * normal<C>(block, lane);
    });
  });
}

void random_truncated_normal(KernelContext&, View y, PhiloxState state,
                             const kernels::TruncatedNormal& number) {
  dispatch_drawn(y.dtype, "random_truncated_normal", [&]<class T>(TypeTag<T>) {
    draw<T>(y, state, [number](const PhiloxBlock& block, size_t lane) {
      return static_cast<draw_t<T>>(number(block.lane[lane]));
    });
  });
}

/// 64 random bits per element; all high words come before the low ones.
template <class T>
void wide_integer(View y, const PhiloxState& state, int64_t low, uint64_t range) {
  const uint64_t upper = (state.base ? *state.base : 0) + state.offset;
  const uint64_t lower = upper + (static_cast<uint64_t>(y.numel()) + 3) / 4;
  for_each_block<T>(
      Order::row_major,
      [&](int64_t flat, int64_t n, T* out) {
        for (int64_t i = 0; i < n; ++i) {
          const auto element = static_cast<uint64_t>(flat + i);
          const auto word = [&](uint64_t base) {
            return philox(state.seed, base + element / 4).lane[element % 4];
          };
          const uint64_t bits = uint64_t{word(upper)} << 32 | word(lower);
          out[i] = static_cast<T>(static_cast<uint64_t>(low) + bits % range);
        }
      },
      y);
}

void random_integer(KernelContext&, View y, PhiloxState state, int64_t low, int64_t high) {
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  sash::detail::dispatch_over<int64_t, int32_t>(
      y.dtype, "random_integer", [&]<class T>(TypeTag<T>) {
        if (range > kernels::kNarrowRange) return wide_integer<T>(y, state, low, range);
        draw<T>(y, state, [low, range](const PhiloxBlock& block, size_t lane) {
          return static_cast<T>(low + static_cast<int64_t>(block.lane[lane] % range));
        });
      });
}

void first_above(KernelContext&, View ends, View aim, View y) {
  const int64_t classes = ends.shape[1], draws = aim.shape[1];
  parallel_for_each(aim.numel(), 1024, [&](int64_t i) {
    const double* const line = ends.ptr<double>() + i / draws * classes;
    y.ptr<int64_t>()[i] = std::upper_bound(line, line + classes, aim.ptr<double>()[i]) - line;
  });
}

}  // namespace

void register_random() {
  kernels::random_uniform.set(DeviceType::cpu, random_uniform);
  kernels::random_normal.set(DeviceType::cpu, random_normal);
  kernels::random_truncated_normal.set(DeviceType::cpu, random_truncated_normal);
  kernels::random_integer.set(DeviceType::cpu, random_integer);
}

void register_first_above() { kernels::first_above.set(DeviceType::cpu, first_above); }

}  // namespace sash::cpu
