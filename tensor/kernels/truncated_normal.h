#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>

#include "../../core/export.h"

/// Numbers of N(mean, std^2) on [low, high] by the inverse of the distribution function, in float64
/// on every backend.
namespace sash::kernels {

/// c0 + x (c1 + x (c2 + ...)).
SASH_HOST_DEVICE constexpr double polynomial(double, double c) { return c; }
template <class... C>
SASH_HOST_DEVICE constexpr double polynomial(double x, double c0, C... rest) {
  return c0 + x * polynomial(x, rest...);
}

/// The z below which a standard normal number is with probability p in (0, 1): algorithm AS 241
/// (Wichura, "The percentage points of the normal distribution", 1988), accurate to about 1e-16.
SASH_HOST_DEVICE inline double normal_quantile(double p) {
  const double q = p - 0.5;
  if (q >= -0.425 && q <= 0.425) {
    const double r = 0.180625 - q * q;
    return q *
           polynomial(r, 3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427,
                      13731.693765509461125, 45921.953931549871457, 67265.770927008700853,
                      33430.575583588128105, 2509.0809287301226727) /
           polynomial(r, 1, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077,
                      21213.794301586595867, 39307.895800092710610, 28729.085735721942674,
                      5226.4952788528545610);
  }
  const double r = std::sqrt(-std::log(q < 0 ? p : 1 - p));
  const double z = r <= 5 ? polynomial(r - 1.6, 1.42343711074968357734, 4.63033784615654529590,
                                       5.76949722146069140550, 3.64784832476320460504,
                                       1.27045825245236838258, 0.241780725177450611770,
                                       0.0227238449892691845833, 7.74545014278341407640e-4) /
                                polynomial(r - 1.6, 1, 2.05319162663775882187,
                                           1.67638483018380384940, 0.689767334985100004550,
                                           0.148103976427480074590, 0.0151986665636164571966,
                                           5.47593808499534494600e-4, 1.05075007164441684324e-9)
                          : polynomial(r - 5, 6.65790464350110377720, 5.46378491116411436990,
                                       1.78482653991729133580, 0.296560571828504891230,
                                       0.0265321895265761230930, 1.24266094738807843860e-3,
                                       2.71155556874348757815e-5, 2.01033439929228813265e-7) /
                                polynomial(r - 5, 1, 0.599832206555887937690,
                                           0.136929880922735805310, 0.0148753612908506148525,
                                           7.86869131145613259100e-4, 1.84631831751005468180e-5,
                                           1.42151175831644588870e-7, 2.04426310338993978564e-15);
  return q < 0 ? -z : z;
}

/// A number from 32 random bits. The interval is mirrored if it lies above the mean, because
/// probabilities keep their digits below it.
class TruncatedNormal {
 public:
  TruncatedNormal(double mean, double std, double low, double high)
      : mean_(mean), scale_(std), low_(low), high_(high), near_(high) {
    double z_low = (low - mean) / std, z_high = (high - mean) / std;
    if (z_low > 0) {
      scale_ = -std;
      near_ = low;
      z_low = -std::exchange(z_high, -z_low);
    }
    const auto below = [](double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); };
    far_ = z_high < -37;
    z_near_ = -z_high;
    first_ = far_ ? std::fmin(1, std::exp((z_high - z_low) * (z_low + z_high) / 2)) : below(z_low);
    width_ = (far_ ? 1 : below(z_high)) - first_;
  }

  SASH_HOST_DEVICE double operator()(uint32_t bits) const {
    const double p = first_ + width_ * ((bits == 0 ? 0.5 : bits) * 0x1p-32);
    double y;
    if (far_) {
      // Beyond 37 deviations the probability below z underflows. Its ratio to that of the near end
      // is exp((z_near^2 - z^2) / 2) to within 1 / z^2 of the distance from the end.
      const double more = -2 * std::log(p);
      y = near_ - scale_ * (more / (std::sqrt(z_near_ * z_near_ + more) + z_near_));
    } else {
      y = mean_ + scale_ * normal_quantile(p);
    }
    return std::fmin(std::fmax(y, low_), high_);
  }

 private:
  double mean_, scale_, low_, high_;
  double near_, z_near_;  // the end nearer to the mean, if that lies outside, and its distance
  double first_, width_;  // of the probabilities p
  bool far_;
};

}  // namespace sash::kernels
