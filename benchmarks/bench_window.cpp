// Times windowed products against the dense product of the same operands. Prints one line of JSON
// per figure, beside what window_matmul's own CUDA kernels need for the case on the same card, an
// H200 (`theirs_ms`). Results are checked first.

#include <sash/ops/linalg/matmul.h>
#include <sash/ops/linalg/window_matmul.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "bench.h"

using namespace sash;
using nlohmann::ordered_json;

namespace {

constexpr int kCalls = 7;

struct Case {
  int64_t batch, m, n, w;
  DType dtype;
  bool keys_as_rows = false;
  /// Forward and backward of window_matmul and unwindow_matmul; 0 if not known.
  std::array<double, 4> theirs{};
};

std::string name_of(const Case& c) {
  return std::to_string(c.batch) + "x" + std::to_string(c.m) + "x" + std::to_string(c.n) + " w" +
         std::to_string(c.w) + " " + std::string(name(c.dtype)) +
         (c.keys_as_rows ? " keys as rows" : "");
}

class Bench {
 public:
  Bench(Device device, const Case& c) : device_(device), case_(c) {
    const TensorOptions options{.device = device};
    const auto numbers = [&](const Shape& shape) {
      return randn(shape, options).to(c.dtype).requires_grad_();
    };
    q_ = numbers({c.batch, c.m, c.n});
    k_ = numbers(c.keys_as_rows ? Shape{c.batch, c.m, c.n} : Shape{c.batch, c.n, c.m});
    v_ = numbers({c.batch, c.m, c.n});
    a_ = numbers({c.batch, c.m, 2 * c.w + 1});
  }

  void run() {
    check();
    const double elements = static_cast<double>(case_.batch * case_.m);
    const double slots = static_cast<double>(2 * case_.w + 1), n = static_cast<double>(case_.n);
    const double size = static_cast<double>(size_of(case_.dtype));
    const Work once{2 * elements * slots * n, elements * size * (slots + 2 * n)};
    // Two products each; the band is read twice, or read and written.
    const Work twice{2 * once.operations, elements * size * (2 * slots + 4 * n)};
    const auto scores = [&] { return window_matmul(q_, k_, case_.w, options()); };
    const auto sums = [&] { return unwindow_matmul(a_, v_, case_.w); };
    forward("window_matmul", once, 0, scores);
    backward("window_matmul", twice, 1, scores(), {q_, k_}, a_);
    forward("unwindow_matmul", once, 2, sums);
    backward("unwindow_matmul", twice, 3, sums(), {a_, v_}, v_);
    dense();
  }

 private:
  struct Work {
    double operations, bytes;
  };

  WindowMatmulOptions options() const { return {.keys_as_rows = case_.keys_as_rows}; }

  // The first rows, whose keys are the first ones, in float32.
  void check() const {
    const NoGradGuard no_grad;
    const int64_t rows = std::min<int64_t>(case_.m, 4 * case_.w + 64);
    const auto head = [&](const Tensor& x, int64_t axis) {
      return x.narrow(0, 0, 1).narrow(axis, 0, rows).to(DType::float32);
    };
    const int64_t sure = rows == case_.m ? rows : rows - case_.w;
    const auto compare = [&](const char* what, const Tensor& found, const Tensor& expected) {
      bench::check_close(what, found.narrow(0, 0, 1).narrow(1, 0, sure).to(DType::float32),
                         expected.narrow(1, 0, sure), 2e-2);
    };
    compare("window_matmul", window_matmul(q_, k_, case_.w, options()),
            window_matmul(head(q_, 1), head(k_, case_.keys_as_rows ? 1 : 2), case_.w, options()));
    compare("unwindow_matmul", unwindow_matmul(a_, v_, case_.w),
            unwindow_matmul(head(a_, 1), head(v_, 1), case_.w));
  }

  void print(const std::string& op, const char* pass, const Work& work, double theirs, double ms) {
    ordered_json figure{{"kind", "window"},
                        {"case", name_of(case_)},
                        {"op", op},
                        {"pass", pass},
                        {"ms", bench::rounded(ms, 4)},
                        {"gb_s", bench::rounded(work.bytes / ms / 1e6, 1)},
                        {"gflops", bench::rounded(work.operations / ms / 1e6, 1)}};
    if (theirs > 0) {
      figure["theirs_ms"] = theirs;
      figure["times_faster"] = bench::rounded(theirs / ms, 1);
    }
    bench::print(figure);
  }

  template <class Call>
  void forward(const char* op, const Work& work, size_t place, Call&& call) {
    const NoGradGuard no_grad;
    print(op, "fwd", work, case_.theirs[place], bench::median_ms(device_, kCalls, call));
  }
  void backward(const char* op, const Work& work, size_t place, const Tensor& y,
                const std::vector<Tensor>& inputs, const Tensor& g) {
    const Tensor cotangent = g.detach();
    const double ms = bench::median_ms(
        device_, kCalls, [&] { grad({y}, inputs, {cotangent}, {.retain_graph = true}); });
    print(op, "bwd", work, case_.theirs[place], ms);
  }

  // All M x M products of a head; the CPU has none of halves.
  void dense() {
    if (device_.is_cpu() && is_half(case_.dtype)) return;
    const double pairs = static_cast<double>(case_.batch) * static_cast<double>(case_.m) *
                         static_cast<double>(case_.m);
    const Work work{2 * pairs * static_cast<double>(case_.n),
                    pairs * static_cast<double>(size_of(case_.dtype))};
    const NoGradGuard no_grad;
    const Tensor keys = case_.keys_as_rows ? k_.mT() : k_;
    print("dense q k'", "fwd", work, 0, bench::median_ms(device_, 3, [&] { matmul(q_, keys); }));
  }

  Device device_;
  Case case_;
  Tensor q_, k_, v_, a_;
};

std::vector<Case> cases_for(Device device) {
  if (device.is_cpu()) {
    return {{4, 2048, 64, 64, DType::float32}, {4, 2048, 64, 1, DType::float32}};
  }
  const DType half = DType::float16;
  return {{32, 8192, 64, 256, half, false, {3.5, 6.7, 3.2, 6.9}},
          {32, 8192, 64, 256, half, true},
          {32, 8192, 64, 256, DType::bfloat16, true},
          {32, 8192, 64, 255, half, true},
          {32, 8192, 64, 16, half, true},
          {32, 8192, 128, 256, half, true},
          {8, 8192, 64, 256, DType::float32, true}};
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Times windowed products", "cpu");
  return bench::run(flags, argc, argv, [](Device device) {
    bench::print_environment(device);
    bool ok = true;
    for (const Case& c : cases_for(device)) {
      ok = bench::attempt([&] { Bench(device, c).run(); }) && ok;
    }
    return ok;
  });
}
