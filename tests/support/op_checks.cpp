#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/autograd/gradcheck.h>
#include <sash/tensor/factories.h>

#include "op_inputs.h"
#include "op_table.h"
#include "random_numbers.h"

namespace sash::testing {
namespace {

// Full Jacobians up to this many elements of inputs and results together.
constexpr int64_t kFullJacobian = 96;
constexpr int64_t kFullSecond = 48;

bool close(double actual, double expected, double tolerance) {
  if (std::isnan(expected)) return std::isnan(actual);
  if (std::isinf(expected)) return actual == expected;
  return std::abs(actual - expected) <= tolerance * std::max(1.0, std::abs(expected));
}

std::string compare(const std::string& what, const Array& actual, const Array& expected,
                    double tolerance) {
  std::ostringstream text;
  text.precision(12);
  if (actual.shape != expected.shape) {
    text << what << ": expected shape " << to_string(expected.shape) << ", got "
         << to_string(actual.shape);
    return text.str();
  }
  int64_t wrong = 0;
  double worst = -1;
  size_t next = 0;
  for_each_index(expected.shape, [&](const Index& index) {
    const double a = actual.values[next], e = expected.values[next];
    ++next;
    if (close(a, e, tolerance)) return;
    ++wrong;
    const double error = std::isnan(a - e) ? HUGE_VAL : std::abs(a - e);
    if (error <= worst) return;
    worst = error;
    text.str("");
    text << what << " at " << to_string(index) << ": expected " << e << ", got " << a;
  });
  if (wrong > 0) text << " (" << wrong << " of " << expected.values.size() << " are wrong)";
  return text.str();
}

double tolerance_of(const OpCase& op_case, DType dtype) {
  return dtype == DType::float32 ? op_case.tolerance32 : op_case.tolerance64;
}

std::string numbered(const char* what, size_t i) { return std::string(what) + std::to_string(i); }

Arrays random_gradients(const OpCase& op_case, DType dtype, Device device) {
  RandomNumbers random(7);
  return gradients_of(op_case, input_values(op_case, dtype), dtype, device,
                      [&] { return static_cast<float>(2 * random.uniform() - 1); });
}

std::string compare_gradients(const Arrays& actual, const Arrays& expected, double tolerance) {
  for (size_t i = 0; i < expected.size(); ++i) {
    std::string problem = compare(numbered("gradient of differentiable input ", i), actual[i],
                                  expected[i], tolerance);
    if (!problem.empty()) return problem;
  }
  return {};
}

bool has_gradients(const OpCase& op_case) { return op_case.differentiable && !op_case.timed; }

}  // namespace

std::string check_forward(const OpCase& op_case, DType dtype, Device device) {
  const std::vector<GuardedInput> inputs = make_inputs(op_case, dtype, device);
  const Several<Tensor> results = op_case.run(tensors(inputs));
  const Several<Array> expected = op_case.reference(input_values(op_case, dtype));
  if (results.size() != expected.size()) return "wrong number of results";
  for (size_t i = 0; i < results.size(); ++i) {
    const DType result = op_case.results.empty() ? dtype : op_case.results.at(i);
    if (results[i].dtype() != result) {
      return numbered("result ", i) + ": expected " + std::string(name(result)) + ", got " +
             std::string(name(results[i].dtype()));
    }
    std::string problem = compare(numbered("result ", i), to_array(results[i]), expected[i],
                                  tolerance_of(op_case, dtype));
    if (!problem.empty()) return problem;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].intact()) return numbered("memory in or around input ", i) + " was written";
  }
  return {};
}

std::string check_gradients(const OpCase& op_case, Device device) {
  if (!has_gradients(op_case)) return {};
  const std::vector<GuardedInput> inputs = make_inputs(op_case, DType::float64, device);
  const GradcheckFunction fn = [&](const Tensors& given) -> Tensors { return op_case.run(given); };
  const Tensors given = tensors(inputs);
  int64_t size = 0;
  for (const Tensor& x : given) size += x.requires_grad() ? x.numel() : 0;
  for (const Tensor& y : fn(given)) size += y.numel();
  const bool short_tests = std::getenv("SASH_SHORT_TESTS") != nullptr;
  const bool fast = op_case.fast_checks || short_tests;
  const GradcheckReport first = gradcheck(fn, given, {.fast = fast || size > kFullJacobian});
  if (!first) return first.message();
  // Second derivatives take most of the time; short tests check those of a quarter of the cases.
  const bool twice = !short_tests || std::hash<std::string>()(op_case.name()) % 4 == 0;
  if (op_case.twice_differentiable && twice) {
    const GradcheckReport second = gradgradcheck(fn, given, {.fast = fast || size > kFullSecond});
    if (!second) return second.message();
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].intact()) return numbered("memory in or around input ", i) + " was written";
  }
  return {};
}

std::string check_float32_gradients(const OpCase& op_case, Device device) {
  if (!has_gradients(op_case)) return {};
  return compare_gradients(random_gradients(op_case, DType::float32, device),
                           random_gradients(op_case, DType::float64, device), op_case.gradient32);
}

std::string check_results_against_cpu(const OpCase& op_case, DType dtype, Device device) {
  const NoGradGuard no_grad;
  const Several<Tensor> ours = op_case.run(tensors(make_inputs(op_case, dtype, kCPU)));
  const Several<Tensor> theirs = op_case.run(tensors(make_inputs(op_case, dtype, device)));
  for (size_t i = 0; i < ours.size(); ++i) {
    std::string problem = compare(numbered("result ", i), to_array(theirs[i]), to_array(ours[i]),
                                  tolerance_of(op_case, dtype));
    if (!problem.empty()) return problem;
  }
  return {};
}

std::string check_gradients_against_cpu(const OpCase& op_case, DType dtype, Device device) {
  if (!has_gradients(op_case)) return {};
  const double tolerance = dtype == DType::float32 ? op_case.gradient32 : 10 * op_case.tolerance64;
  return compare_gradients(random_gradients(op_case, dtype, device),
                           random_gradients(op_case, dtype, kCPU), tolerance);
}

UnsupportedList::UnsupportedList(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw IoError("unsupported_list", "a readable file", path);
  for (std::string line; std::getline(file, line);) {
    line = line.substr(0, line.find('#'));
    line.erase(line.find_last_not_of(' ') + 1);
    if (!line.empty()) lines_.push_back(line);
  }
}

bool UnsupportedList::contains(DeviceType type, const std::string& use,
                               const OpCase& op_case) const {
  const std::string start = std::string(name(type)) + " " + use + " ";
  for (const std::string& line : lines_) {
    if (line == start + op_case.op || line == start + op_case.name()) return true;
  }
  return false;
}

namespace {

using BackendCheck = std::string (*)(const OpCase&, DType, Device);

// Checks all cases of the table for one use, op by op.
class BackendRun {
 public:
  BackendRun(Device device, const UnsupportedList& unsupported)
      : device_(device), unsupported_(unsupported) {}

  void check(const std::string& use, const OpCase& op_case, DType dtype, BackendCheck run) {
    const bool listed = unsupported_.contains(device_.type, use, op_case);
    bool has_kernels = true;
    std::string problem;
    try {
      problem = run(op_case, dtype, device_);
    } catch (const NotImplemented& error) {
      has_kernels = false;
      problem = error.what();
    } catch (const std::exception& error) {
      problem = error.what();
    }
    ++(listed ? tally_.skipped : tally_.run);
    if (listed) problem = problem.empty() ? "works, but is listed as unsupported" : "";
    if (!problem.empty()) {
      tally_.problems.push_back(op_case.name() + ", " + use + " " + std::string(name(dtype)) +
                                ": " + problem);
    }
    Pairs& pairs = pairs_[std::string(name(device_.type)) + " " + use + " " + op_case.op];
    ++pairs.count;
    if (has_kernels || listed) return;
    ++pairs.missing;
    if (pairs.variants.empty() || pairs.variants.back() != op_case.variant) {
      pairs.variants.push_back(op_case.variant);
    }
  }

  // One line for an op of which nothing works, else one for each case.
  BackendTally finish() {
    for (const auto& [line, pairs] : pairs_) {
      if (pairs.missing > 0 && pairs.missing == pairs.count) {
        tally_.missing.push_back(line);
        continue;
      }
      for (const std::string& variant : pairs.variants) {
        tally_.missing.push_back(line + "/" + variant);
      }
    }
    return std::move(tally_);
  }

 private:
  struct Pairs {
    int64_t count = 0;
    int64_t missing = 0;
    std::vector<std::string> variants;
  };

  Device device_;
  const UnsupportedList& unsupported_;
  BackendTally tally_;
  std::map<std::string, Pairs> pairs_;
};

}  // namespace

BackendTally check_backend(Device device, const UnsupportedList& unsupported, Share share) {
  BackendRun run(device, unsupported);
  int64_t count = 0;
  for (const OpCase& op_case : op_table()) {
    if (op_case.timed || !share.has(count++)) continue;
    for (const DType dtype : op_case.dtypes) {
      run.check("forward", op_case, dtype, check_results_against_cpu);
      if (is_floating(dtype) && has_gradients(op_case)) {
        run.check("gradient", op_case, dtype, check_gradients_against_cpu);
      }
    }
  }
  return run.finish();
}

BackendTally check_halves(Device device, const UnsupportedList& unsupported, Share share) {
  BackendRun run(device, unsupported);
  int64_t count = 0;
  for (const OpCase& op_case : op_table()) {
    const auto has = [&](DType dtype) {
      return std::find(op_case.dtypes.begin(), op_case.dtypes.end(), dtype) != op_case.dtypes.end();
    };
    if (op_case.timed || !has(DType::float32) || !has(DType::float64)) continue;
    if (!share.has(count++)) continue;
    for (const DType half : {DType::float16, DType::bfloat16}) {
      run.check("half forward", op_case, half, check_half_results);
      if (has_gradients(op_case)) run.check("half gradient", op_case, half, check_half_gradients);
    }
  }
  return run.finish();
}

Tensors timing_inputs(const OpCase& op_case, DType dtype, Device device) {
  return tensors(make_inputs(op_case, dtype, device));
}

}  // namespace sash::testing
