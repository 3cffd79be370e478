#pragma once

#include <optional>

#include "../../../core/backend/kernel.h"
#include "../../../core/dtype.h"

/// Matrix products by cuBLASLt, with the same bits from run to run: each shape uses an algorithm of
/// the table in gemm_choices.h, or else the first that cuBLASLt's heuristic returns for a fixed
/// workspace size. float16 and bfloat16 are accumulated in float32. float32 uses TF32 only if
/// `tf32_allowed()`.
namespace sash::cuda {

/// A batch of matrices. Element (i, j) of matrix n is `data[n * batch_stride + i * ld + j]`, or
/// `data[n * batch_stride + i + j * ld]` if `transposed`.
struct Matrix {
  void* data = nullptr;
  int64_t ld = 1;
  bool transposed = false;
  int64_t batch_stride = 0;
  int64_t alignment =
      1;  ///< the largest power of two that divides the address of every matrix, at most 256
};

/// What A and B of FP8 are: bytes, which are multiplied by a number on the card each. B is E4M3.
struct Float8Operands {
  bool gradient = false;  ///< A is E5M2, else E4M3 and the tensor cores accumulate fast
  const float* inverse_a = nullptr;
  const float* inverse_b = nullptr;
};

/// C = alpha A B + beta C for each of `batch` matrices: A [m, k], B [k, n], C [m, n]; C is not
/// transposed. All have one floating dtype, except that C may be float32 if A and B are halves. No
/// extent is 0. With beta = 0, C is not read. `bias` [n], if not null, is added to every row of C.
/// With `float8`, only C and bias have a dtype, which is float32 or a half, and K is the inner axis
/// in memory for A and B.
struct Product {
  DType dtype;  ///< of A and B, with `float8` of C
  int64_t m, n, k;
  Matrix a, b, c;
  int64_t batch = 1;
  double alpha = 1, beta = 0;
  bool wide = false;  ///< C is float32, whatever A and B are
  const void* bias = nullptr;
  /// For halves only: C = gelu(A B + bias) by the tanh formula. `gelu_input`, if not null, has the
  /// layout of C and gets A B + bias.
  bool gelu = false;
  void* gelu_input = nullptr;
  std::optional<Float8Operands> float8{};
};

/// Whether cuBLASLt has an algorithm for `product`. It may have none for a product with bias or
/// GELU.
bool offered(const KernelContext& context, const Product& product);

void gemm(const KernelContext& context, const Product& product);

}  // namespace sash::cuda
