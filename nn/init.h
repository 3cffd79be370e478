#pragma once

#include <cstdint>
#include <numbers>

#include "../tensor/tensor.h"

/// Initialisers. Each overwrites the elements of a floating tensor and returns the tensor. A
/// `Tensor` is a handle, so a `const Tensor&` names elements that can be written. The write is not
/// recorded. Numbers come from the generator of the tensor's device, or of a `GeneratorGuard`; the
/// same seed gives the same numbers on every device.
///
/// A weight [out, in, ...] has fan_in = in * receptive and fan_out = out * receptive, where
/// receptive is the product of the extents after `in`. Functions that use a fan throw `ShapeError`
/// for fewer than two axes.
namespace sash::nn::init {

/// U(low, high). `ValueError` unless low <= high and the dtype holds both and high - low (for
/// halves, float32 the difference).
SASH_API Tensor uniform_(const Tensor& x, double low = 0, double high = 1);
/// N(mean, std^2). `ValueError` for a negative std, here and below.
SASH_API Tensor normal_(const Tensor& x, double mean = 0, double std = 1);
/// N(mean, std^2) conditioned on [low, high]. `ValueError` unless low < high.
SASH_API Tensor trunc_normal_(const Tensor& x, double mean = 0, double std = 1, double low = -2,
                              double high = 2);
SASH_API Tensor constant_(const Tensor& x, double value);
SASH_API Tensor zeros_(const Tensor& x);
SASH_API Tensor ones_(const Tensor& x);

/// U(-a, a) with a = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010).
SASH_API Tensor xavier_uniform_(const Tensor& weight, double gain = 1);
/// N(0, s^2) with s = gain sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio, 2010).
SASH_API Tensor xavier_normal_(const Tensor& weight, double gain = 1);

/// The variance that layers preserve: of activations (in) or of gradients (out).
enum class Fan { in, out };

/// U(-a, a) with a = gain sqrt(3 / fan) (He et al., 2015). The gain sqrt(2) suits ReLU.
SASH_API Tensor kaiming_uniform_(const Tensor& weight, double gain = std::numbers::sqrt2,
                                 Fan fan = Fan::in);
/// N(0, s^2) with s = gain / sqrt(fan) (He et al., 2015).
SASH_API Tensor kaiming_normal_(const Tensor& weight, double gain = std::numbers::sqrt2,
                                Fan fan = Fan::in);

}  // namespace sash::nn::init
