#include "rotary.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numbers>
#include <utility>

#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/unary.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../../tensor/graph.h"
#include "../check.h"

namespace sash::nn {
namespace {

constexpr const char* kFrequencies = "rotary_frequencies";

// Guards the members `table_` and `frequencies_` of all tables, because threads may share a module.
// It is not held while angles are computed.
constinit std::mutex table_mutex;

void check(const RotaryOptions& options, int64_t dim) {
  if (dim <= 0 || dim % 2 != 0) {
    throw ValueError(kFrequencies, "a positive, even number of features", std::to_string(dim));
  }
  if (!(options.theta > 0)) throw ValueError(kFrequencies, "theta > 0", to_text(options.theta));
  const RotaryScaling& scaling = options.scaling;
  const RotaryScalingKind kind = scaling.kind;
  if (!(scaling.factor > 0))
    throw ValueError(kFrequencies, "a factor > 0", to_text(scaling.factor));
  const bool counts = kind != RotaryScalingKind::none && kind != RotaryScalingKind::linear &&
                      kind != RotaryScalingKind::ntk;
  if (counts) check_positive(kFrequencies, "original_context", scaling.original_context);
  if (kind != RotaryScalingKind::longrope) return;
  for (const std::vector<double>* factors : {&scaling.short_factor, &scaling.long_factor}) {
    if (static_cast<int64_t>(factors->size()) == dim / 2) continue;
    throw ValueError(kFrequencies, std::to_string(dim / 2) + " factors for longrope",
                     std::to_string(factors->size()));
  }
}

double theta_of(const RotaryOptions& options, int64_t dim, int64_t length) {
  const RotaryScaling& scaling = options.scaling;
  double factor = 1;
  if (scaling.kind == RotaryScalingKind::ntk) factor = scaling.factor;
  if (scaling.kind == RotaryScalingKind::dynamic_ntk && length > scaling.original_context) {
    factor = scaling.factor * static_cast<double>(length) /
                 static_cast<double>(scaling.original_context) -
             (scaling.factor - 1);
  }
  if (factor == 1 || dim == 2) return options.theta;
  return options.theta * std::pow(factor, static_cast<double>(dim) / static_cast<double>(dim - 2));
}

double llama3(double frequency, const RotaryScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto context = static_cast<double>(scaling.original_context);
  if (wavelength < context / scaling.high_freq_factor) return frequency;
  if (wavelength > context / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth = (context / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

// Where YaRN's ramp begins and ends: the pair that turns `beta` times in the original context.
double yarn_pair(double beta, const RotaryOptions& options, int64_t dim) {
  const auto context = static_cast<double>(options.scaling.original_context);
  return static_cast<double>(dim) * std::log(context / (beta * 2 * std::numbers::pi)) /
         (2 * std::log(options.theta));
}

void apply_yarn(std::vector<double>& frequency, const RotaryOptions& options, int64_t dim) {
  const RotaryScaling& scaling = options.scaling;
  double low = yarn_pair(scaling.beta_fast, options, dim);
  double high = yarn_pair(scaling.beta_slow, options, dim);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequency.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequency[i] *= ramp / scaling.factor + (1 - ramp);
  }
}

double attention_factor(const RotaryScaling& scaling) {
  if (scaling.attention_factor) return *scaling.attention_factor;
  if (scaling.factor <= 1) return 1;
  if (scaling.kind == RotaryScalingKind::yarn) return 0.1 * std::log(scaling.factor) + 1;
  if (scaling.kind != RotaryScalingKind::longrope) return 1;
  return std::sqrt(1 + std::log(scaling.factor) /
                           std::log(static_cast<double>(scaling.original_context)));
}

RotaryAngles angles_of(const RotaryFrequencies& frequencies, int64_t positions, DType dtype,
                       Device device) {
  const NoGradGuard no_grad;
  const std::vector<double>& frequency = frequencies.frequency;
  std::vector<double> cos, sin;
  cos.reserve(static_cast<size_t>(positions) * frequency.size());
  sin.reserve(cos.capacity());
  const bool rounds = dtype == DType::float32;
  for (int64_t p = 0; p < positions; ++p) {
    for (const double f : frequency) {
      const double angle =
          rounds ? static_cast<float>(p) * static_cast<float>(f) : static_cast<double>(p) * f;
      cos.push_back(std::cos(angle) * frequencies.attention_factor);
      sin.push_back(std::sin(angle) * frequencies.attention_factor);
    }
  }
  const Shape shape{positions, static_cast<int64_t>(frequency.size())};
  const TensorOptions options{.dtype = dtype, .device = device};
  return {tensor(cos, shape, options), tensor(sin, shape, options)};
}

}  // namespace

RotaryFrequencies rotary_frequencies(const RotaryOptions& options, int64_t dim, int64_t length) {
  check(options, dim);
  const RotaryScaling& scaling = options.scaling;
  const double theta = theta_of(options, dim, length);
  std::vector<double> frequency(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < frequency.size(); ++i) {
    frequency[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
  }
  switch (scaling.kind) {
    case RotaryScalingKind::linear:
      for (double& f : frequency) f /= scaling.factor;
      break;
    case RotaryScalingKind::llama3:
      for (double& f : frequency) f = llama3(f, scaling);
      break;
    case RotaryScalingKind::yarn:
      apply_yarn(frequency, options, dim);
      break;
    case RotaryScalingKind::longrope: {
      const bool longer = length > scaling.original_context;
      const std::vector<double>& factors = longer ? scaling.long_factor : scaling.short_factor;
      for (size_t i = 0; i < frequency.size(); ++i) frequency[i] /= factors[i];
      break;
    }
    default:
      break;
  }
  return {std::move(frequency), attention_factor(scaling)};
}

RotaryTable::RotaryTable(const RotaryOptions& options, int64_t head_dim)
    : options_(options),
      dim_(options.dim > 0 ? options.dim : head_dim),
      frequencies_(rotary_frequencies(options, dim_)) {
  if (dim_ <= head_dim) return;
  throw ValueError("RotaryTable", "at most the " + std::to_string(head_dim) + " features of a head",
                   std::to_string(dim_));
}

bool RotaryTable::depends_on_length() const {
  const RotaryScalingKind kind = options_.scaling.kind;
  return kind == RotaryScalingKind::dynamic_ntk || kind == RotaryScalingKind::longrope;
}

RotaryAngles RotaryTable::angles(int64_t first, int64_t count, DType dtype, Device device) {
  const DType wanted = dtype == DType::float64 ? dtype : DType::float32;
  const int64_t length = first + count;
  std::unique_lock lock(table_mutex);
  RotaryFrequencies now =
      depends_on_length() ? rotary_frequencies(options_, dim_, length) : frequencies_;
  const bool same = now.frequency == frequencies_.frequency;
  RotaryAngles made = table_;
  lock.unlock();
  const int64_t before = made.cos.defined() ? made.cos.size(0) : 0;
  if (!made.cos.defined() || !same || before < length || made.cos.dtype() != wanted ||
      made.cos.device() != device) {
    made = angles_of(now, length <= before ? before : std::max<int64_t>({length, 2 * before, 64}),
                     wanted, device);
    lock.lock();
    std::swap(frequencies_, now);
    RotaryAngles old = std::exchange(table_, made);
    lock.unlock();
  }
  // A longer text replaces the table.
  sash::detail::keep_for_replays(made.cos);
  sash::detail::keep_for_replays(made.sin);
  return {made.cos.narrow(0, first, count), made.sin.narrow(0, first, count)};
}

RotaryAngles RotaryTable::angles(const Tensor& positions, DType dtype) {
  const NoGradGuard no_grad;
  const TensorOptions options{.dtype = dtype == DType::float64 ? dtype : DType::float32,
                              .device = positions.device()};
  const bool reads = depends_on_length() && positions.numel() > 0;
  const RotaryFrequencies now =
      rotary_frequencies(options_, dim_, reads ? positions.max().item<int64_t>() + 1 : 0);
  std::unique_lock lock(table_mutex);
  Tensor frequency = on_device_;
  lock.unlock();
  const bool fits = !reads && frequency.defined() && frequency.dtype() == *options.dtype &&
                    frequency.device() == positions.device();
  if (!fits) {
    frequency = tensor(now.frequency, {std::ssize(now.frequency)}, options);
    lock.lock();
    on_device_ = frequency;
    lock.unlock();
  }
  sash::detail::keep_for_replays(frequency);
  const Tensor angle = (positions.to(*options.dtype).unsqueeze(-1) * frequency).to(DType::float64);
  return {(cos(angle) * now.attention_factor).to(*options.dtype),
          (sin(angle) * now.attention_factor).to(*options.dtype)};
}

}  // namespace sash::nn
