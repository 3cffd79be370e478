#pragma once

#include <vector>

#include "../../tensor/tensor.h"

/// Biases of attention scores by the distance between query and key.
namespace sash::nn {

/// float32 [heads]: 2^(-8 h / heads) for h = 1 .. heads (Press et al., "Train short, test long",
/// ICLR 2022). `ValueError` unless heads is positive.
SASH_API Tensor alibi_slopes(int64_t heads, Device device = kCPU);

/// Relative bias and ALiBi as a bias [1, H, n, m] for queries and keys at arbitrary positions
/// `queries` (n) and `keys` (m):
///
///     bias[0, h, i, j] = relative_bias[h, clamp(keys[j] - queries[i], -R, R) + R]
///                      - slopes[h] abs(keys[j] - queries[i])
///
/// relative_bias [H, 2 R + 1] and slopes [H]; either may be undefined, and the result is undefined
/// if both are.
SASH_API Tensor position_bias(const Tensor& relative_bias, const Tensor& slopes,
                              const std::vector<int64_t>& queries,
                              const std::vector<int64_t>& keys);

}  // namespace sash::nn
