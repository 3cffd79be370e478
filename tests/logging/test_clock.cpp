// The system's clock jumps by years while a model is trained: durations and rates do not.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <sstream>
#include <string>

#include <doctest/doctest.h>

#include <sash/optim/logging/metrics_log.h>
#include <sash/optim/logging/progress_line.h>
#include <sash/optim/logging/summary_writer.h>

#include "../support/child_process.h"
#include "../support/small_training.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

// Sanitizers have a clock_gettime of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {

std::atomic<int64_t> ahead = 0;  // seconds of the system's clock

}  // namespace

// In the place of the system's.
extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock,
                                                                    timespec* time) noexcept {
  const auto code = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += ahead;
  return code;
}

TEST_CASE("clock: the system's jumps by years, durations and rates do not") {
  const TemporaryFolder folder;
  std::FILE* const file = std::fopen(folder.file("out").c_str(), "w");
  Record record;
  record.then = [](const optim::StepReport& report) {
    using std::chrono::system_clock;
    const auto before = system_clock::now();
    ahead = (report.step % 2 == 0 ? -1 : 1) * 100'000'000;
    CHECK(std::chrono::abs(system_clock::now() - before) > std::chrono::hours(10'000));
  };
  {
    Setup setup;
    optim::ProgressLine line({.log_every = 1, .out = file, .terminal = false});
    optim::MetricsLog log(folder.file("log.csv"));
    optim::SummaryWriter writer(folder.file("events"));
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(), {.steps = 6});
    for (optim::Callback* callback :
         std::initializer_list<optim::Callback*>{&record, &line, &log, &writer}) {
      trainer.add(*callback);
    }
    trainer.run();
  }
  ahead = 0;
  std::fclose(file);
  REQUIRE(record.reports.size() == 6);
  for (const optim::StepReport& report : record.reports) {
    CHECK(report.seconds > 0);
    CHECK(report.seconds < 60);
  }
  std::istringstream lines(file_text(folder.file("out")));
  int count = 0;
  for (std::string text; std::getline(lines, text); ++count) {
    CAPTURE(text);
    const bool short_time = text.find(" [00:") != std::string::npos;
    CHECK(short_time);
  }
  CHECK(count >= 6);
}
#else

TEST_CASE("clock: left out under sanitizers") {
  MESSAGE("skipped: sanitizers have a clock_gettime of their own");
}

#endif
