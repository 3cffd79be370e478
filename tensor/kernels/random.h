#pragma once

#include <limits>

#include "../../core/philox.h"
#include "truncated_normal.h"
#include "view.h"

namespace sash::kernels {

/// The largest number of the half T below `high`, which halves drawn from [low, high) must not
/// round up to; infinity for other T, and where T has no number in [low, high).
template <class T>
double last_below(double low, double high) {
  constexpr double none = std::numeric_limits<double>::infinity();
  if constexpr (sizeof(T) == 2) {
    T x(static_cast<float>(high));
    const double rounded{static_cast<float>(x)};
    const int step = rounded > 0 ? -1 : rounded < 0 ? 1 : 0x8001 - x.bits;
    if (rounded >= high) x.bits = static_cast<uint16_t>(x.bits + step);
    const double last{static_cast<float>(x)};
    return last < low ? none : last;
  }
  return none;
}

/// y[i] = low + (high - low) u with u uniform in [0, 1) from lane i % 4 of block i / 4, at most
/// `last_below`. Floating; halves are computed in float32.
extern SASH_API Kernel<void(KernelContext&, View y, PhiloxState, double low, double high)>
    random_uniform;

/// y[i] = mean + std z, z standard normal by Box-Muller on lanes (0, 1) and (2, 3): with
/// u1 = (bits + 1) 2^-32 and u2 = bits' 2^-32, z = sqrt(-2 ln u1) (cos, sin)(2 pi u2). Floating.
extern SASH_API Kernel<void(KernelContext&, View y, PhiloxState, double mean, double std)>
    random_normal;

/// y[i] = draw(bits of element i). Floating.
extern SASH_API Kernel<void(KernelContext&, View y, PhiloxState, const TruncatedNormal& draw)>
    random_truncated_normal;

/// The widest range for which an integer takes 32 random bits. A number is likelier than another by
/// at most range / 2^32.
inline constexpr uint64_t kNarrowRange = uint64_t{1} << 20;

/// y[i] = low + bits mod (high - low). int64 or int32. Where the range is wider than
/// `kNarrowRange`, an element takes 64 bits: the upper half is the lane of element i, the lower
/// half the same lane ceil(n / 4) blocks later, where n is the number of elements.
extern SASH_API Kernel<void(KernelContext&, View y, PhiloxState, int64_t low, int64_t high)>
    random_integer;

}  // namespace sash::kernels
