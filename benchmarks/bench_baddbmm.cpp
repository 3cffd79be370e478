// The eight transposed forms of a batched product against the plain one: `speed` is the plain
// product's time divided by theirs. Checks results first. Prints one line of JSON per form.

#include <sash/ops/elementwise/binary.h>
#include <sash/ops/linalg/baddbmm.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "bench.h"

using sash::DType;
using sash::Tensor;

namespace {

struct Sizes {
  int64_t batch, m, n, k;
};

bool run(sash::Device device, DType dtype, const Sizes& s, int calls) {
  const sash::NoGradGuard no_grad;
  const auto numbers = [&](int64_t rows, int64_t cols) {
    return sash::randn({s.batch, rows, cols}, {.dtype = DType::float32, .device = device})
        .to(dtype);
  };
  const auto swapped = [](const Tensor& x, bool swap) { return swap ? x.mT().contiguous() : x; };
  const Tensor a = numbers(s.m, s.k), b = numbers(s.k, s.n);
  const Tensor c = sash::zeros({s.batch, s.m, s.n}, a.options());
  const Tensor turned = sash::zeros({s.batch, s.n, s.m}, a.options());
  const Tensor product = matmul(a, b).to(DType::float32);
  const double scale = 1 / static_cast<double>(s.k);
  double plain = 0;
  return sash::bench::attempt([&] {
    for (int i = 0; i < 8; ++i) {
      const sash::BaddbmmOptions o{.beta = 0,
                                   .transpose_a = (i & 1) != 0,
                                   .transpose_b = (i & 2) != 0,
                                   .transpose_product = (i & 4) != 0};
      const std::string form = std::string(o.transpose_product ? "(" : "") +
                               (o.transpose_a ? "A'" : "A") + (o.transpose_b ? "B'" : "B") +
                               (o.transpose_product ? ")'" : "");
      const Tensor left = swapped(a, o.transpose_a), right = swapped(b, o.transpose_b);
      const Tensor to = o.transpose_product ? turned : c;
      baddbmm_(to, left, right, o);
      const Tensor found = o.transpose_product ? to.mT() : to;
      sash::bench::check_close(form, found.to(DType::float32) * scale, product * scale, 1e-2);
      const double ms =
          sash::bench::median_ms(device, calls, [&] { baddbmm_(to, left, right, o); });
      if (i == 0) plain = ms;
      sash::bench::print(
          {{"kind", "baddbmm"},
           {"case", form},
           {"dtype", std::string(sash::name(dtype))},
           {"shape", std::to_string(s.batch) + "x" + std::to_string(s.m) + "x" +
                         std::to_string(s.k) + "x" + std::to_string(s.n)},
           {"ms", sash::bench::rounded(ms, 4)},
           {"gflops",
            sash::bench::rounded(2e-6 * static_cast<double>(s.batch * s.m * s.n * s.k) / ms, 1)},
           {"speed", sash::bench::rounded(plain / ms, 3)}});
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Times the eight transposed forms of a batched product", "cpu");
  int calls = 9;
  flags.add("--calls", calls, "timed calls");
  return sash::bench::run(flags, argc, argv, [&](sash::Device device) {
    sash::bench::print_environment(device);
    if (device.is_cpu()) return run(device, DType::float32, {16, 384, 320, 256}, calls);
    const Sizes large{64, 1024, 768, 512};
    bool good = true;
    for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
      good = run(device, dtype, large, calls) && good;
    }
    return good;
  });
}
