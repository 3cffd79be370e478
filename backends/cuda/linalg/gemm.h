#pragma once

#include "../../../core/dtype.h"
#include "../../../core/kernel.h"

/// Products of matrices by cuBLASLt, the same bits from run to run: each shape takes the first
/// algorithm that the heuristic offers for a fixed workspace. The halves are summed in float32;
/// float32 is rounded to TF32 only where `tf32_allowed()`.
namespace sash::cuda {

/// A batch of matrices. Element (i, j) lies at `data[i * ld + j]`, or `data[i + j * ld]` if
/// `transposed`; the next matrix `batch_stride` elements further on.
struct Matrix {
  void* data = nullptr;
  int64_t ld = 1;
  bool transposed = false;
  int64_t batch_stride = 0;
  int64_t alignment = 1;  ///< bytes that divide the address of every matrix; at most 256
};

/// C = alpha A B + beta C for each of `batch` matrices: A [m, k], B [k, n], C [m, n], not
/// transposed. One floating dtype; no extent is 0. With beta = 0 the old C is not read. `bias` [n],
/// if not null, is added to every row of C.
struct Product {
  DType dtype;
  int64_t m, n, k;
  Matrix a, b, c;
  int64_t batch = 1;
  double alpha = 1, beta = 0;
  const void* bias = nullptr;
};

/// Whether cuBLASLt has an algorithm for `product`: it need not have one for every bias.
bool offered(const KernelContext& context, const Product& product);

void gemm(const KernelContext& context, const Product& product);

}  // namespace sash::cuda
