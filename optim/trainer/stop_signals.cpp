#include "stop_signals.h"

#include <atomic>

namespace sash::optim {
namespace {

// Signals from outside that end a program. Signals of faults (SIGSEGV, ...) are not caught.
constexpr struct {
  int signal;
  const char* name;
} kSignals[] = {{SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"},
                {SIGTERM, "SIGTERM"}, {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"},
                {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}, {SIGXCPU, "SIGXCPU"}};

std::atomic<int> last_signal{0}, open{0};  // the latter counts the objects
static_assert(std::atomic<int>::is_always_lock_free);

void request_stop(int signal) { last_signal = signal; }

struct sigaction action_of(void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  return action;
}

}  // namespace

StopSignals::StopSignals() {
  if (open++ == 0) last_signal = 0;
  const auto set = [this](int signal, const struct sigaction& action) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) return;
    sigaction(signal, &action, nullptr);
    earlier_.push_back({signal, before});
  };
  for (const auto& [signal, name] : kSignals) {
    const bool keyboard = signal == SIGINT || signal == SIGQUIT;
    const unsigned once = keyboard ? static_cast<unsigned>(SA_RESETHAND) : 0u;
    set(signal, action_of(request_stop, static_cast<int>(SA_RESTART | once)));
  }
  set(SIGXFSZ, action_of(SIG_IGN, 0));
}

StopSignals::~StopSignals() {
  for (const Earlier& earlier : earlier_) sigaction(earlier.signal, &earlier.action, nullptr);
  --open;
}

int StopSignals::received() const { return last_signal; }

std::string signal_name(int signal) {
  for (const auto& known : kSignals) {
    if (known.signal == signal) return known.name;
  }
  return "signal " + std::to_string(signal);
}

}  // namespace sash::optim
