// Times the gated delta rule after checking it; one line of JSON per case. Decays are for each head
// (Gated DeltaNet) or for each feature (Kimi Delta Attention). On CUDA, calls are captured.

#include <sash/ops/attention/recurrent/gated_delta_rule.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "bench.h"

using sash::DType;
using sash::Tensor;

namespace {

constexpr int kCalls = 5;

struct Case {
  bool features;
  int64_t heads, length, dim;

  std::string name() const {
    return std::string(features ? "kda" : "gated_delta") + "_h" + std::to_string(heads) + "_s" +
           std::to_string(length) + "_d" + std::to_string(dim);
  }
};

std::vector<Case> cases(sash::Device device, const sash::TensorOptions&) {
  std::vector<Case> all;
  for (const bool features : {false, true}) {
    if (device.is_cpu()) {
      all.push_back({features, 4, 2048, 64});
      continue;
    }
    for (const int64_t length : {4096, 16384, 65536}) all.push_back({features, 16, length, 128});
    all.push_back({features, 16, 16384, 64});
    for (const int64_t heads : {64, 128}) all.push_back({features, heads, 4096, 128});
  }
  return all;
}

struct Inputs {
  Inputs(const Case& setup, int64_t heads, int64_t length, sash::TensorOptions options) {
    const auto make = [&](const sash::Shape& shape) { return sash::randn(shape, options); };
    sash::TensorOptions floats = options;
    floats.dtype = DType::float32;
    const sash::Shape rows{1, heads, length, setup.dim}, tokens{1, heads, length};
    const Tensor k = make(rows);
    const Tensor norm = sqrt(sum(k * k, {3}, true));
    // As layers begin: gates of logsigmoid(x) / 16, betas in (0.5, 0.75).
    const Tensor g = softplus(sash::randn(setup.features ? rows : tokens, floats)) * (-1.0 / 16);
    const Tensor beta = sigmoid(sash::rand(tokens, floats));
    x = {make(rows), k / norm, make(rows), g, beta};
    for (Tensor& t : x) t = t.detach().requires_grad_();
    g_out = make(rows);
  }

  Inputs to(DType dtype) const {
    Inputs moved = *this;
    for (Tensor& t : moved.x) t = t.detach().to(dtype).requires_grad_();
    moved.g_out = g_out.to(dtype);
    return moved;
  }
  Tensor forward(bool composite = false) const {
    const sash::RecurrentOptions options{.g = x[3]};
    return (composite ? sash::composite::gated_delta_rule : sash::gated_delta_rule)(
               x[0], x[1], x[2], x[4], options)
        .out;
  }
  std::vector<Tensor> both(bool composite = false) const {
    return sash::grad({forward(composite)}, x, {g_out});
  }

  std::vector<Tensor> x;
  Tensor g_out;
};

/// A short call against float64, by the norm of the difference.
void check(const Case& setup, sash::TensorOptions options) {
  const Inputs inputs(setup, 2, 300, options), exact = inputs.to(DType::float64);
  std::vector<Tensor> found = inputs.both(), wanted = exact.both(true);
  found.push_back(inputs.forward());
  wanted.push_back(exact.forward(true));
  const double tolerance = is_half(*options.dtype) ? 2e-2 : 1e-5;
  for (size_t i = 0; i < found.size(); ++i) {
    const Tensor difference = found[i].to(DType::float64) - wanted[i];
    const Tensor error = sqrt(sum(difference * difference) / sum(wanted[i] * wanted[i]));
    sash::bench::check_close(setup.name(), error, zeros_like(error), tolerance);
  }
}

void time(const Case& setup, sash::Device device, sash::TensorOptions options) {
  using sash::bench::rounded;
  const Inputs inputs(setup, setup.heads, setup.length, options);
  const auto forward = [&] {
    const sash::NoGradGuard no_grad;
    inputs.forward();
  };
  const double peak = sash::bench::peak_mb(device, [&] { inputs.both(); });
  const auto ms = [&](const auto& call) {
    return device.is_cpu() ? sash::bench::median_ms(device, kCalls, call)
                           : sash::bench::graph_ms(device, call);
  };
  const double inference = ms(forward), training = ms([&] { inputs.forward(); });
  const double both = ms([&] { inputs.both(); });
  sash::bench::print({{"kind", "recurrent"},
                      {"case", setup.name()},
                      {"dtype", sash::name(*options.dtype)},
                      {"inference_ms", rounded(inference, 4)},
                      {"fwd_ms", rounded(training, 4)},
                      {"bwd_ms", rounded(both - training, 4)},
                      {"peak_mb", peak}});
}

}  // namespace

int main(int argc, char** argv) {
  return sash::bench::run_cases(
      "Times the gated delta rule", argc, argv, cases,
      [](const Case& setup, sash::Device device, const sash::TensorOptions& options) {
        check(setup, options);
        time(setup, device, options);
      });
}
