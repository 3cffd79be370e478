#include "random.h"

#include <limits>
#include <mutex>

#include "../core/backend/backend.h"
#include "factories.h"
#include "graph.h"
#include "kernels/random.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, PhiloxState, double, double)>
    random_uniform{"random_uniform"};
constinit Kernel<void(KernelContext&, const TensorView&, PhiloxState, double, double)>
    random_normal{"random_normal"};
constinit Kernel<void(KernelContext&, const TensorView&, PhiloxState, int64_t, int64_t)>
    random_integer{"random_integer"};
}  // namespace kernels

namespace {

constinit std::mutex generator_mutex;
constinit RandomState generator{};

// An empty tensor that a kernel will fill; a wrong dtype must not use up random numbers.
Tensor empty_real(const char* op, const Shape& shape, const TensorOptions& options) {
  const DType dtype = options.dtype.value_or(default_dtype());
  if (!is_floating(dtype)) throw DTypeError(op, "a floating dtype", name(dtype));
  return empty(shape, options);
}

}  // namespace

void manual_seed(uint64_t seed) {
  detail::refuse_in_graph("manual_seed", "no new seed", "one");
  set_random_state({seed, 0});
}

RandomState random_state() {
  const std::lock_guard lock(generator_mutex);
  return generator;
}

void set_random_state(RandomState state) {
  const std::lock_guard lock(generator_mutex);
  generator = state;
}

PhiloxState next_philox(Device device, int64_t count) {
  // Eager calls pass their whole offset by value, and the word they point to stays zero. A graph
  // has a word of its own.
  const uint64_t* const base = backend(device.type).random_base(device);
  const RandomState next = [count] {
    const std::lock_guard lock(generator_mutex);
    const RandomState before = generator;
    generator.offset += (static_cast<uint64_t>(count) + 3) / 4;
    return before;
  }();
  return detail::place_in_graph(device, {next.seed, base, next.offset});
}

Tensor rand(const Shape& shape, const TensorOptions& options) {
  Tensor y = empty_real("rand", shape, options);
  KernelContext context = kernel_context(y.device());
  kernels::random_uniform(context, y.tensor_view(), next_philox(y.device(), y.numel()), 0, 1);
  return y;
}

Tensor randn(const Shape& shape, const TensorOptions& options) {
  Tensor y = empty_real("randn", shape, options);
  KernelContext context = kernel_context(y.device());
  kernels::random_normal(context, y.tensor_view(), next_philox(y.device(), y.numel()), 0, 1);
  return y;
}

Tensor randint(int64_t low, int64_t high, const Shape& shape, const TensorOptions& options) {
  if (low >= high) {
    throw ValueError("randint", "low < high", std::to_string(low) + " and " + std::to_string(high));
  }
  TensorOptions integer = options;
  if (!integer.dtype) integer.dtype = DType::int64;
  if (*integer.dtype != DType::int64 && *integer.dtype != DType::int32) {
    throw DTypeError("randint", "int64 or int32", name(*integer.dtype));
  }
  constexpr int64_t least = std::numeric_limits<int32_t>::min();
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  if (*integer.dtype == DType::int32 && (low < least || high - 1 > most)) {
    throw ValueError("randint", "bounds that int32 holds",
                     std::to_string(low) + " and " + std::to_string(high));
  }
  Tensor y = empty(shape, integer);
  const bool wide = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) > uint64_t{1} << 32;
  const int64_t words = wide ? (y.numel() + 3) / 4 * 8 : y.numel();
  KernelContext context = kernel_context(y.device());
  kernels::random_integer(context, y.tensor_view(), next_philox(y.device(), words), low, high);
  return y;
}

}  // namespace sash
