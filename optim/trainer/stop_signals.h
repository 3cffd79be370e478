#pragma once

#include <csignal>
#include <string>
#include <vector>

#include "../../core/export.h"

namespace sash::optim {

/// During its lifetime, signals that would end the program set `stop()` instead, so that it can
/// save a checkpoint first. Signals that were ignored before (nohup, background jobs) stay ignored.
/// A second Ctrl-C ends the program at once. SIGXFSZ is ignored, so that a file size limit is a
/// write error. Of nested ones, all see a signal, those made after it too.
class SASH_API StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The last signal received since the outermost was made, or 0.
  int received() const;
  bool stop() const { return received() != 0; }

 private:
  struct Earlier {
    int signal;
    struct sigaction action;
  };
  std::vector<Earlier> earlier_;
};

/// "SIGTERM".
SASH_API std::string signal_name(int signal);

}  // namespace sash::optim
