#pragma once

namespace sash::optim {

/// Seconds on a clock that never goes back. Its zero is any moment before the program's start.
double clock_seconds();

}  // namespace sash::optim
