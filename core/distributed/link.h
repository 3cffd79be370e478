#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "../launcher.h"

namespace sash::distributed {

/// TCP connections of a job: from each rank to rank 0. They carry NCCL's ids, texts of errors and
/// heartbeats. A thread watches them. If a rank fails, closes its connection without a farewell, or
/// is silent for `timeout`, the thread prints one line that names the rank, on one rank, and ends
/// the process with status 1. It calls the functions of `on_failure` first, for at most 2 s.
///
/// Whoever can connect to the port can end the job: use it in a trusted network, as NCCL and MPI.
class Link {
 public:
  /// Connects all ranks. `IoError` that names the missing ranks if that takes more than 60 s.
  /// `timeout` is the variable SASH_TIMEOUT in seconds, 8 by default.
  explicit Link(const Place& place);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// The bytes that rank 0 passes, on all ranks.
  std::string share(const std::string& bytes);
  /// Ends all processes of the job: this rank has failed. Prints `text` with the rank.
  [[noreturn]] void fail(std::string_view text);
  /// Says that this process ends as planned. Later calls do nothing.
  void finish() noexcept;
  /// Has `abort` called before the process ends because of a failure.
  void on_failure(std::function<void()> abort);
  /// Counts `calls` collectives of all ranks. If a rank that has ended made fewer, they would wait
  /// for it for ever: ends the process.
  void count_calls(int64_t calls);

 private:
  enum class Kind : uint8_t { heartbeat, bytes, error, farewell };
  struct Peer {
    int rank = 0;
    int socket = -1;
    int64_t heard = 0;       // milliseconds
    std::string received{};  // part of a frame
    bool finished = false;
  };

  void accept_all();
  void connect_to_first();
  void watch();
  void read(Peer& peer);
  void take(Peer& peer, Kind kind, std::string_view body);
  void note_farewell(int rank, int64_t calls);
  void lost(const Peer& peer, const std::string& text);
  void send(const Peer& peer, Kind kind, std::string_view body) noexcept;
  void send_all(Kind kind, std::string_view body, int except = -1) noexcept;
  [[noreturn]] void end(const std::string& text, bool print);
  std::string named(int rank) const;

  const Place place_;
  int64_t timeout_ms_ = 8000;
  std::vector<Peer> peers_;  // rank 0's: all others; another rank's: rank 0
  std::mutex send_mutex_, mutex_;
  std::condition_variable arrived_;
  std::deque<std::string> shared_;
  std::vector<std::function<void()>> aborts_;
  std::map<int, int64_t> ended_;  // ranks that said farewell, and their calls
  std::atomic<int64_t> calls_{0};
  std::atomic<bool> finished_{false}, ending_{false};
};

}  // namespace sash::distributed
