#pragma once

#include <cuda.h>

#include "../../../tensor/kernels/view.h"

/// Tensor maps: what TMA copies have to know of a tensor.
namespace sash::cuda {

/// Whether `tensor_map` takes `x`: float16 or bfloat16 [B, H, S, D], unit stride along D, the other
/// strides and the address multiples of 16 bytes, and no broadcast axis.
bool fits_tensor_map(View x);

/// `x` for copies of [64 rows][`features`] to shared memory, 64 or 32 features, swizzled over the
/// 128 or 64 bytes of a row. Made on the host in about a microsecond; passed to kernels by value,
/// as a __grid_constant__.
CUtensorMap tensor_map(View x, int features);

/// `x` [rows][columns] of float16 or bfloat16, without gaps and aligned to 16 bytes, for copies of
/// [`box_rows`][`box_columns`]: at most 256 rows, and 64, 32 or 16 columns, swizzled over the bytes
/// of a row of the box. Rows < 2^31.
CUtensorMap matrix_map(View x, int64_t columns, int box_rows, int box_columns);

/// The same as `tensor_map` for copies of single rows of `x` [rows][columns], floats without gaps;
/// columns <= 256 and a multiple of 4, rows < 2^31.
CUtensorMap tensor_map(const float* x, int64_t rows, int columns);

}  // namespace sash::cuda
