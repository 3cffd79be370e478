// The connections of a job's ranks: one real rank, and sockets of this test in the place of the
// others. What they send is wrong, late or nothing.
#include <doctest/doctest.h>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "../support/child_process.h"
#include "../support/scopes.h"
#include "../support/temporary_folder.h"

using namespace sash::testing;

namespace {

constexpr char kBeat = 0, kError = 2, kFarewell = 3;  // the first byte of a frame

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}
std::string hello(int rank, int size, int version = 1, std::string_view magic = "sash job") {
  return std::string(magic) + bytes_of(version) + bytes_of(rank) + bytes_of(size);
}
std::string frame(char kind, std::string_view body) {
  return kind + bytes_of(static_cast<uint32_t>(body.size())) + std::string(body);
}

/// One end of a connection to a rank.
class End {
 public:
  explicit End(int socket) : socket_(socket) {}
  End(End&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  ~End() { close(); }

  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  End& send(std::string_view bytes) {
    CHECK(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(bytes.size()));
    return *this;
  }
  /// The next bytes; "closed" if the other end has closed the connection, "nothing" after 10 s.
  std::string receive(size_t count) {
    std::string got(count, '\0');
    size_t have = 0;
    while (have < count) {
      pollfd wait{socket_, POLLIN, 0};
      if (poll(&wait, 1, 10'000) <= 0) return "nothing";
      const ssize_t part = recv(socket_, got.data() + have, count - have, 0);
      if (part <= 0) return "closed";
      have += static_cast<size_t>(part);
    }
    return got;
  }
  /// The next frame of this kind, without its head.
  std::string receive_frame(char kind) {
    for (;;) {
      const std::string head = receive(5);
      if (head.size() != 5) return head;
      uint32_t size = 0;
      std::memcpy(&size, head.data() + 1, sizeof(size));
      const std::string body = size > 0 ? receive(size) : "";
      if (head[0] == kind) return body;
    }
  }

 private:
  int socket_;
};

/// A port of this host, and who listens there.
class Port {
 public:
  Port() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address_);
    REQUIRE(bind(socket_, address(), length) == 0);
    REQUIRE(getsockname(socket_, address(), &length) == 0);
  }
  ~Port() { free(); }
  std::string number() const { return std::to_string(ntohs(address_.sin_port)); }

  void free() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  void listen() const { REQUIRE(::listen(socket_, 4) == 0); }
  End accept() const { return End(accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC)); }
  /// Connects to whoever listens there within 10 s.
  End connect() const {
    for (int tries = 0; tries < 100; ++tries) {
      const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (::connect(socket, address(), sizeof(address_)) == 0) return End(socket);
      ::close(socket);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    FAIL("no rank listens");
    return End(-1);
  }

 private:
  sockaddr* address() const { return reinterpret_cast<sockaddr*>(&address_); }
  mutable sockaddr_in address_{};
  int socket_;
};

/// A rank that is a process. It ends with status 0 after `how`, "wait", which takes 4 s.
struct Rank {
  Rank(int rank, int size, const Port& port, const char* how = "wait", const char* timeout = "8",
       const char* host = "127.0.0.1")
      : rank_("RANK", std::to_string(rank).c_str()),
        size_("WORLD_SIZE", std::to_string(size).c_str()),
        host_("MASTER_ADDR", host),
        port_("SASH_PORT", port.number().c_str()),
        timeout_("SASH_TIMEOUT", timeout),
        process({program("sash_failing_rank"), how, "0"}, folder_.file("log")) {}
  std::string said() const { return file_text(folder_.file("log.err")); }

 private:
  const Environment rank_, size_, host_, port_, timeout_;
  const TemporaryFolder folder_;

 public:
  ChildProcess process;
};

constexpr const char* kEnd = "; all ranks end, and the last checkpoint stays\n";

}  // namespace

TEST_CASE("link: strangers are turned away, and the job waits for its ranks") {
  Port port;
  port.free();
  Rank first(0, 3, port, "wait", "8", "0.0.0.0");  // on all addresses of this host
  for (const std::string& wrong :
       {std::string("GET / HTTP/1.1\r\n\r\n"), hello(1, 3, 2), hello(1, 3, 1, "sash-job"),
        hello(1, 2), hello(0, 3), hello(3, 3), hello(-1, 3), std::string()}) {
    CHECK(port.connect().send(wrong).receive(1) == "closed");
  }
  End one = port.connect();
  one.send(hello(1, 3));
  CHECK(port.connect().send(hello(1, 3)).receive(1) == "closed");  // there is a rank 1
  End two = port.connect();
  two.send(hello(2, 3));
  CHECK(one.receive(5) == frame(kBeat, ""));
  CHECK(two.receive(5) == frame(kBeat, ""));
  const std::string farewell = bytes_of(int64_t{0}) + bytes_of(1);
  const std::string bytes = frame(kFarewell, farewell);
  one.send(bytes.substr(0, 3));  // in parts
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  one.send(bytes.substr(3) + frame(kFarewell, "short") + frame(kBeat, ""));
  CHECK(two.receive_frame(kFarewell) == farewell);
  one.close();  // after a farewell
  CHECK(two.receive_frame(kFarewell) == bytes_of(int64_t{0}) + bytes_of(0));
  CHECK(first.process.wait() == 0);
  CHECK(first.said().empty());
}

TEST_CASE("link: what a rank does wrong ends the job, and the others hear why") {
  const struct {
    const char *name, *timeout, *told;
  } ways[] = {{"close", "8", "rank 1 of 3 has died: its connection is closed"},
              {"no frame", "8", "rank 1 of 3 has sent something that is no frame"},
              {"silence", "2", "rank 1 of 3 has been silent for 2 s"},
              {"error", "8", "rank 1 of 3 has failed: no room"}};
  for (const auto& way : ways) {
    CAPTURE(way.name);
    const std::string name = way.name;
    Port port;
    port.free();
    Rank first(0, 3, port, "wait", way.timeout);
    End one = port.connect(), two = port.connect();
    one.send(hello(1, 3));
    two.send(hello(2, 3));
    CHECK(two.receive(5) == frame(kBeat, ""));
    std::atomic<bool> done{false};
    std::thread beats([&] {
      while (!done) {
        two.send(frame(kBeat, ""));
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
      }
    });
    if (name == "close") one.close();
    if (name == "no frame") one.send("\x01\xff\xff\xff\xff");
    if (name == "error") one.send(frame(kError, way.told));
    CHECK(two.receive_frame(kError) == way.told);
    done = true;
    beats.join();
    CHECK(first.process.wait() == 1);
    // The rank that failed says why itself.
    CHECK(first.said() == (name == "error" ? "" : "sash: " + std::string(way.told) + kEnd));
  }
}

TEST_CASE("link: a rank that is refused tries again, and ends with rank 0") {
  for (const bool dies : {true, false}) {
    Port port;
    port.listen();
    Rank second(1, 2, port);
    CHECK(port.accept().receive(20) == hello(1, 2));  // and closes it
    End first = port.accept();
    CHECK(first.receive(20) == hello(1, 2));
    first.send(frame(kBeat, ""));
    CHECK(first.receive(5) == frame(kBeat, ""));
    if (dies) {
      first.close();
    } else {
      first.send(frame(kError, "rank 0 of 2 has failed: no room"));
    }
    CHECK(second.process.wait() == 1);
    const std::string told = "sash: rank 0 of 2 has died: its connection is closed";
    CHECK(second.said() == (dies ? told + kEnd : ""));
  }
}

TEST_CASE("link: a rank goes on after another one that has ended as planned") {
  Port port;
  port.listen();
  Rank second(1, 3, port);
  End first = port.accept();
  CHECK(first.receive(20) == hello(1, 3));
  first.send(frame(kBeat, "") + frame(kFarewell, bytes_of(int64_t{0}) + bytes_of(2)));
  CHECK(first.receive_frame(kFarewell) == bytes_of(int64_t{0}) + bytes_of(1));
  CHECK(second.process.wait() == 0);
  CHECK(second.said().empty());
}

TEST_CASE("link: ranks that do not come within a minute are named") {
  Port port, nobody;
  port.free();
  Rank first(0, 11, port), second(1, 2, nobody);
  End one = port.connect();
  one.send(hello(1, 11));
  std::this_thread::sleep_for(std::chrono::seconds(58));
  CHECK(first.process.wait() == 4);
  CHECK(first.said() == "distributed: expected all 11 ranks within 60 s on port " + port.number() +
                            ", got nothing of ranks 2, 3, 4, 5, 6, 7, 8, 9, ...\n");
  CHECK(second.process.wait() == 4);
  CHECK(second.said() ==
        "distributed: expected a connection of rank 1 to rank 0 at 127.0.0.1, "
        "port " +
            nobody.number() + " within 60 s, got Connection refused\n");
}

TEST_CASE("link: a rank that throws something else than an exception says so") {
  Port port;
  port.free();
  Rank first(0, 2, port, "alien");
  End one = port.connect();
  one.send(hello(1, 2));
  const std::string told = "rank 0 of 2 has failed: an exception that is no std::exception";
  CHECK(one.receive_frame(kError) == told);
  CHECK(first.process.wait() == 1);
  CHECK(first.said() == "sash: " + told + kEnd);
}
