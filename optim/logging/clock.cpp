#include "clock.h"

#include <chrono>

namespace sash::optim {

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace sash::optim
