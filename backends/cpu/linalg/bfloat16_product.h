#pragma once

#include "../../../core/backend/kernel.h"
#include "../../../tensor/kernels/view.h"

/// Matrix products of bfloat16 by the instructions that some processors have for them.
namespace sash::cpu {

enum class Bfloat16Unit {
  none,    ///< products run on float32 copies
  avx512,  ///< VDPBF16PS of AVX512_BF16: sums of two products in each float32 of a vector
  amx,     ///< TDPBF16PS of AMX: 16 x 16 sums of 32 products
};

/// What this processor has and the kernel permits. AVX512_BF16 counts on AMD's processors alone:
/// Intel's take twice as long for it as for the same product in float32. The environment variable
/// SASH_BFLOAT16 ("float32", "avx512" or "amx") asks for another unit.
Bfloat16Unit bfloat16_unit();

/// c = alpha a b + beta c, or c = alpha a b + bias: a [..., M, K], b [..., K, N], bfloat16, of any
/// strides; c [..., M, N] bfloat16 or float32; bias [N] contiguous bfloat16, or a null view. As
/// `kernels::matmul`, with sums in float32. False if nothing was done: there is no such unit, or
/// the product is small.
bool multiply_bfloat16(KernelContext& context, View a, View b, View bias, View c, double alpha,
                       double beta);

}  // namespace sash::cpu
