#include "random.h"

#include <limits>
#include <mutex>
#include <utility>

#include "../core/backend/backend.h"
#include "../core/error.h"
#include "draws.h"
#include "factories.h"
#include "graph.h"
#include "kernels/random.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, PhiloxState, double, double)>
    random_uniform{"random_uniform"};
constinit Kernel<void(KernelContext&, const TensorView&, PhiloxState, double, double)>
    random_normal{"random_normal"};
constinit Kernel<void(KernelContext&, const TensorView&, PhiloxState, const TruncatedNormal&)>
    random_truncated_normal{"random_truncated_normal"};
constinit Kernel<void(KernelContext&, const TensorView&, PhiloxState, int64_t, int64_t)>
    random_integer{"random_integer"};
}  // namespace kernels

namespace {

constinit std::mutex generator_mutex;
constinit RandomState process_state{};
constinit thread_local detail::OwnDraws* own_draws = nullptr;
constinit thread_local detail::NotedDraws* noted = nullptr;
constinit thread_local detail::RepeatedDraws* repeated = nullptr;

// The state before `count` numbers are drawn from it.
RandomState take(RandomState& state, int64_t count) {
  const RandomState before = state;
  state.offset += (static_cast<uint64_t>(count) + 3) / 4;
  return before;
}

// Where the numbers of `y` start.
PhiloxState draw(Generator* own, const Tensor& y, int64_t count) {
  return own ? own->next(y.device(), count) : next_philox(y.device(), count);
}

using RealKernel = Kernel<void(KernelContext&, const TensorView&, PhiloxState, double, double)>;

// A wrong dtype must not use up random numbers.
Tensor real(const char* op, const RealKernel& kernel, const Shape& shape, Generator* own,
            const TensorOptions& options) {
  const DType dtype = options.dtype.value_or(default_dtype());
  if (!is_floating(dtype)) throw DTypeError(op, "a floating dtype", name(dtype));
  Tensor y = empty(shape, options);
  KernelContext context = kernel_context(y.device());
  kernel(context, y.tensor_view(), draw(own, y, y.numel()), 0, 1);
  return y;
}

Tensor integers(int64_t low, int64_t high, const Shape& shape, Generator* own,
                const TensorOptions& options) {
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
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  const bool wide = range > kernels::kNarrowRange;
  const int64_t words = wide ? (y.numel() + 3) / 4 * 8 : y.numel();
  KernelContext context = kernel_context(y.device());
  kernels::random_integer(context, y.tensor_view(), draw(own, y, words), low, high);
  return y;
}

}  // namespace

void manual_seed(uint64_t seed) {
  detail::refuse_in_graph("manual_seed", "no new seed", "one");
  set_random_state({seed, 0});
}

RandomState random_state() {
  const std::lock_guard lock(generator_mutex);
  return process_state;
}

void set_random_state(RandomState state) {
  const std::lock_guard lock(generator_mutex);
  process_state = state;
}

PhiloxState next_philox(Device device, int64_t count) {
  // Eager calls pass their whole offset by value, and the word they point to stays zero. A graph
  // has a word of its own.
  const uint64_t* const base = backend(device.type).random_base(device);
  const RandomState next = [count] {
    if (repeated) return repeated->next();
    if (own_draws) return own_draws->next(count);
    const std::lock_guard lock(generator_mutex);
    return take(process_state, count);
  }();
  if (noted) noted->add(next);
  return detail::place_in_graph(device, {next.seed, base, next.offset});
}

namespace detail {

OwnDraws::OwnDraws(RandomState start) : state_(start), outer_(std::exchange(own_draws, this)) {}
OwnDraws::~OwnDraws() { own_draws = outer_; }

RandomState OwnDraws::next(int64_t count) { return take(state_, count); }

NotedDraws::NotedDraws(Draws& draws) : draws_(draws), outer_(std::exchange(noted, this)) {}
NotedDraws::~NotedDraws() { noted = outer_; }

void NotedDraws::add(const RandomState& state) {
  draws_.push_back(state);
  if (outer_) outer_->add(state);
}

RepeatedDraws::RepeatedDraws(const char* op, const Draws& draws)
    : op_(op),
      draws_(draws),
      outer_(std::exchange(repeated, this)),
      noted_(std::exchange(noted, nullptr)) {}
RepeatedDraws::~RepeatedDraws() {
  repeated = outer_;
  noted = noted_;
}

RandomState RepeatedDraws::next() {
  if (used_ < draws_.size()) return draws_[used_++];
  throw AutogradError(op_, "a second run like the first", "one that draws more random numbers");
}

void RepeatedDraws::check_all_used() const {
  if (used_ == draws_.size()) return;
  throw AutogradError(op_, "a second run like the first", "one that draws fewer random numbers");
}

}  // namespace detail

PhiloxState Generator::next(Device device, int64_t count) {
  detail::refuse_in_graph("Generator", "the generator of manual_seed", "one of the caller's");
  const RandomState next = take(state_, count);
  return {next.seed, backend(device.type).random_base(device), next.offset};
}

Tensor rand(const Shape& shape, const TensorOptions& options) {
  return real("rand", kernels::random_uniform, shape, nullptr, options);
}
Tensor rand(const Shape& shape, Generator& generator, const TensorOptions& options) {
  return real("rand", kernels::random_uniform, shape, &generator, options);
}
Tensor randn(const Shape& shape, const TensorOptions& options) {
  return real("randn", kernels::random_normal, shape, nullptr, options);
}
Tensor randn(const Shape& shape, Generator& generator, const TensorOptions& options) {
  return real("randn", kernels::random_normal, shape, &generator, options);
}
Tensor rand_like(const Tensor& like) { return rand(like.shape(), like.options()); }
Tensor randn_like(const Tensor& like) { return randn(like.shape(), like.options()); }

Tensor randint(int64_t low, int64_t high, const Shape& shape, const TensorOptions& options) {
  return integers(low, high, shape, nullptr, options);
}
Tensor randint(int64_t low, int64_t high, const Shape& shape, Generator& generator,
               const TensorOptions& options) {
  return integers(low, high, shape, &generator, options);
}

}  // namespace sash
