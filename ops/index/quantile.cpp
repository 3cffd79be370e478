#include "quantile.h"

#include <cmath>
#include <limits>

#include "../kernels/index.h"
#include "../op.h"
#include "../shape/concat.h"
#include "gather.h"
#include "sort.h"

namespace sash {

constinit decltype(kernels::median) kernels::median{"median"};

namespace {

void check_not_empty(const char* op, const Tensor& x, int axis) {
  if (x.shape()[axis] == 0) throw ShapeError(op, "an axis that is not empty", to_string(x.shape()));
}

// The two below give the indices of the medians along an axis that is not empty, kept with
// extent 1.

Tensor median_places(const Tensor& x, int axis) {
  Shape kept = x.shape();
  kept[axis] = 1;
  const Tensor y = empty(kept, {.dtype = DType::int64, .device = x.device()});
  run_kernel(kernels::median, x.dtype() == DType::uint8 ? x.to(DType::int32) : x, y, axis);
  return y;
}

Tensor sorted_median_places(const Tensor& x, int axis) {
  const int64_t last = x.shape()[axis] - 1;
  const Chosen sorted = sort(x, axis);
  const Tensor middle = sorted.indices.narrow(axis, last / 2, 1);
  if (!is_floating(x.dtype())) return middle;
  const Tensor has_nan = isnan(sorted.values.narrow(axis, last, 1));
  return where(has_nan, argmax(x, axis, true), middle);  // of the first NaN
}

Chosen median_by(Tensor (*places)(const Tensor&, int), const Tensor& x, int64_t axis,
                 bool keepdim) {
  check_not_bool("median", x);
  check_min_rank("median", x, 1);
  const int at = normalize_axis(axis, x.rank(), "median");
  check_not_empty("median", x, at);
  const Tensor indices = unrecorded([&] { return places(x, at); });
  const Tensor values = gather(x, at, indices);
  if (keepdim) return {values, indices};
  return {values.squeeze(at), indices.squeeze(at)};
}

/// At a rank of values that are sorted along `axis`, kept with extent 1.
Tensor at_rank(const Tensor& sorted, int axis, double rank, Interpolation interpolation) {
  const auto element = [&](double at) { return sorted.narrow(axis, static_cast<int64_t>(at), 1); };
  const double below = std::floor(rank), above = std::ceil(rank);
  switch (interpolation) {
    case Interpolation::lower:
      return element(below);
    case Interpolation::higher:
      return element(above);
    case Interpolation::nearest:
      return element(std::nearbyint(rank));
    default:
      break;
  }
  const double t = interpolation == Interpolation::midpoint ? 0.5 : rank - below;
  if (above == below) return element(below);
  const Tensor a = element(below), b = element(above);
  return t < 0.5 ? a + (b - a) * t : b - (b - a) * (1 - t);
}

}  // namespace

Chosen composite::median(const Tensor& x, int64_t axis, bool keepdim) {
  return median_by(sorted_median_places, x, axis, keepdim);
}

Chosen median(const Tensor& x, int64_t axis, bool keepdim) {
  check_defined("median", x);
  const bool fused = use_fused(kernels::median, x.device());
  return median_by(fused ? median_places : sorted_median_places, x, axis, keepdim);
}

Tensor median(const Tensor& x) {
  check_not_bool("median", x);
  const bool none = x.numel() == 0 && is_floating(x.dtype());
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor y =
      unrecorded([&] { return none ? full({}, nan, x.options()) : median(x.flatten(), 0).values; });
  return record(
      "median", {x}, y, [x = save(x), y = save_output(y)](Backward& pass, const Tensor& g) {
        const Tensor in = pass(x).detach(), value = pass(y).detach();
        const Tensor ties = logical_or(eq(in, value), logical_and(isnan(in), isnan(value)));
        return Gradients{where(ties, g / sum(ties).to(g.dtype()), 0)};
      });
}

Chosen Tensor::median(int64_t axis, bool keepdim) const {
  return sash::median(*this, axis, keepdim);
}
Tensor Tensor::median() const { return sash::median(*this); }

Tensor quantile(const Tensor& x, double q, const QuantileOptions& options) {
  return quantile(x, std::vector<double>{q}, options).squeeze(0);
}

Tensor quantile(const Tensor& x, const std::vector<double>& q, const QuantileOptions& options) {
  constexpr const char* op = "quantile";
  check_floating(op, x);
  for (const double at : q) check_probability(op, "q", at);
  if (q.empty()) throw ValueError(op, "at least one q", "none");
  if (is_half(x.dtype())) return quantile(x.to(DType::float32), q, options).to(x.dtype());
  const bool all = !options.axis;
  const Tensor line = all ? x.flatten() : x;
  check_min_rank(op, line, 1);
  const int axis = normalize_axis(options.axis.value_or(0), line.rank(), op);
  check_not_empty(op, line, axis);
  const int64_t last = line.shape()[axis] - 1;
  const Tensor sorted = sort(line, axis).values, highest = sorted.narrow(axis, last, 1);
  const Tensor has_nan = isnan(highest.detach());
  std::vector<Tensor> rows;
  for (const double at : q) {
    const Tensor y = at_rank(sorted, axis, at * static_cast<double>(last), options.interpolation);
    rows.push_back(where(has_nan, highest, y));
  }
  const Tensor y = stack(rows, 0);
  if (!options.keepdim) return y.squeeze(axis + 1);
  if (!all) return y;
  Shape kept = Shape::filled(x.rank() + 1, 1);
  kept[0] = y.size(0);
  return y.view(kept);
}

}  // namespace sash
