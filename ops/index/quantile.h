#pragma once

#include <optional>
#include <vector>

#include "topk.h"

/// Elements by their rank in order. NaN wins: of a line with NaN the result is NaN.
namespace sash {

/// The lower of the middle elements along `axis`, and its index; the gradient goes to that element.
/// Floating dtypes and integers. `ShapeError` if the axis is empty.
SASH_API Chosen median(const Tensor& x, int64_t axis, bool keepdim = false);
/// The lower of the middle ones of all elements. The gradient is shared equally between ties. The
/// median of nothing is NaN, and a `ShapeError` for integers.
SASH_API Tensor median(const Tensor& x);

namespace composite {
/// `median` from plain ops.
SASH_API Chosen median(const Tensor& x, int64_t axis, bool keepdim = false);
}  // namespace composite

/// What is taken at a rank between those of two neighbours a <= b.
enum class Interpolation {
  linear,    ///< a + (b - a) t, where t is the distance of the rank from that of a
  lower,     ///< a
  higher,    ///< b
  midpoint,  ///< (a + b) / 2
  nearest,   ///< the one that is closer, the even rank of two
};

struct QuantileOptions {
  std::optional<int64_t> axis{};  ///< default: of all elements
  bool keepdim = false;
  Interpolation interpolation = Interpolation::linear;
};

/// The element of rank q (n - 1) in ascending order along an axis, q in [0, 1]. Floating dtypes.
/// `ShapeError` if there is no element, `ValueError` for another q.
SASH_API Tensor quantile(const Tensor& x, double q, const QuantileOptions& options = {});
/// The same for several q, [Q, ...].
SASH_API Tensor quantile(const Tensor& x, const std::vector<double>& q,
                         const QuantileOptions& options = {});

}  // namespace sash
