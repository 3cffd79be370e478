#include "gradcheck.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <locale>
#include <numeric>
#include <sstream>
#include <utility>

#include "../../core/philox.h"
#include "../factories.h"
#include "grad_mode.h"

namespace sash {
namespace {

using Values = std::vector<double>;

// Deterministic numbers that leave the library's own generator alone.
class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}

  double uniform() { return uniform_from_bits<double>(philox(seed_, counter_++).lane[0]); }

  // Of either sign and away from zero, so that every entry counts.
  Values signs_and_sizes(int64_t count) {
    Values values(static_cast<size_t>(count));
    for (double& v : values) v = (uniform() < 0.5 ? -1.0 : 1.0) * (0.5 + uniform());
    return values;
  }

 private:
  uint64_t seed_;
  uint64_t counter_ = 0;
};

Tensor from_values(const Values& values, const Tensor& like) {
  return from_host(values.data(), like.shape(), DType::float64, {.device = like.device()});
}

// Offset in memory of the element with row-major number `flat`.
int64_t offset_of(int64_t flat, const Shape& shape, const Strides& strides) {
  int64_t offset = 0;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    offset += flat % shape[axis] * strides[axis];
    flat /= shape[axis];
  }
  return offset;
}

Dims index_of(int64_t flat, const Shape& shape) {
  Dims index = Dims::filled(shape.rank(), 0);
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    index[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return index;
}

// True for some layouts that do not overlap (interleaved ones): those are copied, which is safe.
bool may_overlap(const Shape& shape, const Strides& strides) {
  std::vector<std::pair<int64_t, int64_t>> axes;  // stride, extent
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] > 1) axes.emplace_back(strides[i], shape[i]);
  }
  std::sort(axes.begin(), axes.end());
  int64_t reach = 0;
  for (const auto& [stride, extent] : axes) {
    if (stride <= reach) return true;
    reach += stride * (extent - 1);
  }
  return false;
}

bool needs_copy(const Tensor& x) {
  return !x.device().is_cpu() || may_overlap(x.shape(), x.strides());
}

// Row-major element numbers and how far each moves.
using Direction = std::vector<std::pair<int64_t, double>>;

// Moves elements of a tensor in host memory for as long as it lives. They come back, so this is no
// write that saved tensors should notice.
class MovedInPlace {
 public:
  MovedInPlace(const Tensor& x, const Direction& u, double step) {
    auto* const memory = x.tensor_view().ptr<double>();
    for (const auto& [element, size] : u) {
      double* at = memory + offset_of(element, x.shape(), x.strides());
      before_.emplace_back(at, *at);
      *at += step * size;
    }
  }
  ~MovedInPlace() {
    for (const auto& [at, value] : before_) *at = value;
  }
  MovedInPlace(const MovedInPlace&) = delete;
  MovedInPlace& operator=(const MovedInPlace&) = delete;

 private:
  std::vector<std::pair<double*, double>> before_;
};

class Checker {
 public:
  Checker(const char* name, const GradcheckFunction& fn, const std::vector<Tensor>& inputs,
          const GradcheckOptions& options)
      : fn_(fn), inputs_(inputs), options_(options), draw_(options.seed) {
    report_.check = name;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
      require_float64("inputs", inputs[i]);
      wanted_.push_back(i);
    }
    if (wanted_.empty()) throw ValueError(name, "an input that requires grad", "none");
  }

  GradcheckReport run() {
    {
      const EnableGradGuard recording;
      outputs_ = fn_(inputs_);
    }
    for (const Tensor& y : outputs_) {
      if (y.defined() && is_floating(y.dtype())) require_float64("outputs", y);
    }
    for (size_t o = 0; o < outputs_.size() && report_.problem.empty(); ++o) {
      if (!outputs_[o].defined() || !is_floating(outputs_[o].dtype())) continue;
      if (options_.fast) {
        check_product(o);
      } else {
        check_jacobian(o);
      }
      if (options_.check_zero_cotangent) check_zero(o);
    }
    if (report_.wrong > 0) report_.problem = "analytical and numerical gradients differ";
    report_.ok = report_.problem.empty();
    return report_;
  }

 private:
  void require_float64(const std::string& what, const Tensor& x) const {
    if (x.dtype() == DType::float64) return;
    throw DTypeError(report_.check, "float64 " + what + " (differences need the precision)",
                     name(x.dtype()));
  }

  // v'J for each wanted input, from the recorded graph; zeros where the output does not depend.
  std::vector<Values> vector_jacobian(size_t output, const Values& v) {
    const Tensor& y = outputs_[output];
    std::vector<Tensor> wanted;
    for (const size_t i : wanted_) wanted.push_back(inputs_[i]);
    std::vector<Tensor> found(wanted.size());
    if (y.requires_grad()) {
      found = grad({y}, wanted, {from_values(v, y)}, {.retain_graph = true}, true);
    }
    std::vector<Values> rows;
    for (size_t i = 0; i < wanted.size(); ++i) {
      rows.push_back(found[i].defined() ? found[i].to_vector<double>()
                                        : Values(static_cast<size_t>(wanted[i].numel())));
    }
    return rows;
  }

  // The same twice, which must agree to the bit.
  std::vector<Values> analytical(size_t output, const Values& v) {
    std::vector<Values> rows = vector_jacobian(output, v);
    if (!options_.check_reentrant) return rows;
    const std::vector<Values> again = vector_jacobian(output, v);
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t bytes = rows[i].size() * sizeof(double);
      if (bytes > 0 && std::memcmp(rows[i].data(), again[i].data(), bytes) != 0) {
        report_.problem = "two backward passes gave different bits for the gradient of input " +
                          std::to_string(wanted_[i]);
      }
    }
    return rows;
  }

  void check_zero(size_t output) {
    const size_t count = static_cast<size_t>(outputs_[output].numel());
    for (const Values& row : vector_jacobian(output, Values(count))) {
      if (std::any_of(row.begin(), row.end(), [](double g) { return g != 0; })) {
        report_.problem =
            "a zero cotangent of output " + std::to_string(output) + " gave a gradient not zero";
      }
    }
  }

  // Elements of output `output` for the inputs with `replacement` as input `input`.
  Values evaluate(size_t output, size_t input, const Tensor& replacement) const {
    const NoGradGuard no_grad;
    std::vector<Tensor> inputs = inputs_;
    inputs[input] = replacement;
    return fn_(inputs).at(output).to_vector<double>();
  }

  // The same with input `input` moved by `step` in direction `u`.
  Values evaluate_moved(size_t output, size_t input, const Direction& u, double step) const {
    const Tensor& x = inputs_[input];
    if (needs_copy(x)) {
      Values moved = x.to_vector<double>();
      for (const auto& [element, size] : u) moved[static_cast<size_t>(element)] += step * size;
      Tensor copy = from_values(moved, x);
      copy.requires_grad_();
      return evaluate(output, input, copy);
    }
    const MovedInPlace moved(x, u, step);
    return evaluate(output, input, x);
  }

  // (f(x + eps u) - f(x - eps u)) / 2 eps.
  Values central_difference(size_t output, size_t input, const Direction& u) const {
    Values difference = evaluate_moved(output, input, u, options_.eps);
    const Values below = evaluate_moved(output, input, u, -options_.eps);
    for (size_t k = 0; k < difference.size(); ++k) {
      difference[k] = (difference[k] - below[k]) / (2 * options_.eps);
    }
    return difference;
  }

  void check_jacobian(size_t output) {
    const Tensor& y = outputs_[output];
    const auto count = static_cast<size_t>(y.numel());
    std::vector<std::vector<Values>> rows;  // [output element][wanted input]
    for (size_t k = 0; k < count; ++k) {
      Values one_hot(count);
      one_hot[k] = 1;
      rows.push_back(analytical(output, one_hot));
    }
    for (size_t w = 0; w < wanted_.size(); ++w) {
      const Tensor& x = inputs_[wanted_[w]];
      for (int64_t j = 0; j < x.numel(); ++j) {
        const Values column = central_difference(output, wanted_[w], {{j, 1.0}});
        for (size_t k = 0; k < count; ++k) {
          compare({static_cast<int>(output), static_cast<int>(wanted_[w]),
                   index_of(static_cast<int64_t>(k), y.shape()), index_of(j, x.shape()),
                   rows[k][w][static_cast<size_t>(j)], column[k]});
        }
      }
    }
  }

  void check_product(size_t output) {
    const Values v = draw_.signs_and_sizes(outputs_[output].numel());
    const std::vector<Values> rows = analytical(output, v);
    for (size_t w = 0; w < wanted_.size(); ++w) {
      const int64_t count = inputs_[wanted_[w]].numel();
      if (count == 0) continue;
      const Values sizes = draw_.signs_and_sizes(count);
      const double length =
          std::sqrt(std::inner_product(sizes.begin(), sizes.end(), sizes.begin(), 0.0));
      Direction u;
      double exact = 0;
      for (int64_t j = 0; j < count; ++j) {
        u.emplace_back(j, sizes[static_cast<size_t>(j)] / length);
        exact += rows[w][static_cast<size_t>(j)] * u.back().second;
      }
      const Values column = central_difference(output, wanted_[w], u);
      const double numerical = std::inner_product(v.begin(), v.end(), column.begin(), 0.0);
      compare({static_cast<int>(output), static_cast<int>(wanted_[w]), {}, {}, exact, numerical});
    }
  }

  void compare(GradcheckEntry entry) {
    const bool same = entry.analytical == entry.numerical;  // perhaps both infinite
    entry.difference = same ? 0 : std::abs(entry.analytical - entry.numerical);
    const double allowed = options_.atol + options_.rtol * std::abs(entry.numerical);
    const bool finite = std::isfinite(entry.difference);
    if (!finite || entry.difference > allowed) ++report_.wrong;
    double excess = finite ? entry.difference / allowed : std::numeric_limits<double>::infinity();
    if (same) excess = 0;
    if (report_.compared++ == 0 || excess > worst_excess_) {
      worst_excess_ = excess;
      report_.worst = std::move(entry);
    }
  }

  const GradcheckFunction& fn_;
  const std::vector<Tensor>& inputs_;
  const GradcheckOptions& options_;
  Draw draw_;
  std::vector<size_t> wanted_;
  std::vector<Tensor> outputs_;
  GradcheckReport report_;
  double worst_excess_ = 0;
};

void check_callable(const char* op, const GradcheckFunction& fn) {
  if (!fn) throw ValueError(op, "a function", "an empty one");
}

GradcheckFunction as_many(const std::function<Tensor(const std::vector<Tensor>&)>& fn) {
  if (!fn) return {};
  return [&fn](const std::vector<Tensor>& inputs) { return std::vector<Tensor>{fn(inputs)}; };
}

// The gradients, themselves recorded, of the inputs that require grad, contracted with the
// cotangents that follow the inputs in `all`.
std::vector<Tensor> recorded_gradients(const GradcheckFunction& fn, const std::vector<Tensor>& all,
                                       size_t input_count, const std::vector<size_t>& outputs) {
  const EnableGradGuard recording;
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(input_count);
  const std::vector<Tensor> inputs(all.begin(), middle);
  const std::vector<Tensor> cotangents(middle, all.end());
  const std::vector<Tensor> results = fn(inputs);
  std::vector<Tensor> chosen, wanted;
  for (const size_t o : outputs) chosen.push_back(results.at(o));
  for (const Tensor& x : inputs) {
    if (x.defined() && x.requires_grad()) wanted.push_back(x);
  }
  std::vector<Tensor> found = grad(chosen, wanted, cotangents, {.create_graph = true}, true);
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined()) found[i] = zeros_like(wanted[i]);
  }
  return found;
}

}  // namespace

std::string GradcheckReport::message() const {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text.precision(10);
  text << check << (ok ? " passed: " : " failed: " + problem + "; ") << compared << " compared, "
       << wrong << " beyond tolerance";
  if (compared == 0) return text.str();
  text << "\n  worst: output " << worst.output << " at " << to_string(worst.output_index)
       << ", input " << worst.input << " at " << to_string(worst.input_index) << "\n  analytical "
       << worst.analytical << ", numerical " << worst.numerical << ", difference "
       << worst.difference;
  return text.str();
}

const GradcheckReport& GradcheckReport::or_throw() const {
  if (!ok) throw AutogradError(check, message());
  return *this;
}

GradcheckReport gradcheck(const GradcheckFunction& fn, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options) {
  check_callable("gradcheck", fn);
  return Checker("gradcheck", fn, inputs, options).run();
}

GradcheckReport gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  return gradcheck(as_many(fn), inputs, options);
}

GradcheckReport gradgradcheck(const GradcheckFunction& fn, const std::vector<Tensor>& inputs,
                              const GradcheckOptions& options) {
  check_callable("gradgradcheck", fn);
  std::vector<Tensor> outputs;
  {
    const EnableGradGuard recording;
    outputs = fn(inputs);
  }
  Draw draw(options.seed + 1);
  std::vector<Tensor> all = inputs;
  std::vector<size_t> chosen;
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o].defined() || !outputs[o].requires_grad()) continue;
    if (outputs[o].dtype() != DType::float64) {
      throw DTypeError("gradgradcheck", "float64 outputs", name(outputs[o].dtype()));
    }
    chosen.push_back(o);
    all.push_back(from_values(draw.signs_and_sizes(outputs[o].numel()), outputs[o]));
    all.back().requires_grad_();
  }
  if (chosen.empty()) throw ValueError("gradgradcheck", "an output that requires grad", "none");
  const size_t input_count = inputs.size();
  const GradcheckFunction gradients = [&](const std::vector<Tensor>& given) {
    return recorded_gradients(fn, given, input_count, chosen);
  };
  return Checker("gradgradcheck", gradients, all, options).run();
}

GradcheckReport gradgradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                              const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  return gradgradcheck(as_many(fn), inputs, options);
}

}  // namespace sash
