// Times linear attention after checking it; one line of JSON per case. GB/s count each tensor of a
// pass once: q, k, v and o forward; with the backward pass also q, k, v, o, g, dq, dk and dv.

#include <sash/ops/attention/approximate/linear_attention.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "bench.h"

using sash::DType;
using sash::Tensor;

namespace {

constexpr int kCalls = 5;

struct Case {
  int64_t batch, heads, length, dim;
  bool causal;
  DType dtype;

  std::string name() const {
    return "B" + std::to_string(batch) + "H" + std::to_string(heads) + "S" +
           std::to_string(length) + "D" + std::to_string(dim) + (causal ? "causal" : "");
  }
};

std::vector<Case> cases(sash::Device device, const sash::TensorOptions& options) {
  const DType dtype = *options.dtype;
  std::vector<Case> all;
  for (const bool causal : {true, false}) {
    if (device.is_cpu()) {
      for (const int64_t length : {2048, 8192}) all.push_back({1, 8, length, 64, causal, dtype});
      continue;
    }
    for (const int64_t dim : {64, 128}) {
      for (const int64_t length : {16384, 65536})
        all.push_back({1, 16, length, dim, causal, dtype});
      for (const int64_t length : {2048, 4096, 8192, 16384}) {
        all.push_back({4, 16, length, dim, causal, dtype});
      }
    }
  }
  return all;
}

class Run {
 public:
  Run(const Case& setup, sash::Device device)
      : setup_(setup), device_(device), options_{.causal = setup.causal} {
    sash::manual_seed(0);
    for (Tensor* x : {&q_, &k_, &v_, &g_}) *x = variable(setup.batch, setup.heads, setup.length);
  }

  /// A short call of the same kind against float64.
  void check() const {
    std::vector<Tensor> x, exact;
    for (int i = 0; i < 4; ++i) {
      x.push_back(variable(1, 2, std::min<int64_t>(setup_.length, 1000)));
      exact.push_back(x.back().detach().to(DType::float64));
      exact.back().requires_grad_();
    }
    const Tensor out = linear_attention(x[0], x[1], x[2], options_);
    const Tensor expected =
        sash::composite::linear_attention(exact[0], exact[1], exact[2], options_);
    const double tolerance = is_half(setup_.dtype) ? 3e-2 : 1e-4;
    sash::bench::check_close(setup_.name(), out.to(DType::float64), expected, tolerance);
    const auto found = sash::grad({out}, {x[0], x[1], x[2]}, {x[3]});
    const auto wanted = sash::grad({expected}, {exact[0], exact[1], exact[2]}, {exact[3]});
    for (size_t i = 0; i < found.size(); ++i) {
      sash::bench::check_close(setup_.name(), found[i].to(DType::float64), wanted[i], tolerance);
    }
  }

  void time() const {
    using sash::bench::rounded;
    const double forward_ms = sash::bench::median_ms(device_, kCalls, [&] { forward(); });
    const double peak = sash::bench::peak_mb(device_, [&] { both(); });
    const double both_ms = sash::bench::median_ms(device_, kCalls, [&] { both(); });
    const double bytes = static_cast<double>(q_.numel()) * static_cast<double>(size_of(q_.dtype()));
    sash::bench::print({{"kind", "linear_attention"},
                        {"case", setup_.name()},
                        {"impl", "sash"},
                        {"dtype", sash::name(setup_.dtype)},
                        {"fwd_ms", rounded(forward_ms, 4)},
                        {"fwdbwd_ms", rounded(both_ms, 4)},
                        {"fwd_gb_s", rounded(4 * bytes / forward_ms / 1e6, 1)},
                        {"fwdbwd_gb_s", rounded(12 * bytes / both_ms / 1e6, 1)},
                        {"peak_mb", peak}});
  }

 private:
  Tensor variable(int64_t batch, int64_t heads, int64_t length) const {
    return sash::randn({batch, heads, length, setup_.dim},
                       {.dtype = setup_.dtype, .device = device_, .requires_grad = true});
  }
  Tensor forward() const { return linear_attention(q_, k_, v_, options_); }
  void both() const { sash::grad({forward()}, {q_, k_, v_}, {g_}); }

  const Case& setup_;
  sash::Device device_;
  sash::LinearAttentionOptions options_;
  Tensor q_, k_, v_, g_;
};

}  // namespace

int main(int argc, char** argv) {
  return sash::bench::run_cases(
      "Times linear attention", argc, argv, cases,
      [](const Case& setup, sash::Device device, const sash::TensorOptions&) {
        const Run run(setup, device);
        run.check();
        run.time();
      });
}
