#pragma once

#include "../../tensor/tensor.h"

/// Draws from distributions given by tensors, with the device's generator or a generator of the
/// caller (random.h). The draws are the same on every device. Not differentiable.
namespace sash {

class Generator;

/// 1 with probability p, else 0, for each element p, in its dtype (floating). On the CPU
/// `ValueError` unless every p is in [0, 1]; on a card one outside counts as the nearer end, and
/// NaN as 0.
SASH_API Tensor bernoulli(const Tensor& p);
SASH_API Tensor bernoulli(const Tensor& p, Generator& generator);

/// `count` int64 indices per row of weights [C] or [N, C], each drawn with probability proportional
/// to its weight: [count] or [N, count]. Without replacement, a row's indices differ, and come in
/// the order in which they were drawn (Efraimidis and Spirakis, 2006).
///
/// Floating dtypes. Waits for the device: `ValueError` unless weights are finite and not negative,
/// every row has one above 0 and, without replacement, at least `count` of them.
SASH_API Tensor multinomial(const Tensor& weights, int64_t count, bool replacement = false);
SASH_API Tensor multinomial(const Tensor& weights, int64_t count, bool replacement,
                            Generator& generator);

}  // namespace sash
