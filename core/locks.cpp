#include "locks.h"

#include <thread>

#include "export.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sash {

SASH_API void spin_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void SpinLock::wait() const {
  constexpr int kPauses = 64;
  for (int i = 0; flag_.test(std::memory_order_relaxed); ++i) {
    if (i < kPauses) {
      spin_pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace sash
