#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include <sash/core/backend/backend.h>
#include <sash/core/parallel.h>
#include <sash/core/readable.h>

#include "../../examples/support/program.h"
#include "commands.h"

namespace {

// The best level of x86-64 that the processor has.
std::string processor_level() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return "x86-64-v4";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2")) {
    return "x86-64-v3";
  }
  return __builtin_cpu_supports("sse4.2") ? "x86-64-v2" : "x86-64";
#else
  return "";
#endif
}

// "MemTotal" or "MemAvailable", in bytes; 0 if the system does not say.
int64_t memory(const std::string& what) {
  std::ifstream info("/proc/meminfo");
  for (std::string key, unit; info >> key;) {
    int64_t kib = 0;
    info >> kib;
    std::getline(info, unit);
    if (key == what + ":") return kib * 1024;
  }
  return 0;
}

std::string library_path() {
  Dl_info info{};
  const bool found = dladdr(reinterpret_cast<const void*>(&sash::num_threads), &info) != 0;
  return found && info.dli_fname ? info.dli_fname : "unknown";
}

std::string thread_source() {
  for (const char* variable : {"SASH_NUM_THREADS", "OMP_NUM_THREADS"}) {
    if (const char* const value = std::getenv(variable)) {
      return std::string(variable) + "=" + value;
    }
  }
  return "one per processor; SASH_NUM_THREADS sets it";
}

void line(const char* what, const std::string& text) {
  const std::string name = what;
  print_line(name + std::string(13 - std::min<size_t>(name.size(), 12), ' ') + text);
}

void print_cuda() {
  std::string reason;
  sash::Backend* const cuda = sash::try_backend(sash::DeviceType::cuda, &reason);
  if (!cuda) return line("cuda", "none: " + reason);
  for (int i = 0; i < cuda->device_count(); ++i) {
    const sash::Device device{sash::DeviceType::cuda, i};
    line(to_string(device).c_str(), cuda->description(device));
  }
}

}  // namespace

void print_devices() {
  line("sash", std::string(SASH_VERSION) + ", " + library_path());
  line("cpu", sash::backend(sash::DeviceType::cpu).description(sash::kCPU));
  line("  threads", std::to_string(sash::num_threads()) + " of " +
                        std::to_string(std::thread::hardware_concurrency()) + " processors (" +
                        thread_source() + ")");
  const std::string level = processor_level();
  if (!level.empty()) line("  processor", "up to " + level);
  line("  memory", sash::bytes_text(memory("MemTotal")) + ", " +
                       sash::bytes_text(memory("MemAvailable")) + " available");
  print_cuda();
  const char* const chosen = std::getenv("SASH_DEVICE");
  line("default", to_string(sash::default_device()) +
                      (chosen ? std::string(" (SASH_DEVICE=") + chosen + ")"
                              : " (SASH_DEVICE or set_default_device changes it)"));
}
