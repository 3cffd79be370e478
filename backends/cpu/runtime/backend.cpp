#include "backend.h"

#include <chrono>
#include <cstring>
#include <fstream>

#include "../../../core/error.h"
#include "../../../core/parallel.h"
#include "../linalg/bfloat16_product.h"
#include "mpi.h"

namespace sash::cpu {
namespace {

using Time = std::chrono::steady_clock::time_point;

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

// The instruction set that this library was compiled for.
constexpr const char* kLevel =
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
    "x86-64-v4";
#elif defined(__AVX2__) && defined(__FMA__) && defined(__BMI2__)
    "x86-64-v3";
#elif defined(__SSE4_2__)
    "x86-64-v2";
#elif defined(__x86_64__)
    "x86-64";
#elif defined(__aarch64__)
    "aarch64";
#else
    "generic";
#endif

[[noreturn]] void throw_no_capture(const char* op) {
  throw NotImplemented(op, "the cpu backend runs work at once and cannot capture it");
}

}  // namespace

std::string CpuBackend::description(Device) const {
  const int threads = num_threads();
  const Bfloat16Unit unit = bfloat16_unit();
  const char* const products = unit == Bfloat16Unit::amx      ? "bfloat16 products by AMX, "
                               : unit == Bfloat16Unit::avx512 ? "bfloat16 products by AVX-512, "
                                                              : "";
  return processor_name() + ", " + kLevel + " code, " + products + std::to_string(threads) +
         (threads == 1 ? " thread" : " threads");
}

void CpuBackend::copy(void* dst, Device, const void* src, Device, int64_t bytes, Stream) {
  if (bytes > 0) std::memcpy(dst, src, static_cast<size_t>(bytes));
}

Event CpuBackend::create_event(Device) { return {new Time(std::chrono::steady_clock::now())}; }

void CpuBackend::destroy_event(Device, Event event) { delete static_cast<Time*>(event.handle); }

void CpuBackend::record(Event event, Device, Stream) {
  *static_cast<Time*>(event.handle) = std::chrono::steady_clock::now();
}

double CpuBackend::elapsed_ms(Event start, Event stop, Device) {
  const auto elapsed = *static_cast<Time*>(stop.handle) - *static_cast<Time*>(start.handle);
  return std::chrono::duration<double, std::milli>(elapsed).count();
}

std::unique_ptr<distributed::Engine> CpuBackend::make_engine(Device, int rank, int size,
                                                             const std::string&) {
  return open_mpi(rank, size);
}

void CpuBackend::begin_capture(Device, Stream) { throw_no_capture("begin_capture"); }
void* CpuBackend::end_capture(Device, Stream) { throw_no_capture("end_capture"); }
void CpuBackend::replay(void*, Device, Stream) { throw_no_capture("replay"); }

void register_cpu_backend() { register_backend(std::make_unique<CpuBackend>()); }

}  // namespace sash::cpu
