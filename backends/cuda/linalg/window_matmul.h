#pragma once

#include "../../../ops/kernels/linalg.h"
#include "../runtime/extent.h"

/// The families of windowed products; `window_matmul.cu` chooses.
///
/// Tiles have 64 columns. A block of queries from i0 on meets tiles of keys: tile t begins at key
/// i0 - left + 64 t, and its element (r, c) is slot 64 t + c - r of row i0 + r. A block of keys
/// from j0 on meets tiles of rows: tile t begins at row j0 - right + 64 t, and its element (r, c)
/// is key j0 + r in row j0 - right + 64 t + c, where its slot is slots - 1 - 64 t + r - c.
namespace sash::cuda {

/// Extents and window of a call.
struct WindowDims {
  int heads, m, n, left, slots;
  const int32_t* lengths;  ///< one for each batch, or null

  WindowDims(View rows, const kernels::WindowParams& window)
      : heads(extent("window_matmul", rows.shape[1])),
        m(extent("window_matmul", rows.shape[2])),
        n(extent("window_matmul", rows.shape[3])),
        left(static_cast<int>(window.left)),
        slots(static_cast<int>(window.slots())),
        lengths(window.lengths ? window.lengths->ptr<const int32_t>() : nullptr) {}

  int right() const { return slots - 1 - left; }
  /// Blocks of `rows` rows, and the tiles that they meet.
  int64_t blocks(int64_t rows) const { return (m + rows - 1) / rows; }
  int64_t tiles(int64_t rows) const { return (slots + rows + 62) / 64; }
};

/// Result i of `unwindow_matmul`: the sum of weight(row, key) value(j) over the rows j of v in the
/// window. Tiles multiply rows outside the window by 0, which gives NaN if v is infinite or NaN. So
/// this computes results that are not finite again.
template <bool transposed, class Weight, class Value>
__device__ auto window_sum(const WindowDims& p, int keys, int i, const Weight& weight,
                           const Value& value) {
  const int right = p.slots - 1 - p.left;
  const int before = transposed ? right : p.left, behind = transposed ? p.left : right;
  const int end = transposed ? (i < keys ? p.m : 0) : keys;
  decltype(value(i) + value(i)) sum = 0;
#pragma unroll 1
  for (int j = max(0, i - before); j < min(end, i + behind + 1); ++j) {
    sum += (transposed ? weight(j, i) : weight(i, j)) * value(j);
  }
  return sum;
}

/// Without tensor cores: any floating dtype, any strides.
void window_scores_simple(KernelContext& context, View q, View k,
                          const kernels::WindowParams& window, double fill, View a);
void window_sums_simple(KernelContext& context, View a, View v, const kernels::WindowParams& window,
                        bool transposed, View o);

/// By mma.sync: halves, any strides. All features of the queries of a block are in shared memory,
/// which limits the number of features.
bool window_scores_mma_takes(View q);
void window_scores_mma(KernelContext& context, View q, View k, const kernels::WindowParams& window,
                       double fill, View a);
void window_sums_mma(KernelContext& context, View a, View v, const kernels::WindowParams& window,
                     bool transposed, View o);

}  // namespace sash::cuda
