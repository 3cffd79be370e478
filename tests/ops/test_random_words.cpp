// Random calls of words against PyTorch; parity/make_random_words.py made the file, and says how to
// make a larger one. SASH_RANDOM_WORDS names another file.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include <sash/sash.h>
#include <sash/tensor/io/safetensors.h>

#include "../support/devices.h"
#include "../support/op_inputs.h"

using namespace sash;
using namespace sash::testing;

namespace {

/// A line of the file: the word, and its options.
struct Call {
  std::string word;
  std::map<std::string, double> options;

  explicit Call(const std::string& line) {
    std::istringstream text(line);
    text >> word;
    for (std::string option; text >> option;) {
      const size_t sign = option.find('=');
      options[option.substr(0, sign)] = std::stod(option.substr(sign + 1));
    }
  }
  bool has(const std::string& name) const { return options.count(name) > 0; }
  double operator()(const std::string& name) const { return options.at(name); }
  int64_t whole(const std::string& name) const { return static_cast<int64_t>((*this)(name)); }
  bool flag(const std::string& name) const { return (*this)(name) != 0; }
  Scalar number() const {
    if (has("floating") && !flag("floating")) return whole("number");
    return (*this)("number");
  }
  /// Of none, mean and sum.
  Reduction reduction() const {
    constexpr Reduction order[] = {Reduction::none, Reduction::mean, Reduction::sum};
    return order[whole("reduction")];
  }
};

using X = const std::vector<Tensor>&;
using Run = std::function<Tensor(X, const Call&)>;

Tensor run_quantile(X x, const Call& o) {
  QuantileOptions options{.keepdim = o.flag("keepdim"),
                          .interpolation = static_cast<Interpolation>(o.whole("mode"))};
  if (o.has("axis")) options.axis = o.whole("axis");
  if (!o.flag("several")) return quantile(x[0], o("q0"), options);
  return quantile(x[0], std::vector<double>{o("q0"), o("q1"), o("q2")}, options);
}

Tensor run_interpolate(X x, const Call& o) {
  InterpolateOptions options{
      .mode = o.flag("bilinear") ? InterpolateMode::bilinear : InterpolateMode::nearest,
      .align_corners = o.flag("align")};
  if (o.has("factor")) {
    options.scale_factor = o("factor");
  } else {
    options.size = HeightWidth(o.whole("height"), o.whole("width"));
  }
  return interpolate(x[0], options);
}

Tensor run_conv_transpose(X x, const Call& o) {
  return conv_transpose2d(x[0], x[1], x[2],
                          {.stride = o.whole("stride"),
                           .padding = o.whole("padding"),
                           .output_padding = o.whole("more"),
                           .dilation = o.whole("dilation"),
                           .groups = o.whole("groups")});
}

CloseOptions close_options(const Call& o) { return {o("rtol"), o("atol"), o.flag("equal_nan")}; }

const std::map<std::string, Run> kWords{
    {"log2", [](X x, const Call&) { return log2(x[0]); }},
    {"isinf", [](X x, const Call&) { return isinf(x[0]); }},
    {"leaky_relu", [](X x, const Call& o) { return leaky_relu(x[0], o("number")); }},
    {"elu", [](X x, const Call& o) { return elu(x[0], o("number")); }},
    {"atan2", [](X x, const Call&) { return atan2(x[0], x[1]); }},
    {"add", [](X x, const Call& o) { return x.size() > 1 ? x[0] + x[1] : x[0] + o.number(); }},
    {"sub", [](X x, const Call& o) { return x.size() > 1 ? x[0] - x[1] : x[0] - o.number(); }},
    {"mul", [](X x, const Call& o) { return x.size() > 1 ? x[0] * x[1] : x[0] * o.number(); }},
    {"div", [](X x, const Call& o) { return x.size() > 1 ? x[0] / x[1] : x[0] / o.number(); }},
    {"eq", [](X x, const Call& o) { return x.size() > 1 ? x[0] == x[1] : x[0] == o.number(); }},
    {"lt", [](X x, const Call& o) { return x.size() > 1 ? x[0] < x[1] : x[0] < o.number(); }},
    {"ge", [](X x, const Call& o) { return x.size() > 1 ? x[0] >= x[1] : x[0] >= o.number(); }},
    {"pow", [](X x, const Call&) { return pow(x[0], x[1]); }},
    {"floor_divide", [](X x, const Call&) { return floor_divide(x[0], x[1]); }},
    {"remainder", [](X x, const Call&) { return remainder(x[0], x[1]); }},
    {"maximum", [](X x, const Call&) { return maximum(x[0], x[1]); }},
    {"minimum", [](X x, const Call&) { return minimum(x[0], x[1]); }},
    {"sum", [](X x, const Call& o) { return sum(x[0], o.whole("axis"), o.flag("keepdim")); }},
    {"prod", [](X x, const Call& o) { return prod(x[0], o.whole("axis"), o.flag("keepdim")); }},
    {"amax", [](X x, const Call& o) { return amax(x[0], o.whole("axis"), o.flag("keepdim")); }},
    {"amin", [](X x, const Call& o) { return amin(x[0], o.whole("axis"), o.flag("keepdim")); }},
    {"any", [](X x, const Call& o) { return any(x[0], o.whole("axis"), o.flag("keepdim")); }},
    {"all", [](X x, const Call& o) { return all(x[0], o.whole("axis"), o.flag("keepdim")); }},
    {"cumsum", [](X x, const Call& o) { return cumsum(x[0], o.whole("axis")); }},
    {"neg", [](X x, const Call&) { return neg(x[0]); }},
    {"abs", [](X x, const Call&) { return abs(x[0]); }},
    {"sign", [](X x, const Call&) { return sign(x[0]); }},
    {"square", [](X x, const Call&) { return square(x[0]); }},
    {"logical_not", [](X x, const Call&) { return logical_not(x[0]); }},
    {"cumprod", [](X x, const Call& o) { return cumprod(x[0], o.whole("axis")); }},
    {"median",
     [](X x, const Call& o) {
       const Chosen found = median(x[0], o.whole("axis"), o.flag("keepdim"));
       CHECK(found.indices.shape() == found.values.shape());
       return found.values;
     }},
    {"median_all", [](X x, const Call&) { return median(x[0]); }},
    {"quantile", run_quantile},
    {"bincount",
     [](X x, const Call& o) {
       return bincount(x[0], x.size() > 1 ? x[1] : Tensor(), o.whole("least"));
     }},
    {"isclose", [](X x, const Call& o) { return isclose(x[0], x[1], close_options(o)); }},
    {"allclose", [](X x, const Call& o) { return tensor(allclose(x[0], x[1], close_options(o))); }},
    {"diag", [](X x, const Call& o) { return diag(x[0], o.whole("diagonal")); }},
    {"outer", [](X x, const Call&) { return outer(x[0], x[1]); }},
    {"matmul", [](X x, const Call&) { return matmul(x[0], x[1]); }},
    {"cdist", [](X x, const Call& o) { return cdist(x[0], x[1], o("p")); }},
    {"normalize",
     [](X x, const Call& o) { return normalize(x[0], {.p = o("p"), .axis = o.whole("axis")}); }},
    {"masked_select", [](X x, const Call&) { return masked_select(x[0], x[1]); }},
    {"smooth_l1_loss",
     [](X x, const Call& o) {
       return smooth_l1_loss(x[0], x[1], {.beta = o("beta"), .reduction = o.reduction()});
     }},
    {"cross_entropy",
     [](X x, const Call& o) {
       CrossEntropyOptions options{
           .label_smoothing = o("smoothing"), .reduction = o.reduction(), .class_axis = 1};
       if (o.flag("weighted")) options.weight = x[2];
       return cross_entropy(x[0], x[1], options);
     }},
    {"group_norm",
     [](X x, const Call& o) { return group_norm(x[0], o.whole("groups"), x[1], x[2]); }},
    {"adaptive_avg_pool2d",
     [](X x, const Call& o) {
       return adaptive_avg_pool2d(x[0], {o.whole("height"), o.whole("width")});
     }},
    {"interpolate", run_interpolate},
    {"avg_pool2d",
     [](X x, const Call& o) {
       return avg_pool2d(x[0], o.whole("kernel"),
                         {.stride = HeightWidth(o.whole("stride")),
                          .padding = o.whole("padding"),
                          .count_include_pad = o.flag("count")});
     }},
    {"conv_transpose2d", run_conv_transpose},
};

double tolerance_of(DType dtype) {
  return dtype == DType::float64 ? 1e-9 : is_floating(dtype) ? 2e-5 : 0;
}

/// What is wrong with `found`, or nothing. Elements differ by at most the tolerance times the
/// larger of 1 and the expected one; NaN and infinities are equal.
std::string difference(const Tensor& found, const Tensor& expected, double tolerance) {
  if (found.dtype() != expected.dtype()) {
    return "dtype " + std::string(name(found.dtype())) + " for " +
           std::string(name(expected.dtype()));
  }
  if (found.shape() != expected.shape()) {
    return "shape " + to_string(found.shape()) + " for " + to_string(expected.shape());
  }
  const Array a = to_array(found.to(kCPU)), b = to_array(expected);
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double x = a.values[i], y = b.values[i];
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    if (std::abs(x - y) <= tolerance * std::max(1.0, std::abs(y))) continue;
    return "element " + std::to_string(i) + ": " + std::to_string(x) + " for " + std::to_string(y);
  }
  return "";
}

/// What is wrong with case `number` of the file, or nothing.
std::string check(const StateDict& file, const std::string& number, const Call& call,
                  Device device) {
  const auto given = [&](const std::string& part) { return find(file, number + "." + part); };
  std::vector<Tensor> inputs;
  for (int i = 0; const Tensor* x = given("x" + std::to_string(i)); ++i) {
    inputs.push_back(x->to(device).clone());
    if (given("d" + std::to_string(i))) inputs.back().requires_grad_();
  }
  const Run& run = kWords.at(call.word);
  if (call.has("refused")) {
    try {
      run(inputs, call);
    } catch (const Error&) {
      return "";
    }
    return "no error";
  }
  const Tensor y = run(inputs, call);
  std::string problem = difference(y, *given("y0"), tolerance_of(y.dtype()));
  const Tensor* g = given("g");
  if (!problem.empty() || !g) return problem;
  double tolerance = 0;  // of the least precise input
  for (const Tensor& x : inputs) tolerance = std::max(tolerance, tolerance_of(x.dtype()));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    const Tensor found = grad({y}, {inputs[i]}, {g->to(device)}, {.retain_graph = true})[0];
    problem = difference(found, *given("d" + std::to_string(i)), tolerance);
    if (!problem.empty()) return "gradient of x" + std::to_string(i) + ", " + problem;
  }
  return "";
}

}  // namespace

TEST_CASE_TEMPLATE("random words: results and gradients of PyTorch", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const char* const other = std::getenv("SASH_RANDOM_WORDS");
  const std::string path = other ? other : SASH_TEST_PARITY "/random_words.safetensors";
  const SafetensorsFile file = load_safetensors(path, kCPU);
  std::map<std::string, Tensor> tensors(file.tensors.begin(), file.tensors.end());
  std::istringstream lines(file.metadata.at("cases"));
  std::map<std::string, int> count;
  int number = 0;
  for (std::string line; std::getline(lines, line); ++number) {
    const Call call(line);
    REQUIRE(kWords.count(call.word));
    ++count[call.word];
    StateDict own;
    const std::string prefix = std::to_string(number) + ".";
    for (auto at = tensors.lower_bound(prefix);
         at != tensors.end() && at->first.starts_with(prefix); ++at) {
      own.push_back(*at);
    }
    std::string problem;
    try {
      problem = check(own, std::to_string(number), call, On::device);
    } catch (const Error& error) {
      problem = error.what();
    }
    if (problem.empty()) continue;
    std::string shapes;
    for (const auto& [key, x] : own) {
      shapes += " " + key + " " + std::string(name(x.dtype())) + to_string(x.shape());
    }
    FAIL_CHECK(number << ": " << line << ": " << problem << ";" << shapes);
  }
  CHECK(count.size() == kWords.size());
  MESSAGE(number << " cases of " << count.size() << " words");
}
