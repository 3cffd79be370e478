#include "random.h"

#include <limits>
#include <optional>
#include <utility>

#include "../core/backend/backend.h"
#include "../core/error.h"
#include "draws.h"
#include "factories.h"
#include "graph.h"
#include "kernels/random.h"
#include "run_kernel.h"

namespace sash {

namespace kernels {
constinit decltype(random_uniform) random_uniform{"random_uniform"};
constinit decltype(random_normal) random_normal{"random_normal"};
constinit decltype(random_truncated_normal) random_truncated_normal{"random_truncated_normal"};
constinit decltype(random_integer) random_integer{"random_integer"};
}  // namespace kernels

namespace {

constinit thread_local detail::Generators* own_generators = nullptr;
constinit thread_local const std::shared_ptr<detail::GeneratorState>* guarded = nullptr;
constinit thread_local detail::NotedDraws* noted = nullptr;
constinit thread_local detail::RepeatedDraws* repeated = nullptr;

// Where `count` numbers start that are drawn from `own`, or else from what the thread draws from.
PhiloxState draw(Device device, int64_t count,
                 const std::shared_ptr<detail::GeneratorState>* own = nullptr) {
  // Eager calls pass their whole offset by value, and the word they point to stays zero. A graph
  // has words of its own.
  const uint64_t* const base = backend(device.type).random_base(device);
  const std::shared_ptr<detail::GeneratorState>* const generator = own ? own : guarded;
  const detail::Draw next = [&]() -> detail::Draw {
    if (repeated) return repeated->next();
    const uint64_t blocks = (static_cast<uint64_t>(count) + 3) / 4;
    const uint64_t recording = detail::recording_number();
    if (!generator) {
      return {*detail::thread_generators().reserve(device, blocks), nullptr, recording};
    }
    detail::note_generator(*generator);
    RandomState& state = (*generator)->state;
    const RandomState start = state;
    state.offset += blocks;
    return {start, generator->get(), recording};
  }();
  if (noted) noted->add(next);
  return detail::place_in_graph(device, base, next);
}

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
  run_kernel(kernel, y, draw(own, y, y.numel()), 0, 1);
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
  run_kernel(kernels::random_integer, y, draw(own, y, words), low, high);
  return y;
}

}  // namespace

void manual_seed(uint64_t seed) {
  detail::refuse_in_graph("manual_seed", "no new seed", "one");
  set_random_states({.others = {seed, 0}});
}

RandomState random_state(Device device) { return detail::thread_generators().state(device); }

void set_random_state(RandomState state, Device device) {
  detail::refuse_in_graph("set_random_state", "no new state", "one");
  detail::thread_generators().set_state(device, state);
}

RandomStates random_states() { return detail::thread_generators().states(); }

void set_random_states(const RandomStates& states) {
  detail::refuse_in_graph("set_random_states", "no new states", "some");
  detail::thread_generators().set_states(states);
}

PhiloxState next_philox(Device device, int64_t count) { return draw(device, count); }

namespace detail {

const GeneratorState* guarded_generator() { return guarded ? guarded->get() : nullptr; }

Generators& thread_generators() { return own_generators ? *own_generators : generators(); }

OwnGenerators::OwnGenerators(const RandomStates& start) : outer_(own_generators) {
  states_.set_states(start);
  own_generators = &states_;
}
OwnGenerators::~OwnGenerators() { own_generators = outer_; }

DrawsPlace place_of_draws() {
  DrawsPlace place{.states = random_states()};
  if (guarded) place.guarded = (*guarded)->state;
  return place;
}

void go_back(const DrawsPlace& place, Device device) {
  if (!place.guarded) return set_random_state(place.states.of(device), device);
  if (guarded) (*guarded)->state = *place.guarded;
}

struct PrivateDraws::State {
  explicit State(const DrawsPlace& place) : generators(place.states) {
    if (!place.guarded) return;
    generator.emplace(*place.guarded);
    guard.emplace(*generator);
  }

  OwnGenerators generators;
  std::optional<Generator> generator;
  std::optional<GeneratorGuard> guard;
};

PrivateDraws::PrivateDraws() : PrivateDraws(place_of_draws()) {}
PrivateDraws::PrivateDraws(const DrawsPlace& place) : state_(std::make_unique<State>(place)) {}
PrivateDraws::~PrivateDraws() = default;

NotedDraws::NotedDraws(Draws& draws) : draws_(draws), outer_(std::exchange(noted, this)) {}
NotedDraws::~NotedDraws() { noted = outer_; }

void NotedDraws::add(const Draw& draw) {
  draws_.push_back(draw);
  if (outer_) outer_->add(draw);
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

Draw RepeatedDraws::next() {
  if (used_ == draws_.size()) {
    throw AutogradError(op_, "a second run like the first", "one that draws more random numbers");
  }
  const Draw& draw = draws_[used_++];
  if (draw.recording == recording_number()) return draw;
  throw AutogradError(op_, "a backward pass where the forward pass ran", "one in another graph");
}

void RepeatedDraws::check_all_used() const {
  if (used_ == draws_.size()) return;
  throw AutogradError(op_, "a second run like the first", "one that draws fewer random numbers");
}

}  // namespace detail

Generator::Generator(RandomState state)
    : state_(std::make_shared<detail::GeneratorState>(
          detail::GeneratorState{state, detail::recording_number()})) {}

Generator& Generator::operator=(const Generator& other) {
  set_state(other.state());
  return *this;
}

RandomState Generator::state() const { return state_->state; }

void Generator::set_state(RandomState state) {
  detail::refuse_in_graph("Generator", "no new state", "one");
  state_->state = state;
}

PhiloxState Generator::next(Device device, int64_t count) { return draw(device, count, &state_); }

GeneratorGuard::GeneratorGuard(Generator& generator)
    : state_(generator.state_), outer_(std::exchange(guarded, &state_)) {}
GeneratorGuard::~GeneratorGuard() { guarded = outer_; }

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
