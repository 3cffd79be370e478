#include "link.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "../error.h"

namespace sash::distributed {
namespace {

using std::chrono::milliseconds;

constexpr const char* kLink = "distributed";
constexpr int64_t kConnectMs = 60'000, kBeatMs = 1'000, kAbortMs = 2'000;
constexpr uint32_t kMostBytes = 1 << 20;  // of a frame

// The first frame of a rank, so that a stranger on the port is not taken for one.
struct Hello {
  char magic[8] = {'s', 'a', 's', 'h', ' ', 'j', 'o', 'b'};
  int32_t version = 1, rank = 0, size = 0;
};

int64_t now_ms() {
  return std::chrono::duration_cast<milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string reason() { return std::strerror(errno); }

void set_options(int socket) {
  const int one = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  const timeval wait{.tv_sec = 5, .tv_usec = 0};
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
}

bool send_bytes(int socket, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = ::send(socket, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

// Whether all bytes came before `deadline`.
bool receive_bytes(int socket, void* data, size_t size, int64_t deadline) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    pollfd wait{socket, POLLIN, 0};
    const int64_t left = deadline - now_ms();
    if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) < 0) {
      if (left > 0 && errno == EINTR) continue;
      return false;
    }
    const ssize_t got = recv(socket, at, size, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses find_addresses(const char* host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
  if (error == 0) return Addresses(found);
  throw IoError(kLink, "the address of rank 0's host, " + std::string(host ? host : "this one"),
                gai_strerror(error));
}

int listen_on(const addrinfo& address) {
  const int socket = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  const int one = 1, zero = 0;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (address.ai_family == AF_INET6) {
    setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
  }
  if (bind(socket, address.ai_addr, address.ai_addrlen) == 0 && listen(socket, 1024) == 0) {
    return socket;
  }
  const int error = errno;
  close(socket);
  errno = error;
  return -1;
}

bool is_this_host(const std::string& host) {
  return host.starts_with("127.") || host == "localhost" || host == "::1";
}

std::string list_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < 8; ++i)
    text += (i ? ", " : "") + std::to_string(ranks[i]);
  return ranks.size() > 8 ? text + ", ..." : text;
}

}  // namespace

Link::Link(const Place& place) : place_(place) {
  if (const char* text = std::getenv("SASH_TIMEOUT")) {
    char* end = nullptr;
    const double seconds = std::strtod(text, &end);
    if (end == text || *end != '\0' || !(seconds >= 2 && seconds <= 1e6)) {
      throw ValueError(kLink, "2 or more seconds in the variable SASH_TIMEOUT", text);
    }
    timeout_ms_ = static_cast<int64_t>(seconds * 1000);
  }
  place_.rank == 0 ? accept_all() : connect_to_first();
  for (Peer& peer : peers_) peer.heard = now_ms();
  std::thread(&Link::watch, this).detach();
}

void Link::accept_all() {
  const char* const host = is_this_host(place_.host) ? place_.host.c_str() : nullptr;
  int listener = -1;
  const Addresses found = find_addresses(host, place_.port, AI_PASSIVE);
  // IPv6 first, whose sockets take IPv4 as well.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* at = found.get(); at && listener < 0; at = at->ai_next) {
      if (at->ai_family == family) listener = listen_on(*at);
    }
  }
  if (listener < 0) {
    throw IoError(
        kLink,
        "to listen on port " + std::to_string(place_.port) + " (SASH_PORT, else MASTER_PORT + 1)",
        reason());
  }
  const int64_t deadline = now_ms() + kConnectMs;
  std::vector<int> sockets(static_cast<size_t>(place_.size), -1);
  for (int missing = place_.size - 1; missing > 0;) {
    pollfd wait{listener, POLLIN, 0};
    const int64_t left = deadline - now_ms();
    if (left <= 0) {
      std::vector<int> ranks;
      for (int r = 1; r < place_.size; ++r) {
        if (sockets[static_cast<size_t>(r)] < 0) ranks.push_back(r);
      }
      close(listener);
      throw IoError(kLink,
                    "all " + std::to_string(place_.size) + " ranks within 60 s on port " +
                        std::to_string(place_.port),
                    "nothing of " + list_of(ranks));
    }
    if (poll(&wait, 1, static_cast<int>(left)) <= 0) continue;
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    set_options(socket);
    Hello hello;
    const Hello expected;
    const bool known = receive_bytes(socket, &hello, sizeof(hello), now_ms() + kBeatMs) &&
                       std::memcmp(hello.magic, expected.magic, sizeof(hello.magic)) == 0 &&
                       hello.version == expected.version && hello.size == place_.size &&
                       hello.rank > 0 && hello.rank < place_.size;
    if (!known || sockets[static_cast<size_t>(hello.rank)] >= 0) {
      close(socket);
      continue;
    }
    sockets[static_cast<size_t>(hello.rank)] = socket;
    --missing;
  }
  close(listener);
  for (int r = 1; r < place_.size; ++r) {
    Peer peer;
    peer.rank = r;
    peer.socket = sockets[static_cast<size_t>(r)];
    peers_.push_back(std::move(peer));
  }
  send_all(Kind::heartbeat, "");  // tells each rank that it is accepted
}

void Link::connect_to_first() {
  const int64_t deadline = now_ms() + kConnectMs;
  std::string last = "no connection";
  while (now_ms() < deadline) {
    const Addresses found = find_addresses(place_.host.c_str(), place_.port, 0);
    for (const addrinfo* at = found.get(); at; at = at->ai_next) {
      const int socket = ::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (socket < 0) continue;
      Hello hello;
      hello.rank = place_.rank;
      hello.size = place_.size;
      char accepted[5];
      if (connect(socket, at->ai_addr, at->ai_addrlen) == 0) {
        set_options(socket);
        // Rank 0 answers once all ranks are there.
        if (send_bytes(socket, &hello, sizeof(hello)) &&
            receive_bytes(socket, accepted, sizeof(accepted), deadline + kBeatMs)) {
          Peer peer;
          peer.socket = socket;
          peers_.push_back(std::move(peer));
          return;
        }
        last = "refused by the program on that port: another job?";
      } else {
        last = reason();
      }
      close(socket);
    }
    std::this_thread::sleep_for(milliseconds(100));
  }
  throw IoError(kLink,
                "a connection of rank " + std::to_string(place_.rank) + " to rank 0 at " +
                    place_.host + ", port " + std::to_string(place_.port) + " within 60 s",
                last);
}

void Link::send(const Peer& peer, Kind kind, std::string_view body) noexcept {
  const auto size = static_cast<uint32_t>(body.size());
  std::string frame(1, static_cast<char>(kind));
  frame.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(body);
  const std::lock_guard lock(send_mutex_);
  send_bytes(peer.socket, frame.data(), frame.size());  // a lost peer is seen by `watch`
}

void Link::send_all(Kind kind, std::string_view body, int except) noexcept {
  for (const Peer& peer : peers_) {
    if (peer.rank != except) send(peer, kind, body);
  }
}

std::string Link::named(int rank) const {
  return "rank " + std::to_string(rank) + " of " + std::to_string(place_.size);
}

void Link::watch() {
  int64_t beat = 0;
  for (;;) {
    std::vector<pollfd> waits;
    for (const Peer& peer : peers_) waits.push_back({peer.finished ? -1 : peer.socket, POLLIN, 0});
    poll(waits.data(), waits.size(), 200);
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (waits[i].revents != 0) read(peers_[i]);
    }
    const int64_t now = now_ms();
    if (now - beat >= kBeatMs) {
      beat = now;
      send_all(Kind::heartbeat, "");
    }
    for (Peer& peer : peers_) {
      if (!peer.finished && now - peer.heard > timeout_ms_) {
        lost(peer, "has been silent for " + std::to_string(timeout_ms_ / 1000) + " s");
      }
    }
  }
}

void Link::read(Peer& peer) {
  char buffer[4096];
  const ssize_t got = recv(peer.socket, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) return lost(peer, "has died: its connection is closed");
  peer.heard = now_ms();
  std::string& bytes = peer.received;
  bytes.append(buffer, static_cast<size_t>(got));
  for (;;) {
    uint32_t size = 0;
    constexpr size_t head = 1 + sizeof(size);
    if (bytes.size() < head) return;
    std::memcpy(&size, bytes.data() + 1, sizeof(size));
    if (size > kMostBytes) return lost(peer, "has sent something that is no frame");
    if (bytes.size() < head + size) return;
    const auto kind = static_cast<Kind>(bytes[0]);
    const std::string body = bytes.substr(head, size);
    bytes.erase(0, head + size);
    take(peer, kind, body);
  }
}

void Link::take(Peer& peer, Kind kind, std::string_view body) {
  if (kind == Kind::bytes) {
    const std::lock_guard lock(mutex_);
    shared_.emplace_back(body);
    arrived_.notify_all();
  } else if (kind == Kind::error) {
    if (place_.rank == 0) send_all(Kind::error, body, peer.rank);
    end(std::string(body), false);
  } else if (kind == Kind::farewell && body.size() == sizeof(int64_t) + sizeof(int32_t)) {
    int64_t calls = 0;
    int32_t rank = 0;
    std::memcpy(&calls, body.data(), sizeof(calls));
    std::memcpy(&rank, body.data() + sizeof(calls), sizeof(rank));
    if (rank == peer.rank) peer.finished = true;
    if (place_.rank == 0) send_all(Kind::farewell, body, peer.rank);
    note_farewell(rank, calls);
  }
}

void Link::note_farewell(int rank, int64_t calls) {
  {
    const std::lock_guard lock(mutex_);
    ended_[rank] = calls;
  }
  count_calls(0);
}

void Link::count_calls(int64_t calls) {
  const int64_t made = calls_ += calls;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || finished_) return;  // held for an instant; `note_farewell` compares as well
  for (const auto& [rank, theirs] : ended_) {
    if (made <= theirs) continue;
    end(named(rank) + " ended its program after " + std::to_string(theirs) +
            " collectives, but rank " + std::to_string(place_.rank) + " waits in number " +
            std::to_string(theirs + 1),
        true);
  }
}

// A rank is gone without a farewell. Rank 0 tells the others; if rank 0 itself is gone, each rank
// sees it, and rank 1 prints.
void Link::lost(const Peer& peer, const std::string& text) {
  if (finished_) {
    for (Peer& known : peers_) {
      if (known.rank == peer.rank) known.finished = true;
    }
    return;
  }
  const std::string all = named(peer.rank) + " " + text;
  if (place_.rank == 0) send_all(Kind::error, all, peer.rank);
  end(all, place_.rank == 0 || place_.rank == 1);
}

std::string Link::share(const std::string& bytes) {
  if (place_.rank == 0) {
    send_all(Kind::bytes, bytes);
    return bytes;
  }
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [&] { return !shared_.empty(); });
  std::string found = std::move(shared_.front());
  shared_.pop_front();
  return found;
}

void Link::fail(std::string_view text) {
  const std::string all = named(place_.rank) + " has failed: " + std::string(text.substr(0, 4096));
  send_all(Kind::error, all);
  end(all, true);
}

void Link::finish() noexcept {
  if (finished_.exchange(true)) return;
  const int64_t calls = calls_;
  const int32_t rank = place_.rank;
  std::string body(reinterpret_cast<const char*>(&calls), sizeof(calls));
  body.append(reinterpret_cast<const char*>(&rank), sizeof(rank));
  send_all(Kind::farewell, body);
}

void Link::on_failure(std::function<void()> abort) {
  const std::lock_guard lock(mutex_);
  aborts_.push_back(std::move(abort));
}

// Does not return; of several threads, the first one ends the process.
void Link::end(const std::string& text, bool print) {
  if (ending_.exchange(true)) {
    for (;;) std::this_thread::sleep_for(milliseconds(kAbortMs));
  }
  if (print) {
    std::fprintf(stderr, "sash: %s; all ranks end, and the last checkpoint stays\n", text.c_str());
    std::fflush(stderr);
  }
  auto* const done = new std::atomic<bool>(false);
  std::thread([this, done] {
    for (const auto& abort : aborts_) abort();
    done->store(true);
  }).detach();
  for (const int64_t start = now_ms(); !*done && now_ms() - start < kAbortMs;) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  std::_Exit(1);
}

}  // namespace sash::distributed
