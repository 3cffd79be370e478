#include "parallel.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
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

// How long a thread spins before it sleeps. A sleeping thread gets its processor back late: after
// tens of microseconds on an idle machine, and after the time slice of whatever runs there on a
// busy one, milliseconds during which the others wait for it. The gaps between the kernels of a
// step are shorter than this. Spinning for much longer, or with more threads than processors, takes
// the processor from the thread that is waited for.
constexpr std::chrono::microseconds kSpin{400};
constexpr std::chrono::microseconds kSpinIfCrowded{5};

// A fork-join thread pool for one job at a time. Each worker has a mailbox. At the join, the caller
// takes the job back from workers that have not begun, and waits for the others.
class ThreadPool {
 public:
  // Runs the tasks on up to `threads` threads, the caller's among them. False, without running
  // anything, if the pool is busy with another thread's job.
  bool run(int threads, int64_t tasks, void (*body)(void*, int64_t), void* context) {
    const std::unique_lock busy(busy_, std::try_to_lock);
    if (!busy) return false;
    const auto helpers = static_cast<size_t>(threads - 1);
    while (workers_.size() < helpers) {
      Worker& worker = workers_.emplace_back();
      std::thread([this, &worker] { work(worker); }).detach();
    }
    crowded_.store(threads > processors_, std::memory_order_relaxed);
    Job job{.body = body, .context = context, .tasks = tasks};
    for (size_t i = 0; i < helpers; ++i) post(workers_[i], job);
    take_tasks(job);
    for (size_t i = 0; i < helpers; ++i) take_back(workers_[i]);
    if (job.failure) std::rethrow_exception(job.failure);
    return true;
  }

 private:
  struct Job {
    void (*body)(void*, int64_t);
    void* context;
    int64_t tasks;
    alignas(64) std::atomic<int64_t> next{0};
    std::atomic_flag failed{};
    std::exception_ptr failure{};
  };

  enum State : uint32_t { idle, posted, working };
  struct alignas(64) Worker {
    std::atomic<uint32_t> state{idle};
    Job* job = nullptr;
  };

  static void post(Worker& worker, Job& job) {
    worker.job = &job;
    worker.state.store(posted);
    worker.state.notify_one();
  }

  void take_back(Worker& worker) const {
    uint32_t expected = posted;
    if (worker.state.compare_exchange_strong(expected, idle)) return;
    wait(worker.state, [](uint32_t state) { return state == idle; });
  }

  void work(Worker& worker) const;

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
  void wait(const std::atomic<uint32_t>& value, F done) const {
    using Clock = std::chrono::steady_clock;
    constexpr int kPauses = 16;  // between looks at the clock
    const bool crowded = crowded_.load(std::memory_order_relaxed);
    for (int i = 0; i < kPauses; ++i) {
      if (done(value.load())) return;
      pause();
    }
    const auto end = Clock::now() + (crowded ? kSpinIfCrowded : kSpin);
    do {
      for (int i = 0; i < kPauses; ++i) {
        if (done(value.load())) return;
        pause();
      }
    } while (Clock::now() < end);
    for (uint32_t now; !done(now = value.load());) value.wait(now);
  }

  std::mutex busy_;
  std::deque<Worker> workers_;
  const int processors_ = static_cast<int>(std::thread::hardware_concurrency());
  std::atomic<bool> crowded_{false};
};

thread_local bool inside_a_job = false;

void ThreadPool::work(Worker& worker) const {
  inside_a_job = true;
  for (;;) {
    wait(worker.state, [](uint32_t state) { return state == posted; });
    uint32_t expected = posted;
    if (!worker.state.compare_exchange_strong(expected, working)) continue;
    take_tasks(*worker.job);
    worker.state.store(idle);
    worker.state.notify_one();
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
