#include "parallel.h"

#include <omp.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <string>

#include "error.h"

namespace sash {
namespace {

int initial_threads() {
  const char* text = std::getenv("SASH_NUM_THREADS");
  if (!text) return std::max(1, omp_get_max_threads());
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  if (*end != '\0' || count < 1 || count > 4096) {
    throw ValueError("SASH_NUM_THREADS", "a number of threads in [1, 4096]",
                     "'" + std::string(text) + "'");
  }
  return static_cast<int>(count);
}

std::atomic<int>& thread_setting() {
  static std::atomic<int> setting{initial_threads()};
  return setting;
}

}  // namespace

int num_threads() { return thread_setting().load(std::memory_order_relaxed); }

void set_num_threads(int count) {
  if (count < 1) throw ValueError("set_num_threads", "at least 1", std::to_string(count));
  thread_setting().store(count, std::memory_order_relaxed);
}

namespace detail {

void parallel_tasks(int64_t tasks, void (*run)(void*, int64_t), void* body) {
  const int threads = static_cast<int>(std::min<int64_t>(num_threads(), tasks));
  if (threads == 1 || omp_in_parallel()) {
    for (int64_t task = 0; task < tasks; ++task) run(body, task);
    return;
  }
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t task = 0; task < tasks; ++task) {
    try {
      run(body, task);
    } catch (...) {
#pragma omp critical(sash_parallel_failure)
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace detail
}  // namespace sash
