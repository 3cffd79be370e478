#include "sampling.h"

#include <cmath>

#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../checks.h"
#include "../elementwise/binary.h"
#include "../elementwise/compare.h"
#include "../elementwise/unary.h"
#include "../elementwise/where.h"
#include "../index/gather.h"
#include "../index/topk.h"
#include "../reduce/reduce.h"

namespace sash {
namespace {

/// float64 numbers inside (0, 1).
Tensor open_uniform(const Shape& shape, Device device) {
  constexpr double kHalfStep = 0x1p-33;  // rand has 32 random bits
  return rand(shape, {.dtype = DType::float64, .device = device}).add_(kHalfStep);
}

void check_weights(const Tensor& rows, int64_t count, bool replacement) {
  constexpr const char* op = "multinomial";
  if (rows.size(0) == 0 || count == 0) return;
  const Tensor totals = sum(rows, {1});
  const bool good = amin(rows).item<double>() >= 0 && std::isfinite(amax(totals).item<double>());
  if (!good) throw ValueError(op, "finite weights of at least 0", "another");
  const int64_t needed = replacement ? 1 : count;
  const int64_t least =
      needed == 1 ? amin(totals).item<double>() > 0 : amin(sum(gt(rows, 0), {1})).item<int64_t>();
  if (least < needed) {
    throw ValueError(op, "rows with at least " + std::to_string(needed) + " weights above 0",
                     "a row with " + std::to_string(least));
  }
}

/// The first index whose cumulated weight is above u times the total, by halving.
Tensor draw(const Tensor& rows, int64_t count) {
  const int64_t classes = rows.size(1);
  const Tensor ends = cumsum(rows, 1);
  const Tensor aim =
      open_uniform({rows.size(0), count}, rows.device()) * ends.narrow(1, classes - 1, 1);
  Tensor at = zeros(aim.shape(), {.dtype = DType::int64, .device = rows.device()});
  int64_t step = 1;
  while (step < classes) step *= 2;
  for (; step > 0; step /= 2) {
    // `at` elements are known to be at or below the aim; are those up to `further`?
    const Tensor further = at + step;
    const Tensor last = clamp(further - 1, {}, classes - 1);
    const Tensor below = logical_and(le(further, classes - 1), le(gather(ends, 1, last), aim));
    at = where(below, further, at);
  }
  return at;
}

}  // namespace

Tensor bernoulli(const Tensor& p) {
  constexpr const char* op = "bernoulli";
  check_defined(op, p);
  check_floating(op, p);
  const NoGradGuard no_grad;
  const Tensor wide = is_half(p.dtype()) ? p.to(DType::float32) : p;
  if (p.device().is_cpu() && p.numel() > 0) {
    const bool good = amin(wide).item<double>() >= 0 && amax(wide).item<double>() <= 1;
    if (!good) throw ValueError(op, "probabilities in [0, 1]", "another");
  }
  return lt(rand(p.shape(), wide.options()), wide).to(p.dtype());
}

Tensor multinomial(const Tensor& weights, int64_t count, bool replacement) {
  constexpr const char* op = "multinomial";
  check_defined(op, weights);
  check_floating(op, weights);
  if (weights.rank() != 1 && weights.rank() != 2) {
    throw ShapeError(op, "weights [C] or [N, C]", to_string(weights.shape()));
  }
  if (weights.size(-1) == 0)
    throw ShapeError(op, "at least one weight", to_string(weights.shape()));
  check_not_negative(op, "a number of draws", count);
  if (!replacement && count > weights.size(-1)) {
    throw ValueError(op,
                     "at most " + std::to_string(weights.size(-1)) + " draws without replacement",
                     std::to_string(count));
  }
  const NoGradGuard no_grad;
  const Tensor rows = (weights.rank() == 1 ? weights.unsqueeze(0) : weights).to(DType::float64);
  check_weights(rows, count, replacement);
  const Tensor found = [&] {
    if (replacement) return draw(rows, count);
    // An index waits for an exponential time, -log(u) / weight; those that come first are taken.
    return topk(log(open_uniform(rows.shape(), rows.device())) / rows, count, 1).indices;
  }();
  return weights.rank() == 1 ? found.squeeze(0) : found;
}

}  // namespace sash
