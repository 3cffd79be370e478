#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <system_error>
#include <thread>

#include "error.h"
#include "locks.h"
#include "quote.h"
#include "runtime.h"
#include "small_vector.h"

namespace sash {
namespace {

constexpr int kMostThreads = 4096;

// A number of threads from the environment; 0 where `variable` is not set.
int threads_from(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text || *text == '\0') return 0;
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  if ((*end != '\0' && *end != ',') || count < 1 || count > kMostThreads) {
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

// How long a thread spins before it sleeps. A sleeping thread gets its processor back late: after
// tens of microseconds on an idle machine, and after the time slice of whatever runs there on a
// busy one, milliseconds during which the others wait for it. The gaps between the kernels of a
// step are shorter than this. Spinning for much longer, or with more threads than processors, takes
// the processor from the thread that is waited for.
constexpr std::chrono::microseconds kSpin{400};
constexpr std::chrono::microseconds kSpinIfCrowded{5};

// The low two bits of a worker's state. The others count its jobs, so that who waits for the end of
// one is not misled by the next.
enum Phase : uint32_t { idle, posted, working, kPhases = 4 };

thread_local bool inside_a_job = false;

}  // namespace

struct alignas(64) ThreadPool::Worker {
  std::atomic<uint32_t> state{idle};
  Job* job = nullptr;
  Worker* next = nullptr;
};

struct ThreadPool::Job {
  void (*body)(void*, int64_t);
  void* context;
  int64_t tasks;
  int threads;
  SmallVector<std::pair<Worker*, uint32_t>, 16> helpers{};  // each with its state when posted
  bool is_short = false;
  Job* next_short = nullptr;
  alignas(64) std::atomic<int64_t> next{0};
  std::atomic_flag failed{};
  std::exception_ptr failure{};

  void take_tasks() {
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      try {
        body(context, task);
      } catch (...) {
        if (!failed.test_and_set()) failure = std::current_exception();
        next.store(tasks);
      }
    }
  }
};

void ThreadPool::run(int threads, int64_t tasks, void (*body)(void*, int64_t), void* context) {
  Job job{.body = body, .context = context, .tasks = tasks, .threads = threads};
  job.helpers.reserve(static_cast<size_t>(threads - 1));
  enter(job);
  job.take_tasks();
  leave(job);
  if (job.failure) std::rethrow_exception(job.failure);
}

void ThreadPool::enter(Job& job) {
  const std::lock_guard lock(mutex_);
  if (workers_ < job.threads - 1) grow(job.threads - 1);
  ++callers_;
  ++used_;
  wanted_ += job.threads;
  claim(job);
  if (static_cast<int>(job.helpers.size()) + 1 < job.threads) {
    job.is_short = true;
    job.next_short = short_;
    short_ = &job;
    has_short_.store(true);
    claim(job);  // workers that became idle before they could see this
  }
}

// At the join, the caller takes the job back from workers that have not begun, and waits for the
// others.
void ThreadPool::leave(Job& job) {
  if (job.is_short) {
    const std::lock_guard lock(mutex_);
    Job** at = &short_;
    while (*at != &job) at = &(*at)->next_short;
    *at = job.next_short;
    has_short_.store(short_ != nullptr);
  }
  for (const auto& [worker, state] : job.helpers) take_back(*worker, state);
  const std::lock_guard lock(mutex_);
  --callers_;
  used_ -= 1 + static_cast<int>(job.helpers.size());
  wanted_ -= job.threads;
  feed();
}

void ThreadPool::grow(int workers) {
  processors_ = static_cast<int>(std::thread::hardware_concurrency());
  for (; workers_ < workers; ++workers_) {
    auto worker = std::make_unique<Worker>();
    try {
      std::thread([this, at = worker.get()] { work(*at); }).detach();
    } catch (const std::system_error&) {
      return;  // the system has no more threads: those that exist do the work
    }
    Worker*& end = last_ ? last_->next : first_;
    end = last_ = worker.release();
  }
}

// Posts the job to idle workers, as many as it may have now.
void ThreadPool::claim(Job& job) {
  const int most = limit.load(std::memory_order_relaxed);
  const int share = std::max(most - (wanted_ - job.threads), most / callers_);
  const int helpers = std::min(job.threads, share) - 1;
  for (Worker* worker = first_; worker; worker = worker->next) {
    if (static_cast<int>(job.helpers.size()) >= helpers) break;
    const uint32_t state = worker->state.load();
    if (state % kPhases != idle) continue;
    worker->job = &job;
    job.helpers.push_back({worker, state + posted});
    worker->state.store(state + posted);
    worker->state.notify_all();
    ++used_;
  }
  crowded_.store(used_ > processors_, std::memory_order_relaxed);
}

// Gives idle workers to jobs that can use more.
void ThreadPool::feed() {
  for (Job* job = short_; job; job = job->next_short) {
    if (job->next.load(std::memory_order_relaxed) < job->tasks) claim(*job);
  }
}

void ThreadPool::take_back(Worker& worker, uint32_t state) const {
  uint32_t expected = state;
  if (worker.state.compare_exchange_strong(expected, state - posted + kPhases)) return;
  const uint32_t begun = state - posted + working;
  wait(worker.state, [begun](uint32_t now) { return now != begun; });
}

void ThreadPool::work(Worker& worker) {
  inside_a_job = true;
  for (;;) {
    wait(worker.state, [](uint32_t state) { return state % kPhases == posted; });
    uint32_t state = worker.state.load();
    const uint32_t before = state - posted;
    if (state % kPhases != posted) continue;
    if (!worker.state.compare_exchange_strong(state, before + working)) continue;
    worker.job->take_tasks();
    worker.state.store(before + kPhases);
    worker.state.notify_all();
    if (!has_short_.load()) continue;
    const std::lock_guard lock(mutex_);
    feed();
  }
}

template <class F>
void ThreadPool::wait(const std::atomic<uint32_t>& value, F done) const {
  using Clock = std::chrono::steady_clock;
  constexpr int kPauses = 16;  // between looks at the clock
  const bool crowded = crowded_.load(std::memory_order_relaxed);
  for (int i = 0; i < kPauses; ++i) {
    if (done(value.load())) return;
    spin_pause();
  }
  const auto end = Clock::now() + (crowded ? kSpinIfCrowded : kSpin);
  do {
    for (int i = 0; i < kPauses; ++i) {
      if (done(value.load())) return;
      spin_pause();
    }
  } while (Clock::now() < end);
  for (uint32_t now; !done(now = value.load());) value.wait(now);
}

int num_threads() {
  std::atomic<int>& limit = runtime().pool.limit;
  int count = limit.load(std::memory_order_relaxed);
  if (count > 0) return count;
  const int initial = initial_threads();
  return limit.compare_exchange_strong(count, initial) ? initial : count;
}

void set_num_threads(int count) {
  if (count < 1 || count > kMostThreads) {
    throw ValueError("set_num_threads", "a number of threads in [1, 4096]", std::to_string(count));
  }
  runtime().pool.limit.store(count, std::memory_order_relaxed);
}

namespace detail {

void parallel_tasks(int64_t tasks, void (*run)(void*, int64_t), void* body) {
  const int threads = static_cast<int>(std::min<int64_t>(num_threads(), tasks));
  if (threads > 1 && !inside_a_job) {
    inside_a_job = true;
    struct Leave {
      ~Leave() { inside_a_job = false; }
    } leave;
    return runtime().pool.run(threads, tasks, run, body);
  }
  for (int64_t task = 0; task < tasks; ++task) run(body, task);
}

}  // namespace detail
}  // namespace sash
