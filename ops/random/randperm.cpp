#include "randperm.h"

#include <limits>

#include "../../tensor/factories.h"
#include "../../tensor/random.h"
#include "../checks.h"
#include "../index/topk.h"

namespace sash {
namespace {

// The order of n random numbers. Two of 2^64 are seldom equal, and then keep theirs.
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

Tensor randperm(int64_t n, const TensorOptions& options) { return order_of(n, options); }
Tensor randperm(int64_t n, Generator& generator, const TensorOptions& options) {
  return order_of(n, options, generator);
}

}  // namespace sash
