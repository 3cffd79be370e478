#pragma once

#include <cuda.h>

#include "../../../tensor/kernels/view.h"

/// Tensor maps, which describe a tensor to TMA copies.
namespace sash::cuda {

/// Whether `tensor_map` takes `x`: float16 or bfloat16 [B, H, S, D], unit stride along D, the other
/// strides and the address multiples of 16 bytes, and no broadcast axis.
bool fits_tensor_map(View x);

/// The tensor map of `x` for copies of [`heads`][`rows`][`features`] to shared memory, with 64
/// or 32 features, swizzled over the 128 or 64 bytes of a row. The host makes a map in about a
/// microsecond. Kernels take it by value, as a __grid_constant__.
CUtensorMap tensor_map(View x, int features, int rows = 64, int heads = 1);

/// The tensor map of `x` [rows][columns] of float16 or bfloat16, which is contiguous and aligned to
/// 16 bytes, for copies of boxes [`box_rows`][`box_columns`]. A box has at most 256 rows, and 64,
/// 32 or 16 columns; it is swizzled over the bytes of its rows. `x` has fewer than 2^31 rows.
CUtensorMap matrix_map(View x, int64_t columns, int box_rows, int box_columns);

/// The tensor map for copies of `box_rows` rows at a time of `x` [rows][columns], contiguous
/// floats. `columns` is at most 256 and a multiple of 4, `rows` is below 2^31.
CUtensorMap tensor_map(const float* x, int64_t rows, int columns, int box_rows = 1);

}  // namespace sash::cuda
