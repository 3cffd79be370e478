#pragma once

#include "../../tensor/tensor.h"

namespace sash {

struct BaddbmmOptions {
  double alpha = 1;  ///< factor of the product
  double beta = 1;   ///< factor of c, which is not read if it is 0
  bool transpose_a = false;
  bool transpose_b = false;
  bool transpose_product = false;
};

/// beta c + alpha op_c(op_a(a) op_b(b)) for batches of matrices, where each op transposes the last
/// two axes or does nothing: BLAS's strided batched gemm, PyTorch's `baddbmm` with transposes.
///
/// op_a(a) is [..., M, K], op_b(b) [..., K, N], the result [..., M, N], or [..., N, M] with
/// `transpose_product`. The batch axes of a and b broadcast, and c broadcasts to the result; with
/// beta = 0 it may be undefined. Transposed operands are read as they lie; a transposed product is
/// computed as op_b(b)' op_a(a)'. All eight combinations run at the speed of `matmul`.
///
/// One dtype, floating or of integers; halves are summed in float32. `ShapeError` unless the shapes
/// fit, `ValueError` for factors that the integer dtype cannot hold. Differentiable twice in a, b
/// and c.
SASH_API Tensor baddbmm(const Tensor& c, const Tensor& a, const Tensor& b,
                        const BaddbmmOptions& options = {});

/// `baddbmm` in place: writes the result to c, which has the result's shape, and returns c. a and b
/// may not share memory with c (`ValueError`); if recorded, they are kept. `AutogradError` for a
/// leaf that requires grad, unless under `NoGradGuard`.
SASH_API Tensor baddbmm_(Tensor c, const Tensor& a, const Tensor& b,
                         const BaddbmmOptions& options = {});

}  // namespace sash
