#pragma once

#include "../common/kept.cuh"
#include "../common/steps.cuh"
#include "tile.cuh"

/// The shapes and the kinds of the mma kernels.
namespace sash::cuda::mma {

/// The shape of a kernel. `in_registers`: whether the left operands of scores stay in registers. At
/// least `blocks` blocks of `warps` warps share a multiprocessor, but fewer blocks of general
/// kernels.
template <int warps, int tiles, int step, int stages, bool in_registers, int blocks>
struct Shape {
  static constexpr int kThreads = warps * kWarp, kTiles = tiles, kRows = 16 * warps * tiles;
  static constexpr int kStep = step, kStages = stages;
  static constexpr bool kInRegisters = in_registers;
  static constexpr int min_blocks(bool plain) { return plain || blocks <= 3 ? blocks : blocks - 1; }
  static_assert(kBlockQueries % kRows == 0 && kBlockKeys % step == 0 && step % 16 == 0);
};

/// The kind of the kernels that compute a call with heads of `features`.
template <class T>
Kind kind_of(const AttentionDims<T>& p, int64_t features) {
  if (p.bounds.ranges) return Kind::general;
  if (p.plain) return Kind::plain;
  return keeps_tiles(p, features) ? Kind::dropout : Kind::general;
}

/// Calls f<width, kind>() with the width of the narrowest tiles that have the features. General
/// kernels, which have the most instructions, are compiled for fewer widths, and so are the kernels
/// with dropout.
template <class F>
void with_width(int64_t features, Kind kind, F&& f) {
  const auto of = [&]<Kind kKind>(std::integral_constant<Kind, kKind>) {
    constexpr bool plain = kKind == Kind::plain;
    if constexpr (kKind != Kind::general) {
      if (features <= 32) return f.template operator()<32, kKind>();
    }
    if (features <= 64) return f.template operator()<64, kKind>();
    if constexpr (plain) {
      if (features <= 96) return f.template operator()<96, kKind>();
    }
    if (kKind == Kind::dropout || features <= 128) return f.template operator()<128, kKind>();
    if constexpr (kKind != Kind::dropout) f.template operator()<256, kKind>();
  };
  switch (kind) {
    case Kind::plain:
      return of(std::integral_constant<Kind, Kind::plain>());
    case Kind::dropout:
      return of(std::integral_constant<Kind, Kind::dropout>());
    case Kind::general:
      return of(std::integral_constant<Kind, Kind::general>());
  }
}

/// Calls f<T>() with the type of the elements.
template <class F>
void with_type(DType dtype, F&& f) {
  if (dtype == DType::bfloat16) return f.template operator()<__nv_bfloat16>();
  if (dtype == DType::float16) return f.template operator()<__half>();
  return f.template operator()<float>();
}

}  // namespace sash::cuda::mma
