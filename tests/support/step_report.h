#pragma once

#include <sash/optim/trainer/callback.h>

namespace sash::testing {

/// A step of a training.
inline optim::StepReport report_of(int64_t step) {
  return {.step = step,
          .steps = 200,
          .loss = 2,
          .lr = 1e-3,
          .grad_norm = 0.5,
          .seconds = 0.5,
          .tokens = 6000};
}

}  // namespace sash::testing
