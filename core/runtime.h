#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "dtype.h"
#include "export.h"
#include "generators.h"
#include "thread_pool.h"

namespace sash {

class KernelObserver;

/// The state of the process that threads share: one owner, never destroyed. Each member may be read
/// and written by any thread at any time.
struct Runtime {
  constexpr Runtime() = default;

  ThreadPool pool;
  detail::Generators generators;

  /// `KernelObserver::install`.
  std::mutex observer_mutex;
  std::shared_ptr<KernelObserver> observer;

  /// Settings for what is made next.
  std::atomic<int64_t> default_device{-1};  ///< type in the upper half, index in the lower
  std::atomic<DType> default_dtype{DType::float32};
  std::atomic<bool> tf32{false};
};

SASH_API Runtime& runtime();

}  // namespace sash
