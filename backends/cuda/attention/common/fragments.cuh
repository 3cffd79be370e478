#pragma once

#include <limits>

#include "dims.cuh"
#include "lanes.cuh"
#include "launch.cuh"

/// What the attention kernels on tensor cores (mma and wgmma) share: the parameters of a call and
/// the layout of accumulators.
///
/// The accumulators sum[j][e], 0 <= e < 4, of a thread are elements of a product [64][n]: row 16 w
/// + g + 8 (e / 2), column 8 j + 2 t + e % 2, where w is the warp, g = lane / 4 and t = lane % 4.
/// Rows are queries (`by_query`) or keys.
namespace sash::cuda::fragments {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Kinds of kernels. All kinds apply masks. `plain` applies nothing else, `dropout` also applies
/// dropout from bit tiles (kept.cuh), `general` applies all options and bounds.
enum class Kind { plain, dropout, general };

/// The shape of a kernel for tiles of `key` features, in a table of shapes: see `ShapeOf`.
template <int key, class S>
struct For {
  static constexpr int kKey = key;
  using Shape = S;
};
template <int key, class... Table>
struct FindShape;
template <int key, class First, class... Others>
struct FindShape<key, First, Others...>
    : std::conditional_t<First::kKey == key, First, FindShape<key, Others...>> {};
/// The shape that a table of `For` has for `key`.
template <int key, class... Table>
using ShapeOf = typename FindShape<key, Table...>::Shape;

/// The column of sum[j][e] on this lane.
__device__ inline int column_of(int j, int e) { return 8 * j + lane() % 4 * 2 + e % 2; }

/// The four accumulators sum[j] in an array of all accumulators of a thread.
template <int n>
__device__ float (&four(float (&sum)[n], int j))[4] {
  return reinterpret_cast<float(&)[4]>(sum[4 * j]);
}

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 - 2 / (exp(2 x) + 1).
__device__ inline float tanh_approx(float x) {
  return 1 - __fdividef(2.f, exp2_approx(2 * kLog2E * x) + 1);
}

/// The statistics of a query that the backward pass needs: its log-sum-exp to the base 2, and D =
/// rowsum(g . out) - g_lse. Past the last query they are +infinity and 0, so that P = 0.
struct alignas(8) RowStats {
  float lse, dot;
};

}  // namespace sash::cuda::fragments
