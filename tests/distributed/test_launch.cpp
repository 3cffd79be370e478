#include <doctest/doctest.h>
#include <sash/core/distributed/launch.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "../support/child_process.h"
#include "../support/expect_error.h"
#include "../support/scopes.h"
#include "../support/temporary_folder.h"

using sash::distributed::launch;

namespace {

int launch_shell(int ranks, const std::string& script) {
  return launch(ranks, {"sh", "-c", script});
}

}  // namespace

TEST_CASE("launch: each rank has its place in the variables of torchrun") {
  CHECK(launch_shell(3,
                     "[ $WORLD_SIZE = 3 ] && [ $LOCAL_RANK = $RANK ] && [ $RANK -lt 3 ] && "
                     "[ $MASTER_ADDR = 127.0.0.1 ] && [ $MASTER_PORT -gt 1024 ]") == 0);
  CHECK(launch_shell(2, "[ $SASH_NUM_THREADS -ge 1 ]") == 0);
}

TEST_CASE("launch: the status of the rank that failed") {
  CHECK(launch_shell(2, "exit $((RANK * 3))") == 3);
  CHECK(launch_shell(2, "[ $RANK = 1 ] || exit 0; kill -9 $$") == 128 + 9);
  CHECK(launch(1, {"/no/such/program"}) == 127);
}

TEST_CASE("launch: the other ranks end if one fails") {
  const auto start = std::chrono::steady_clock::now();
  CHECK(launch_shell(3, "[ $RANK = 1 ] && exit 7; exec sleep 60") == 7);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
}

TEST_CASE("launch: wrong calls") {
  using sash::testing::thrown_by;
  CHECK(thrown_by([] { launch(2, {}); }) ==
        "ValueError: launch: expected a program to start, got none");
  CHECK(thrown_by([] { launch(0, {"true"}); }) ==
        "ValueError: launch: expected 1 or more ranks, got 0");
}

TEST_CASE("launch: ranks that do not end when they are asked to are killed") {
  CHECK(launch_shell(2, "[ $RANK = 1 ] && exit 7; trap '' TERM; while :; do sleep 1; done") == 7);
}

TEST_CASE("launch: child" * doctest::skip()) {
  const char* const rank = std::getenv("RANK");
  std::exit(rank ? 5 * std::atoi(rank) : sash::distributed::launch_again(2));
}

TEST_CASE("launch: a program that starts itself again") {
  const TemporaryFolder folder;
  sash::testing::ChildProcess again(
      {sash::testing::program("sash_tests"), "--no-skip", "--test-case=launch: child"},
      folder.file("log"));
  CHECK(again.wait() == 5);
}

TEST_CASE("launch: signals are passed on to all ranks") {
  std::thread sender([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    kill(getpid(), SIGTERM);
  });
  CHECK(launch_shell(2, "exec sleep 60") == 128 + SIGTERM);
  sender.join();
}

TEST_CASE("launch: a rank that finds no job says why") {
  using sash::testing::Environment;
  const TemporaryFolder folder;
  const auto said = [&] {
    sash::testing::ChildProcess rank({sash::testing::program("sash_failing_rank"), "none", "0"},
                                     folder.file("log"));
    CHECK(rank.wait() == 4);
    return sash::testing::file_text(folder.file("log.err"));
  };
  const Environment rank("RANK", "0"), size("WORLD_SIZE", "2"), host("MASTER_ADDR", "127.0.0.1"),
      next("MASTER_PORT", "29500");
  for (const char* seconds : {"", "x", "1", "3x", "nan", "2e6"}) {
    const Environment timeout("SASH_TIMEOUT", seconds);
    CHECK(said() == "distributed: expected 2 or more seconds in the variable SASH_TIMEOUT, got " +
                        std::string(seconds) + "\n");
  }
  {
    const Environment other("RANK", "1"), nowhere("MASTER_ADDR", "no host");
    CHECK(said().starts_with("distributed: expected the address of rank 0's host, no host, got "));
  }
  const int busy = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(bind(busy, any, length) == 0);
  REQUIRE(listen(busy, 1) == 0);
  REQUIRE(getsockname(busy, any, &length) == 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const Environment taken("SASH_PORT", port.c_str());
  CHECK(said() == "distributed: expected to listen on port " + port +
                      " (SASH_PORT, else MASTER_PORT + 1), got Address already in use\n");
  close(busy);
}
