#include <doctest/doctest.h>
#include <sash/core/distributed/launch.h>

#include <chrono>
#include <string>

#include "../support/expect_error.h"

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
