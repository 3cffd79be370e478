#include "parallel.h"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "error.h"
#include "quote.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sash {
namespace {

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// A number of threads from the environment; 0 where `variable` is not set.
int threads_from(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text || *text == '\0') return 0;
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  if ((*end != '\0' && *end != ',') || count < 1 || count > 4096) {
    throw ValueError(variable, "a number of threads in [1, 4096]", in_quotes(text));
  }
  return static_cast<int>(count);
}

int initial_threads() {
  for (const char* variable : {"SASH_NUM_THREADS", "OMP_NUM_THREADS"}) {
    if (const int count = threads_from(variable)) return count;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::atomic<int>& thread_setting() {
  static std::atomic<int> setting{initial_threads()};
  return setting;
}

// A fork-join thread pool for one job at a time. Waiting threads spin for about ten microseconds,
// the usual gap between two kernels of a step, and then sleep. Spinning for longer (OpenMP runtimes
// do, for milliseconds) takes the processor from the threads that the join waits for: on a busy
// machine a join of microseconds then takes milliseconds.
class ThreadPool {
 public:
  // Runs the tasks on up to `threads` threads, the caller's among them. False, without running
  // anything, if the pool is busy with another thread's job.
  bool run(int threads, int64_t tasks, void (*body)(void*, int64_t), void* context) {
    const std::unique_lock busy(busy_, std::try_to_lock);
    if (!busy) return false;
    while (workers_ < threads - 1) {
      std::thread([this, number = workers_] { work(number); }).detach();
      ++workers_;
    }
    Job job{body, context, tasks, threads - 1};
    job_.store(&job);
    epoch_.fetch_add(1);
    epoch_.notify_all();
    take_tasks(job);
    // Workers that saw the job are counted in `active_`; the others will find null.
    job_.store(nullptr);
    wait(active_, [](uint32_t active) { return active == 0; });
    if (job.failure) std::rethrow_exception(job.failure);
    return true;
  }

 private:
  struct Job {
    void (*body)(void*, int64_t);
    void* context;
    int64_t tasks;
    int helpers;
    std::atomic<int64_t> next{0};
    std::atomic_flag failed{};
    std::exception_ptr failure{};
  };

  static void take_tasks(Job& job) {
    for (int64_t task; (task = job.next.fetch_add(1, std::memory_order_relaxed)) < job.tasks;) {
      try {
        job.body(job.context, task);
      } catch (...) {
        if (!job.failed.test_and_set()) job.failure = std::current_exception();
        job.next.store(job.tasks);
      }
    }
  }

  template <class F>
  static uint32_t wait(const std::atomic<uint32_t>& value, F done) {
    constexpr int kSpins = 500;
    for (int i = 0; i < kSpins; ++i) {
      const uint32_t now = value.load();
      if (done(now)) return now;
      pause();
    }
    for (;;) {
      const uint32_t now = value.load();
      if (done(now)) return now;
      value.wait(now);
    }
  }

  void work(int number);

  std::mutex busy_;
  int workers_ = 0;
  std::atomic<Job*> job_{nullptr};
  std::atomic<uint32_t> epoch_{0};
  std::atomic<uint32_t> active_{0};
};

thread_local bool inside_a_job = false;

void ThreadPool::work(int number) {
  inside_a_job = true;
  for (uint32_t seen = 0;;) {
    seen = wait(epoch_, [seen](uint32_t epoch) { return epoch != seen; });
    active_.fetch_add(1);
    Job* job = job_.load();
    if (job && number < job->helpers) take_tasks(*job);
    if (active_.fetch_sub(1) == 1) active_.notify_all();
  }
}

// Never destroyed: its threads wait in it until the process ends.
ThreadPool& thread_pool() {
  static auto* instance = new ThreadPool();
  return *instance;
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
  if (threads > 1 && !inside_a_job) {
    inside_a_job = true;
    struct Leave {
      ~Leave() { inside_a_job = false; }
    } leave;
    if (thread_pool().run(threads, tasks, run, body)) return;
  }
  for (int64_t task = 0; task < tasks; ++task) run(body, task);
}

}  // namespace detail
}  // namespace sash
