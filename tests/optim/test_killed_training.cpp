// A training with a checkpoint after every step is killed at random moments, and resumed each time:
// the newest file always loads, and every loss has the bits of a training that nobody kills.
// SASH_LONG_TESTS: 200 times. SASH_KILLS: so many times, at moments by SASH_KILLS_SEED.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <thread>

#include <doctest/doctest.h>

#include <sash/optim/checkpoint.h>
#include <sash/optim/trainer/checkpoint_folder.h>
#include <sash/tensor/random.h>

#include "../support/child_process.h"
#include "../support/devices.h"
#include "../support/temporary_folder.h"

namespace fs = std::filesystem;
using namespace sash;
using namespace sash::testing;

namespace {

constexpr int64_t kSteps = 150;

int number_of(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}

// Figures by step; CHECKs that a step that was made twice has the same ones.
std::map<int64_t, std::string> figures(const std::string& log) {
  std::map<int64_t, std::string> all;
  std::istringstream lines(file_text(log));
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    REQUIRE(space != std::string::npos);
    const std::string rest = line.substr(space);
    const auto [found, added] = all.emplace(std::stoll(line.substr(0, space)), rest);
    CHECK(found->second == rest);
  }
  return all;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE_TEMPLATE("a training that is killed at any moment goes on with the same bits", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const std::string device = to_string(On::device);
  const TemporaryFolder folder;
  const auto command = [&](const std::string& run) {
    return std::vector<std::string>{program("sash_killed_training"), folder.file(run),
                                    std::to_string(kSteps), folder.file(run + ".losses"), device};
  };
  const std::string last = "step-00000150.safetensors";
  const auto complete = [&](const std::string& run) {
    ChildProcess child(command(run), folder.file("log"));
    const int code = child.wait();
    REQUIRE_MESSAGE(code == 0, child.err());
  };
  complete("whole");
  const auto expected = figures(folder.file("whole.losses"));
  REQUIRE(expected.size() == kSteps);

  const int kills = number_of("SASH_KILLS", std::getenv("SASH_LONG_TESTS") ? 200 : 8);
  Generator random(static_cast<uint64_t>(number_of("SASH_KILLS_SEED", 11)));
  int killed = 0, within_a_write = 0;
  for (int run = 0; killed < kills; ++run) {
    const std::string name = "run" + std::to_string(run), path = folder.file(name);
    const std::string losses = path + ".losses";
    int64_t newest = 0;
    for (bool ended = false; !ended && killed < kills;) {
      const size_t before = file_text(losses).size();
      ChildProcess child(command(name), folder.file("log"));
      const PhiloxBlock bits = philox(random.next(kCPU, 4).seed, static_cast<uint64_t>(killed));
      if (bits.lane[1] % 4 != 0) {  // else while it starts
        ChildProcess::soon([&] { return file_text(losses).size() > before; });
      }
      std::this_thread::sleep_for(std::chrono::microseconds(bits.lane[0] % 40000));
      child.send(SIGKILL);
      const int code = child.wait();
      REQUIRE_MESSAGE((code == -SIGKILL || code == 0), child.err());
      ended = code == 0;
      killed += ended ? 0 : 1;
      if (!fs::exists(path)) continue;
      for (const std::string& file : names_in(path)) {
        if (file.find(".tmp.") != std::string::npos) {
          ++within_a_write;
        } else {
          CHECK_NOTHROW(optim::checkpoint_info(path + "/" + file));
        }
      }
      const auto found = optim::newest_checkpoint(path);
      if (newest > 0) REQUIRE(found);
      if (!found) continue;
      const int64_t step = optim::checkpoint_info(*found).step;
      CHECK(step >= newest);
      newest = step;
    }
    complete(name);
    CHECK(figures(losses) == expected);
    CHECK(file_text(path + "/" + last) == file_text(folder.file("whole/" + last)));
    CHECK(names_in(path) == names_in(folder.file("whole")));
  }
  MESSAGE(killed, " kills, ", within_a_write, " of them within a write");
}

TEST_CASE("a training whose disk is full says so, and keeps the last checkpoint") {
  const TemporaryFolder folder;
  const auto command = [&](const char* steps) {
    return std::vector<std::string>{program("sash_killed_training"), folder.file("run"), steps,
                                    folder.file("losses"), "cpu"};
  };
  REQUIRE(ChildProcess(command("3"), folder.file("log")).wait() == 0);
  const std::vector<std::string> names = names_in(folder.file("run"));
  const std::string file = folder.file("run/step-00000003.safetensors");
  const std::string before = file_text(file);
  ChildProcess child(command("6"), folder.file("log"),
                     {.most_file_bytes = 1000, .ignored_signal = SIGXFSZ});
  CHECK(child.wait() == -SIGABRT);
  const std::string text = child.err();
  CHECK_MESSAGE(text.find("warning: step 4 is not saved") != std::string::npos, text);
  CHECK_MESSAGE(
      text.find("run/step-00000003.safetensors is the last good checkpoint") != std::string::npos,
      text);
  CHECK(names_in(folder.file("run")) == names);
  CHECK(file_text(file) == before);
}
