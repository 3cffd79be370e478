#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "dtype.h"
#include "export.h"
#include "generators.h"

namespace sash {

class KernelObserver;

/// A fork-join thread pool for the jobs of several callers. A job gets the idle workers that it can
/// use, at most its share: with C callers, `limit` / C threads, or the threads that others leave.
/// It gets more when other jobs end. A caller runs tasks of its own job only: a lock that the
/// caller holds cannot deadlock with another caller's job.
class ThreadPool {
 public:
  constexpr ThreadPool() = default;

  /// Runs `body(context, task)` for each task on up to `threads` threads, the caller's among them.
  void run(int threads, int64_t tasks, void (*body)(void*, int64_t), void* context);

  std::atomic<int> limit{0};  ///< threads of all jobs; 0: not read from the environment yet

 private:
  struct Job;
  struct Worker;

  void enter(Job& job);
  void leave(Job& job);
  void grow(int workers);
  void claim(Job& job);
  void feed();
  void take_back(Worker& worker, uint32_t posted) const;
  void work(Worker& worker);
  template <class F>
  void wait(const std::atomic<uint32_t>& value, F done) const;

  std::mutex mutex_;  // protects the members before `crowded_`
  Worker *first_ = nullptr, *last_ = nullptr;
  int workers_ = 0, processors_ = 0;
  int callers_ = 0;
  int wanted_ = 0;        // threads that all jobs together can use
  int used_ = 0;          // threads that all jobs together have
  Job* short_ = nullptr;  // a list of the jobs that can use more threads
  std::atomic<bool> crowded_{false};
  std::atomic<bool> has_short_{false};
};

/// The state of the process that threads share: one owner, never destroyed. Each member may be read
/// and written by any thread at any time.
struct Runtime {
  constexpr Runtime() = default;

  ThreadPool pool;
  detail::Generators generators;

  /// `KernelObserver::install`.
  std::mutex observer_mutex;
  std::shared_ptr<KernelObserver> observer;

  /// Settings for tensors that are made, and products that are computed, from now on.
  std::atomic<int64_t> default_device{-1};  ///< type in the upper half, index in the lower
  std::atomic<DType> default_dtype{DType::float32};
  std::atomic<bool> tf32{false};
};

SASH_API Runtime& runtime();

}  // namespace sash
