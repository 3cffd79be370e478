#include "sampling.h"

#include <cmath>
#include <limits>
#include <vector>

#include "../../tensor/random.h"
#include "../index/topk.h"
#include "../kernels/random.h"
#include "../op.h"
#include "../shape/concat.h"
#include "randperm.h"

namespace sash {

constinit decltype(kernels::first_above) kernels::first_above{"first_above"};

namespace {

/// float64 numbers inside (0, 1).
Tensor open_uniform(const Shape& shape, Device device, auto&... generator) {
  constexpr double kHalfStep = 0x1p-33;  // rand has 32 random bits
  return rand(shape, generator..., {.dtype = DType::float64, .device = device}).add_(kHalfStep);
}

/// Each row has a total, a least weight and, for several draws without replacement, a number of
/// weights above 0: all are copied to the host at once.
void check_weights(const Tensor& rows, const Tensor& totals, int64_t needed) {
  constexpr const char* op = "multinomial";
  std::vector<Tensor> facts{totals, amin(rows, {1})};
  if (needed > 1) facts.push_back(sum(gt(rows, 0), {1}).to(DType::float64));
  const std::vector<double> all = cat(facts).to_vector<double>();
  const auto count = static_cast<size_t>(rows.size(0));
  for (size_t i = 0; i < count; ++i) {
    if (!std::isfinite(all[i]) || !(all[count + i] >= 0)) {
      throw ValueError(op, "finite weights of at least 0", "another");
    }
  }
  for (size_t i = 0; i < count; ++i) {
    const auto found = static_cast<int64_t>(needed > 1 ? all[2 * count + i] : all[i] > 0);
    if (found >= needed) continue;
    throw ValueError(op, "rows with at least " + std::to_string(needed) + " weights above 0",
                     "a row with " + std::to_string(found));
  }
}

Tensor bernoulli_by(const Tensor& p, auto&... generator) {
  constexpr const char* op = "bernoulli";
  check_floating(op, p);
  const NoGradGuard no_grad;
  const Tensor wide = is_half(p.dtype()) ? p.to(DType::float32) : p;
  if (p.device().is_cpu() && p.numel() > 0) {
    const bool good = amin(wide).item<double>() >= 0 && amax(wide).item<double>() <= 1;
    if (!good) throw ValueError(op, "probabilities in [0, 1]", "another");
  }
  return lt(rand(p.shape(), generator..., wide.options()), wide).to(p.dtype());
}

Tensor multinomial_by(const Tensor& weights, int64_t count, bool replacement, auto&... generator) {
  constexpr const char* op = "multinomial";
  check_floating(op, weights);
  if (weights.rank() != 1 && weights.rank() != 2) {
    throw ShapeError(op, "weights [C] or [N, C]", to_string(weights.shape()));
  }
  const int64_t classes = weights.size(-1);
  if (classes == 0) throw ShapeError(op, "at least one weight", to_string(weights.shape()));
  check_not_negative(op, "a number of draws", count);
  if (!replacement && count > classes) {
    throw ValueError(op, "at most " + std::to_string(classes) + " draws without replacement",
                     std::to_string(count));
  }
  const NoGradGuard no_grad;
  const Tensor rows =
      (weights.rank() == 1 ? weights.unsqueeze(0) : weights).to(DType::float64).contiguous();
  const Shape shape{rows.size(0), count};
  Tensor found = empty(shape, {.dtype = DType::int64, .device = weights.device()});
  if (found.numel() > 0 && (replacement || count == 1)) {
    // The first place whose cumulated weight is above u times the total.
    const Tensor ends = cumsum(rows, 1), totals = ends.narrow(1, classes - 1, 1);
    check_weights(rows, totals.squeeze(1), 1);
    const Tensor aim = open_uniform(shape, weights.device(), generator...).mul_(totals);
    run_kernel(kernels::first_above, ends, aim, found);
  } else if (found.numel() > 0) {
    check_weights(rows, sum(rows, {1}), count);
    // An index waits for an exponential time, -log(u) / weight; those that come first are taken.
    const Tensor u = open_uniform(rows.shape(), weights.device(), generator...);
    found = topk(log(u).div_(rows), count, 1).indices;
  }
  return weights.rank() == 1 ? found.squeeze(0) : found;
}

/// The order of n random numbers. Two of 2^64 are seldom equal, and then keep theirs.
Tensor order_of(int64_t n, const TensorOptions& options, auto&... generator) {
  check_not_negative("randperm", "n", n);
  if (options.dtype && *options.dtype != DType::int64) {
    throw DTypeError("randperm", "int64", name(*options.dtype));
  }
  constexpr int64_t least = std::numeric_limits<int64_t>::min();
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  const Tensor keys = randint(least, most, n, generator..., {.device = options.device});
  return topk(keys, n).indices;
}

}  // namespace

Tensor bernoulli(const Tensor& p) { return bernoulli_by(p); }
Tensor bernoulli(const Tensor& p, Generator& generator) { return bernoulli_by(p, generator); }

Tensor multinomial(const Tensor& weights, int64_t count, bool replacement) {
  return multinomial_by(weights, count, replacement);
}
Tensor multinomial(const Tensor& weights, int64_t count, bool replacement, Generator& generator) {
  return multinomial_by(weights, count, replacement, generator);
}

Tensor randperm(int64_t n, const TensorOptions& options) { return order_of(n, options); }
Tensor randperm(int64_t n, Generator& generator, const TensorOptions& options) {
  return order_of(n, options, generator);
}

}  // namespace sash
