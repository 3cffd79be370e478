// Row ops in place against the same ops out of place: time, and the most memory in use beside the
// input. Checks results first. The default is 40000 x 1024, float16, with a weight of 1024 x 1024.
// On the CPU, whose out-of-place ops take no halves, those compute in float32 and cast back. Prints
// one line of JSON per op.

#include <bit>
#include <cmath>

#include <sash/ops/elementwise/binary.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/linalg/matmul_in_place.h>
#include <sash/ops/norm/layer_norm.h>
#include <sash/ops/norm/layer_norm_in_place.h>
#include <sash/ops/norm/softmax.h>
#include <sash/ops/norm/softmax_in_place.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "bench.h"

using sash::DType;
using sash::Tensor;

namespace {

struct Settings {
  sash::Device device;
  DType dtype = DType::float16;
  int64_t rows = 40000, columns = 1024;
  int calls = 5;
  bool failed = false;

  DType wide() const { return device.is_cpu() && sash::is_half(dtype) ? DType::float32 : dtype; }
  double tolerance() const {
    return dtype == DType::bfloat16 ? 4e-2 : dtype == DType::float16 ? 5e-3 : 1e-4;
  }
};

struct Figure {
  double ms, mib;
};

template <class Call>
Figure measure(const Settings& s, Call&& call) {
  call();
  sash::synchronize(s.device);
  sash::backend(s.device.type).reset_peak(s.device);
  const int64_t before = sash::memory_stats(s.device).current;
  call();
  sash::synchronize(s.device);
  const auto bytes = static_cast<double>(sash::memory_stats(s.device).peak - before);
  return {sash::bench::median_ms(s.device, s.calls, call), bytes / (1 << 20)};
}

/// `plain(x)` is a new tensor, `in_place(x)` replaces x.
template <class Plain, class InPlace>
void compare(Settings& s, const char* name, const Tensor& x, Plain&& plain, InPlace&& in_place) {
  s.failed = !sash::bench::attempt([&] {
    const int64_t few = std::min<int64_t>(x.size(0), 1000);
    const Tensor first = x.narrow(0, 0, few);
    const Tensor y = first.clone();
    in_place(y, few);
    sash::bench::check_close(name, y.to(DType::float64), plain(first, few).to(DType::float64),
                             s.tolerance());
    const Figure out = measure(s, [&] { plain(x, x.size(0)); });
    const Figure in = measure(s, [&] { in_place(x, x.size(0)); });
    sash::bench::print(
        {{"kind", "in_place"},
         {"case", name},
         {"dtype", std::string(sash::name(s.dtype))},
         {"rows", x.size(0)},
         {"columns", x.size(1)},
         {"input_mib", sash::bench::rounded(
                           static_cast<double>(x.numel() * sash::size_of(s.dtype)) / (1 << 20), 1)},
         {"ms", sash::bench::rounded(in.ms, 3)},
         {"mib", sash::bench::rounded(in.mib, 1)},
         {"out_of_place_ms", sash::bench::rounded(out.ms, 3)},
         {"out_of_place_mib", sash::bench::rounded(out.mib, 1)},
         {"speed", sash::bench::rounded(out.ms / in.ms, 2)}});
  }) || s.failed;
}

/// Hadamard's matrix over sqrt(n), for n = 4^k exact in halves: products keep their norm, however
/// often they are repeated. Another n gets a unit matrix.
Tensor orthogonal(int64_t n, const Settings& s) {
  const bool power = std::has_single_bit(static_cast<uint64_t>(n));
  std::vector<float> elements(static_cast<size_t>(n * n), 0.0F);
  const float scale = 1 / std::sqrt(static_cast<float>(n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const bool odd = std::popcount(static_cast<uint64_t>(i & j)) % 2 == 1;
      const float entry = power ? (odd ? -scale : scale) : (i == j ? 1.0F : 0.0F);
      elements[static_cast<size_t>(i * n + j)] = entry;
    }
  }
  return sash::tensor(elements, {n, n}, {.device = s.device}).to(s.dtype);
}

void run_all(Settings& s) {
  const sash::NoGradGuard no_grad;
  const int64_t n = s.columns;
  const DType wide = s.wide(), dtype = s.dtype;
  const Tensor x =
      sash::randn({s.rows, n}, {.dtype = DType::float32, .device = s.device}).to(dtype);
  const Tensor w = orthogonal(n, s), turned = w.mT();
  const auto product = [&](const Tensor& factor) {
    return [&, factor](const Tensor& a, int64_t) {
      return matmul(a.to(wide), factor.to(wide)).to(dtype);
    };
  };
  compare(s, "matmul_", x, product(w), [&](const Tensor& a, int64_t) { matmul_(a, w); });
  compare(s, "matmul_ transposed", x, product(turned),
          [&](const Tensor& a, int64_t) { matmul_(a, turned); });
  compare(
      s, "layer_norm_", x,
      [&](const Tensor& a, int64_t) { return layer_norm(a.to(wide), {n}).to(dtype); },
      [&](const Tensor& a, int64_t) { layer_norm_(a, {n}); });
  compare(
      s, "softmax_", x, [&](const Tensor& a, int64_t) { return softmax(a.to(wide)).to(dtype); },
      [&](const Tensor& a, int64_t) { softmax_(a); });
  const Tensor g =
      sash::randn({s.rows, 64}, {.dtype = DType::float32, .device = s.device}).to(dtype);
  const Tensor v = sash::randn({n, 64}, {.dtype = DType::float32, .device = s.device}).to(dtype);
  compare(
      s, "softmax_backward_", x,
      [&](const Tensor& p, int64_t rows) {
        const Tensor dp = matmul(g.narrow(0, 0, rows).to(wide), v.to(wide).mT());
        const Tensor q = p.to(wide);
        return ((dp - sum(q * dp, {-1}, true)) * q).to(dtype);
      },
      [&](const Tensor& p, int64_t rows) { softmax_backward_(p, g.narrow(0, 0, rows), v); });
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Times row ops in place against out of place, and their memory", "cpu");
  Settings s;
  std::string dtype = "float16";
  flags.add("--dtype", dtype, "float16, bfloat16, float32 or float64");
  flags.add("--rows", s.rows, "rows of the matrix");
  flags.add("--columns", s.columns, "columns of the matrix");
  flags.add("--calls", s.calls, "timed calls");
  return sash::bench::run(flags, argc, argv, [&](sash::Device device) {
    s.device = device;
    for (const DType one : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
      if (sash::name(one) == dtype) s.dtype = one;
    }
    sash::bench::print_environment(device);
    run_all(s);
    return !s.failed;
  });
}
