// First use of the CPU backend by several threads at once. The backend is visible only when all of
// its kernels are registered, so no thread misses a kernel or takes a composite instead. And wrong
// values of variables, which are read on first use.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <sash/core/backend/kernel.h>
#include <sash/core/error.h>
#include <sash/core/parallel.h>
#include <sash/ops/kernels/attention.h>
#include <sash/ops/kernels/elementwise.h>
#include <sash/ops/kernels/update_rules.h>
#include <sash/tensor/kernels/memory.h>

namespace {

using namespace sash;

constexpr int kProcesses = 20;
constexpr int kThreads = 4;

// The CPU kernels that are missing, of those registered first, last and in between.
int missing() {
  int count = 0;
  for (const KernelBase* slot : std::initializer_list<const KernelBase*>{
           &kernels::fill, &kernels::slot<op::Exp>(), &kernels::sgd_step,
           &kernels::attention_forward, &kernels::row_bounds}) {
    count += !slot->has(DeviceType::cpu);
  }
  return count;
}

int missing_when_visible = -1;

// Runs in its own process: the first calls of all threads at the same time.
int child() {
  std::atomic<int> ready{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      ready.fetch_add(1);
      while (ready.load() < kThreads) std::this_thread::yield();
      wrong.fetch_add(missing());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return wrong.load();
}

// In a process of its own where `variable` is `value`, `call` throws an error with `text` in it.
bool refuses(const char* variable, const char* value, const char* text, void (*call)()) {
  const pid_t id = fork();
  if (id == 0) {
    setenv(variable, value, 1);
    try {
      call();
    } catch (const Error& error) {
      if (std::strstr(error.what(), text)) std::exit(0);
      std::printf("%s=%s: %s\n", variable, value, error.what());
    }
    std::exit(1);
  }
  int status = 1;
  if (id > 0) waitpid(id, &status, 0);
  return status == 0;
}

bool wrong_variables_are_refused() {
  bool all = refuses("SASH_NUM_THREADS", "many", "a number of threads in [1, 4096], got 'many'",
                     [] { num_threads(); });
  all &= refuses("SASH_DEVICE", "gpu", "'auto', 'cpu', 'cuda' or 'cuda:<index>', got 'gpu'",
                 [] { default_device(); });
#if !defined(SASH_STATIC)
  const auto open = [] { static_cast<void>(backend(DeviceType::cuda)); };
  all &= refuses("SASH_CUDA_LIBRARY", "/no/such.so", "the CUDA library could not be opened", open);
  all &= refuses("SASH_CUDA_LIBRARY", "libm.so.6", "libm.so.6 is not a sash plug-in", open);
#endif
  return all;
}

}  // namespace

#if !defined(SASH_STATIC)
// Interposes the library's function of this name, to look just before the backend is visible.
void sash::register_backend(std::unique_ptr<Backend> backend) {
  missing_when_visible = missing();
  using Register = void (*)(std::unique_ptr<Backend>);
  const auto in_library = reinterpret_cast<Register>(dlsym(
      RTLD_NEXT, "_ZN4sash16register_backendESt10unique_ptrINS_7BackendESt14default_deleteIS1_EE"));
  in_library(std::move(backend));
}
#endif

int main() {
  if (!wrong_variables_are_refused()) return 1;
  int failed = 0;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t id = fork();
    if (id == 0) _exit(child());
    int status = 0;
    if (id > 0) waitpid(id, &status, 0);
    failed += id < 0 || status != 0;
  }
  if (failed > 0) std::printf("threads missed kernels in %d of %d processes\n", failed, kProcesses);
#if !defined(SASH_STATIC)
  sash::backend(sash::DeviceType::cpu);
  if (missing_when_visible != 0) {
    std::printf("%d kernels were missing when the backend became visible\n", missing_when_visible);
    return 1;
  }
#endif
  return failed > 0 ? 1 : 0;
}
