// Times a block-sparse linear layer against the dense one over the density of its blocks, forward
// (y = x W') and backward (dx and dW), and prints where it breaks even. Results are checked against
// the masked dense product first. One line of CSV per density:
//
//     device,dtype,tokens,in,out,block,density,forward_ms,dx_ms,dw_ms,dense_forward_ms,...
//
// `speedup` is dense time / sparse time, forward and backward together; `tflops` counts the
// operations of the blocks that there are.
#include <cstdio>
#include <sstream>

#include <sash/nn/layers/block_sparse_linear.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/sparse/block_sparse_matmul.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "bench.h"

namespace {

using sash::BlockPattern;
using sash::BlockSparseMatrix;
using sash::Device;
using sash::DType;
using sash::Tensor;

struct Settings {
  int64_t tokens = 0, in = 0, out = 0, block = 64;
  std::string dtype;
  std::vector<double> densities{0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.75, 1};
};

struct Times {
  double forward, dx, dw;
  double both() const { return forward + dx + dw; }
};

DType dtype_of(const std::string& name) {
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
    if (name == sash::name(dtype)) return dtype;
  }
  throw sash::ValueError("bench_sparse", "a floating dtype", name);
}

class Bench {
 public:
  Bench(const Settings& settings, Device device)
      : s_(settings),
        device_(device),
        options_{.dtype = dtype_of(settings.dtype), .device = device},
        x_(randn({s_.tokens, s_.in}, options_)),
        g_(randn({s_.tokens, s_.out}, options_)),
        w_(randn({s_.out, s_.in}, options_)) {}

  Times dense() const {
    const sash::NoGradGuard no_grad;
    return {time([&] { matmul(x_, w_.mT()); }), time([&] { matmul(g_, w_); }),
            time([&] { matmul(g_.mT(), x_); })};
  }

  Times sparse(double density) const {
    const sash::NoGradGuard no_grad;
    const BlockPattern pattern = BlockPattern::random(s_.out, s_.in, s_.block, density, 1);
    const auto w = BlockSparseMatrix::from_dense(w_, pattern);
    check(w);
    return {time([&] { block_sparse_linear(x_, w); }), time([&] { block_sparse_matmul(g_, w); }),
            time([&] { sampled_matmul(g_, x_, pattern); })};
  }

 private:
  template <class Call>
  double time(Call&& call) const {
    return sash::bench::median_ms(device_, 5, call);
  }

  // Some rows of each product, in float32, for sums of thousands.
  void check(const BlockSparseMatrix& w) const {
    const int64_t rows = std::min<int64_t>(s_.tokens, 200);
    const auto wide = [](const Tensor& t) { return t.to(DType::float32); };
    const auto close = [&](const char* what, const Tensor& a, const Tensor& b) {
      const double scale = sash::amax(abs(b)).item<double>();
      const Tensor unit = scalar_tensor(1 / scale, b.options());
      sash::bench::check_close(what, wide(a) * unit, b * unit, is_half(a.dtype()) ? 1e-2 : 1e-4);
    };
    const Tensor dense = wide(w.to_dense()), x = x_.narrow(0, 0, rows), g = g_.narrow(0, 0, rows);
    close("forward", block_sparse_linear(x, w), matmul(wide(x), dense.mT()));
    close("dx", block_sparse_matmul(g, w), matmul(wide(g), dense));
    const Tensor dw = matmul(wide(g_).mT(), wide(x_));
    close("dw", sampled_matmul(g_, x_, w.pattern()).data(),
          BlockSparseMatrix::from_dense(dw, w.pattern()).data());
  }

  Settings s_;
  Device device_;
  sash::TensorOptions options_;
  Tensor x_, g_, w_;
};

void run(const Settings& s, Device device) {
  sash::manual_seed(1);
  sash::set_tf32_allowed(false);  // both sides compute in full float32
  const Bench bench(s, device);
  const Times dense = bench.dense();
  std::puts(
      "device,dtype,tokens,in,out,block,density,forward_ms,dx_ms,dw_ms,dense_forward_ms,"
      "dense_dx_ms,dense_dw_ms,speedup,tflops");
  double break_even = 0, density_before = 0, speedup_before = 0;
  for (const double density : s.densities) {
    const Times t = bench.sparse(density);
    const double speedup = dense.both() / t.both();
    const double operations = 6 * density * static_cast<double>(s.tokens) *
                              static_cast<double>(s.in) * static_cast<double>(s.out);
    std::printf("%s,%s,%lld,%lld,%lld,%lld,%.3f,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%.3f,%.3f\n",
                std::string(name(device.type)).c_str(), s.dtype.c_str(),
                static_cast<long long>(s.tokens), static_cast<long long>(s.in),
                static_cast<long long>(s.out), static_cast<long long>(s.block), density, t.forward,
                t.dx, t.dw, dense.forward, dense.dx, dense.dw, speedup,
                operations / t.both() * 1e-9);
    std::fflush(stdout);
    if (speedup >= 1) {
      break_even = density;
    } else if (speedup_before >= 1) {
      break_even += (density - density_before) * (speedup_before - 1) / (speedup_before - speedup);
    }
    density_before = density;
    speedup_before = speedup;
  }
  std::fprintf(stderr, "%s, block %lld: breaks even at density %.2f\n", s.dtype.c_str(),
               static_cast<long long>(s.block), break_even);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Times block-sparse linear layers against dense ones.", "cpu");
  Settings settings;
  flags.add("--tokens", settings.tokens, "rows of x; 4096, or 512 on a CPU");
  flags.add("--in", settings.in, "columns of x; 4096, or 1024 on a CPU");
  flags.add("--out", settings.out, "columns of y; as --in");
  flags.add("--block", settings.block, "16, 32, 64 or 128");
  flags.add("--dtype", settings.dtype, "bfloat16 by default, float32 on a CPU");
  flags.add("--density", settings.densities, "densities, ascending");
  return sash::bench::run(flags, argc, argv, [&](Device device) {
    if (settings.tokens == 0) settings.tokens = device.is_cuda() ? 4096 : 512;
    if (settings.in == 0) settings.in = device.is_cuda() ? 4096 : 1024;
    if (settings.out == 0) settings.out = settings.in;
    if (settings.dtype.empty()) settings.dtype = device.is_cuda() ? "bfloat16" : "float32";
    return sash::bench::attempt([&] { run(settings, device); });
  });
}
