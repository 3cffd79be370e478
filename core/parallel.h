#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "export.h"

namespace sash {

/// Threads that `parallel_for` may use: `set_num_threads`, else `SASH_NUM_THREADS`, else
/// `OMP_NUM_THREADS`, else one per processor. Callers on several threads share them.
SASH_API int num_threads();
/// `ValueError` unless `count` is in [1, 4096].
SASH_API void set_num_threads(int count);

namespace detail {
SASH_API void parallel_tasks(int64_t tasks, void (*run)(void*, int64_t), void* body);
}

/// Runs `body(begin, end)` over [0, count) in pieces of `grain`, on the thread pool.
///
/// The pieces depend on `count` and `grain` alone, never on the number of threads: a body that
/// writes only its own piece gives the same bits with any number. Nested calls run serially. The
/// first exception thrown by a body reaches the caller.
template <class F>
void parallel_for(int64_t count, int64_t grain, F&& body) {
  if (count <= 0) return;
  if (grain < 1) grain = 1;
  if (count <= grain) {
    body(int64_t{0}, count);
    return;
  }
  auto piece = [&](int64_t task) {
    const int64_t begin = task * grain;
    body(begin, count - begin < grain ? count : begin + grain);
  };
  detail::parallel_tasks((count + grain - 1) / grain,
                         [](void* f, int64_t task) { (*static_cast<decltype(piece)*>(f))(task); },
                         &piece);
}

/// The same with `body(i)` for each i.
template <class F>
void parallel_for_each(int64_t count, int64_t grain, F&& body) {
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace sash
