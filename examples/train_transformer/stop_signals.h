#pragma once

#include <csignal>
#include <string>
#include <vector>

/// While it lives, signals that would end the program ask it to stop instead, so that it can save.
/// A signal that was ignored stays so (nohup, background jobs). A second Ctrl-C ends the program at
/// once. SIGXFSZ is ignored: a file that may not grow is then an error of writing.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The last signal that came, 0 before there is one.
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
std::string signal_name(int signal);
