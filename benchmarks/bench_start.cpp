// Times the start of a process on a GPU, a line of JSON per step: what the driver takes on its own,
// the libraries, and the first calls of each kind. Every step includes what it is the first to
// need.

#include <dlfcn.h>

#include <thread>

#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/tensor/factories.h>

#include "bench.h"

using sash::Tensor;

namespace {

/// Prints the milliseconds of f().
template <class F>
void step(const std::string& name, F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
  sash::bench::print(
      {{"kind", "start"}, {"step", name}, {"ms", sash::bench::rounded(spent.count(), 2)}});
}

template <class F>
F* function_of(void* library, const char* name) {
  void* const found = library ? dlsym(library, name) : nullptr;
  if (!found) throw std::runtime_error(std::string("no ") + name);
  return reinterpret_cast<F*>(found);
}

void check(int status) {
  if (status != 0) throw std::runtime_error("the driver failed: " + std::to_string(status));
}

/// The driver's own start, without libsash_cuda.
void time_driver(int card) {
  void* driver = nullptr;
  step("load libcuda", [&] { driver = dlopen("libcuda.so.1", RTLD_NOW); });
  step("cuInit", [&] { check(function_of<int(unsigned)>(driver, "cuInit")(0)); });
  void* context = nullptr;
  step("primary context", [&] {
    check(function_of<int(void**, int)>(driver, "cuDevicePrimaryCtxRetain")(&context, card));
  });
  step("first memory", [&] {
    check(function_of<int(void*)>(driver, "cuCtxSetCurrent")(context));
    uint64_t memory = 0;
    check(function_of<int(uint64_t*, size_t)>(driver, "cuMemAlloc_v2")(&memory, 1 << 20));
  });
}

void load_cublas(const std::string& path) {
  step("load libcublasLt", [&] {
    if (!dlopen(path.c_str(), RTLD_NOW)) throw std::runtime_error(dlerror());
  });
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Times the start of a process on a GPU, of cuda:0", "cpu");
  bool apart = false;
  std::string cublas;
  bool beside = false;
  flags.add("--apart", apart, "start the driver first, and time its steps");
  flags.add("--cublas", cublas, "then also load this libcublasLt, and time that");
  flags.add("--beside", beside, "start the driver in a thread of its own, while that is loaded");
  return flags.run(argc, argv, [&] {
    const sash::Device device = sash::kCUDA;
    if (apart || beside) {
      step("the driver and libcublasLt", [&] {
        std::thread driver([&] { sash::bench::attempt([&] { time_driver(device.index); }); });
        if (!beside) driver.join();
        if (!cublas.empty()) load_cublas(cublas);
        if (beside) driver.join();
      });
    }
    const auto twice = [&](const std::string& name, const auto& f) {
      for (const char* time : {"first ", "second "}) {
        step(time + name, [&] {
          f();
          synchronize(device);
        });
      }
    };
    const auto halves = [&](const sash::Shape& shape) {
      return sash::zeros(shape, {.dtype = sash::DType::bfloat16, .device = device});
    };
    const auto start = std::chrono::steady_clock::now();
    step("open libsash_cuda", [&] { sash::backend(sash::DeviceType::cuda); });
    Tensor x;
    twice("empty", [&] { x = sash::empty({64, 64}, {.device = device}); });
    twice("fill", [&] { x.fill_(1); });
    const std::chrono::duration<double, std::milli> all = std::chrono::steady_clock::now() - start;
    sash::bench::print({{"kind", "start"},
                        {"step", "all until the first kernel has run"},
                        {"ms", sash::bench::rounded(all.count(), 2)}});
    twice("sum of tensors", [&] { x = x + x; });
    twice("product of float32", [&] { matmul(x, x); });
    const Tensor y = halves({256, 256}), q = halves({1, 2, 256, 64});
    twice("product of bfloat16", [&] { matmul(y, y); });
    twice("attention", [&] { attention(q, q, q, {.mask = sash::AttentionMask::causal()}); });
  });
}
