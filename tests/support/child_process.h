#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

namespace sash::testing {

inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The path of a program that is built beside this one.
inline std::string program(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").replace_filename(name).string();
}

/// Whether there is such a program; without the examples there is nothing to test.
inline bool is_built(const std::string& program) {
  const bool built = std::filesystem::exists(program);
  if (!built) MESSAGE("skipped: ", program, " is not built");
  return built;
}

struct ChildOptions {
  bool stdout_is_a_pipe = false;  ///< that nobody reads, instead of a file
  rlim_t most_file_bytes = RLIM_INFINITY;
  int ignored_signal = 0;  ///< ignored when the program starts, as nohup does
};

/// A child process with its output in files; the destructor kills it.
class ChildProcess {
 public:
  /// `arguments` start with the program; `log` is where its output goes, to `log`.out and .err.
  ChildProcess(const std::vector<std::string>& arguments, std::string log,
               const ChildOptions& options = {})
      : log_(std::move(log)) {
    const char* const emulator = std::getenv("SASH_EMULATOR");  // of a cross build
    std::istringstream command(emulator ? emulator : "");
    std::vector<std::string> words{std::istream_iterator<std::string>(command), {}};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string out = log_ + ".out", err = log_ + ".err";
    int ends[2] = {-1, -1};
    if (options.stdout_is_a_pipe && ::pipe2(ends, O_CLOEXEC) == 0) reader_ = ends[0];
    process_ = ::fork();
    if (process_ != 0) {
      if (ends[1] >= 0) ::close(ends[1]);
      return;
    }
    // Only what is safe between fork and exec.
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
    ::dup2(ends[1] >= 0 ? ends[1] : ::open(out.c_str(), kFlags, 0600), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), kFlags, 0600), STDERR_FILENO);
    const rlimit limit{options.most_file_bytes, options.most_file_bytes};
    if (options.most_file_bytes != RLIM_INFINITY) ::setrlimit(RLIMIT_FSIZE, &limit);
    if (options.ignored_signal != 0) ::signal(options.ignored_signal, SIG_IGN);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~ChildProcess() {
    close_stdout();
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Writes to the pipe then fail.
  void close_stdout() {
    if (reader_ >= 0) ::close(reader_);
    reader_ = -1;
  }

  void send(int signal) const { ::kill(process_, signal); }

  /// The exit code, or minus the signal that ended it; -1000 if it still runs after a minute.
  int wait() {
    int status = 0;
    const bool ended = soon([&] { return ::waitpid(process_, &status, WNOHANG) == process_; });
    if (!ended) return -1000;
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  std::string out() const { return file_text(log_ + ".out"); }
  std::string err() const { return file_text(log_ + ".err"); }

  /// Whether `happens` within a minute.
  template <class Condition>
  static bool soon(Condition&& happens) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (std::chrono::steady_clock::now() < end) {
      if (happens()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }

 private:
  std::string log_;
  pid_t process_ = -1;
  int reader_ = -1;
};

}  // namespace sash::testing
