#include "launch.h"

#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "../error.h"

extern char** environ;

namespace sash::distributed {
namespace {

constexpr const char* kLaunch = "launch";
constexpr auto kPatience = std::chrono::seconds(5);
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t received = 0;

// Notes the signals that are to be passed on, for a scope.
class Handlers {
 public:
  Handlers() {
    received = 0;
    struct sigaction note {};
    note.sa_handler = [](int number) { received = number; };
    for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &note, &former_[i]);
  }
  ~Handlers() {
    for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &former_[i], nullptr);
  }
  Handlers(const Handlers&) = delete;
  Handlers& operator=(const Handlers&) = delete;

 private:
  struct sigaction former_[std::size(kSignals)]{};
};

bool can_bind(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool free = bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(socket);
  return free;
}

// A port whose successor, on which rank 0 listens, is free.
int free_port() {
  for (int port = 20000 + static_cast<int>(getpid()) % 20000; port < 60000; port += 7) {
    if (can_bind(port + 1)) return port;
  }
  throw IoError(kLaunch, "a free port", "none from 20000 to 60000");
}

std::vector<std::string> variables_of(int rank, int ranks, int port) {
  std::vector<std::string> set = {"RANK=" + std::to_string(rank),
                                  "LOCAL_RANK=" + std::to_string(rank),
                                  "WORLD_SIZE=" + std::to_string(ranks), "MASTER_ADDR=127.0.0.1",
                                  "MASTER_PORT=" + std::to_string(port)};
  if (!std::getenv("SASH_NUM_THREADS")) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    set.push_back("SASH_NUM_THREADS=" + std::to_string(std::max(1, cores / ranks)));
  }
  std::vector<std::string> all = set;
  for (char** at = environ; *at; ++at) {
    const std::string one = *at;
    const std::string name = one.substr(0, one.find('=') + 1);
    const bool replaced = std::any_of(set.begin(), set.end(),
                                      [&](const std::string& s) { return s.starts_with(name); });
    if (!replaced) all.push_back(one);
  }
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

pid_t start(std::vector<std::string> command, std::vector<std::string> variables) {
  const std::vector<char*> arguments = pointers_to(command), environment = pointers_to(variables);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // if this program is killed, its ranks end
  if (getppid() != parent) _exit(1);
  execvpe(arguments[0], arguments.data(), environment.data());
  const std::string text =
      "launch: cannot start " + command[0] + ": " + std::strerror(errno) + "\n";
  const ssize_t ignored = write(STDERR_FILENO, text.data(), text.size());
  (void)ignored;
  _exit(127);
}

void signal_all(const std::vector<pid_t>& running, int number) {
  for (const pid_t child : running) kill(child, number);
}

}  // namespace

int launch(int ranks, const std::vector<std::string>& command) {
  if (command.empty()) throw ValueError(kLaunch, "a program to start", "none");
  if (ranks < 1) throw ValueError(kLaunch, "1 or more ranks", std::to_string(ranks));
  const Handlers handlers;
  const int port = free_port();
  std::vector<pid_t> running;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = start(command, variables_of(rank, ranks, port));
    if (child < 0) {
      const std::string reason = std::strerror(errno);
      signal_all(running, SIGKILL);
      throw IoError(kLaunch, "to start a process", reason);
    }
    running.push_back(child);
  }
  int first_failure = 0;
  std::optional<std::chrono::steady_clock::time_point> ending;
  while (!running.empty()) {
    if (const int number = received) {
      received = 0;
      signal_all(running, number);
    }
    for (const pid_t child : std::vector(running)) {
      int status = 0;
      if (waitpid(child, &status, WNOHANG) != child) continue;
      std::erase(running, child);
      const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      if (code == 0 || first_failure != 0) continue;
      first_failure = code;
      // The others see the failure themselves, and say which rank it was.
      ending = std::chrono::steady_clock::now() + kPatience;
    }
    if (ending && std::chrono::steady_clock::now() > *ending) {
      signal_all(running,
                 std::chrono::steady_clock::now() > *ending + kPatience ? SIGKILL : SIGTERM);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return first_failure;
}

int launch_again(int ranks) {
  std::ifstream arguments("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> command;
  for (std::string text; std::getline(arguments, text, '\0');) command.push_back(text);
  if (!command.empty()) command[0] = std::filesystem::read_symlink("/proc/self/exe").string();
  return launch(ranks, command);
}

}  // namespace sash::distributed
