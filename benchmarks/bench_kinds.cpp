// Times a transformer encoder with each kind of attention over growing lengths: 12 layers, 8 heads
// of 64 features, hidden layers of 1024, batch 1. Prints CSV; kinds_plot.py draws it.

#include <cstdio>

#include <sash/nn/models/transformer.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/optim/adam.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "bench.h"

namespace nn = sash::nn;
using sash::Tensor;

namespace {

struct Settings {
  std::vector<std::string> kinds{"full",    "local:3",       "local:256",
                                 "linear",  "clustered:100", "improved_clustered:100,top_k=32",
                                 "top_k:32"};
  std::vector<int64_t> lengths{128, 256, 512, 1024, 2048, 4096, 8192};
  std::vector<std::string> passes{"forward", "step"};
  std::string dtype;
  int64_t layers = 12;
  int calls = 5;
};

sash::DType dtype_of(const Settings& settings, sash::Device device) {
  if (settings.dtype == "float32") return sash::DType::float32;
  if (settings.dtype == "bfloat16") return sash::DType::bfloat16;
  return device.is_cuda() ? sash::DType::bfloat16 : sash::DType::float32;
}

void print_row(const std::string& kind, const std::string& pass, int64_t length, sash::DType dtype,
               sash::Device device, double ms) {
  const double mib = static_cast<double>(sash::memory_stats(device).peak) / (1 << 20);
  std::printf("\"%s\",%s,%lld,%s,%s,%.4f,%.0f\n", kind.c_str(), pass.c_str(),
              static_cast<long long>(length), std::string(name(dtype)).c_str(),
              to_string(device).c_str(), ms, mib);
  std::fflush(stdout);
}

void run(const Settings& settings, const std::string& kind, int64_t length, sash::Device device) {
  const sash::DType dtype = dtype_of(settings, device);
  sash::manual_seed(0);
  nn::TransformerEncoder model({.dim = 512,
                                .heads = 8,
                                .layers = settings.layers,
                                .mlp_dim = 1024,
                                .dropout = 0,
                                .mlp = nn::MlpKind::gelu,
                                .attention = kind});
  model.to(device).to(dtype);
  const Tensor x = sash::randn({1, length, 512}, {.dtype = dtype, .device = device});
  if (sash::bench::contains(settings.passes, "forward")) {
    const sash::NoGradGuard no_grad;
    model.eval();
    sash::reset_peak_memory(device);
    const double ms = sash::bench::median_ms(device, settings.calls, [&] { model(x); });
    print_row(kind, "forward", length, dtype, device, ms);
  }
  if (sash::bench::contains(settings.passes, "step")) {
    model.train();
    sash::optim::AdamW optimizer(model.parameters(), {.lr = 1e-4});
    sash::reset_peak_memory(device);
    const double ms = sash::bench::median_ms(device, settings.calls, [&] {
      optimizer.zero_grad();
      const Tensor y = model(x);
      (y * y).mean().backward();
      optimizer.step();
    });
    print_row(kind, "step", length, dtype, device, ms);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  Flags flags("Times an encoder with each kind of attention", "cpu");
  flags.add("--kinds", settings.kinds, "kinds of attention");
  flags.add("--lengths", settings.lengths, "tokens");
  flags.add("--passes", settings.passes, "forward, step");
  flags.add("--dtype", settings.dtype,
            "float32 or bfloat16; default: bfloat16 on CUDA, float32 on the CPU");
  flags.add("--layers", settings.layers, "layers");
  flags.add("--calls", settings.calls, "timed calls");
  return sash::bench::run(flags, argc, argv, [&](sash::Device device) {
    std::puts("kind,pass,tokens,dtype,device,ms,peak_mib");
    bool all_ran = true;
    for (const std::string& kind : settings.kinds) {
      for (const int64_t length : settings.lengths) {
        all_ran &= sash::bench::attempt([&] { run(settings, kind, length, device); });
      }
    }
    return all_ran;
  });
}
