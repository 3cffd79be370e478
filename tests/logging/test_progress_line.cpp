// The line that shows how a training goes, on a terminal and elsewhere.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <sash/optim/logging/progress_line.h>

#include "../support/child_process.h"
#include "../support/small_training.h"
#include "../support/step_report.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;
using optim::ProgressLine;
using optim::StepReport;

namespace {

/// What a line prints for 200 steps, of which the 120th has a validation.
std::string shown(const optim::ProgressOptions& given) {
  const TemporaryFolder folder;
  std::FILE* file = std::fopen(folder.file("out").c_str(), "w");
  {
    optim::ProgressOptions options = given;
    options.out = file;
    options.device = kCPU;
    ProgressLine line(options);
    for (int64_t step = 1; step <= 200; ++step) {
      StepReport report = report_of(step);
      if (step == 120) report.validation = {{"loss", 2.5}};
      line.on_step(report);
    }
  }
  std::fclose(file);
  return file_text(folder.file("out"));
}

}  // namespace

TEST_CASE("progress line: elsewhere than on a terminal a line every log_every steps") {
  const std::string text = shown({.log_every = 50, .terminal = false});
  std::istringstream lines(text);
  std::vector<std::string> starts;
  for (std::string line; std::getline(lines, line);) starts.push_back(line.substr(0, 12));
  CHECK(starts == std::vector<std::string>{"step 50/200 ", "step 100/200", "step 120/200",
                                           "step 150/200", "step 200/200"});
  // 150 steps of half a second are left after the first line.
  CHECK(
      text.starts_with("step 50/200 [00:00<01:15, 2.0 steps/s]  loss 2  lr 1.0e-03  |g| 0.50  "
                       "12.0k tokens/s  "));
  CHECK(text.find("loss 2  val_loss 2.5  lr") != std::string::npos);
  CHECK(text.find('\r') == std::string::npos);
}

TEST_CASE("progress line: on a terminal one line, but for validations and the last step") {
  const std::string text = shown({.terminal = true});
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
  CHECK(text.find("\r\033[Kstep 1/200") != std::string::npos);
  CHECK(text.ends_with("\n"));
}

TEST_CASE("progress line: a terminal's width leaves figures out, and cuts none") {
  const TemporaryFolder folder;
  const auto line_of = [&](int columns) {
    std::FILE* file = std::fopen(folder.file("out").c_str(), "w");
    {
      ProgressLine line({.out = file, .terminal = true, .columns = columns, .device = kCPU});
      line.on_step(report_of(100));
    }
    std::fclose(file);
    const std::string text = file_text(folder.file("out"));
    return text.substr(4, text.size() - 5);  // without what erases the old line, and the end
  };
  for (const int columns : {20, 40, 60, 80, 100, 200}) {
    CAPTURE(columns);
    ::setenv("NO_COLOR", "1", 1);
    const std::string plain = line_of(columns);
    ::unsetenv("NO_COLOR");
    ::setenv("TERM", "xterm", 1);
    const std::string coloured = line_of(columns);
    INFO(plain);
    CHECK(plain.size() < static_cast<size_t>(std::max(columns, 21)));
    const auto has = [&](const char* part) { return plain.find(part) != std::string::npos; };
    CHECK(plain.starts_with("step 100/200"));
    CHECK(has("  loss 2"));
    // All of a figure or nothing of it.
    CHECK(has("[") == has(" [00:00<00:50, 2.0 steps/s]"));
    CHECK(has("lr") == has("  lr 1.0e-03"));
    CHECK(has("12.0") == has("  12.0k tokens/s"));
    CHECK(has("lr") == (columns >= 60));
    CHECK(has("12.0") == (columns >= 100));
    const bool has_bar = columns == 40 || columns >= 80;
    CHECK(has(" |======      |") == has_bar);
    CHECK((coloured.find("|\033[32m======\033[0m      |") != std::string::npos) == has_bar);
  }
  // Lines elsewhere have no bar.
  CHECK(shown({.log_every = 50, .terminal = false}).find("|=") == std::string::npos);
}

TEST_CASE("progress line: lines that stay break between figures on a narrow terminal") {
  const auto line_at = [](int columns) {  // of the 120th step, which has a validation
    const std::string text = shown({.terminal = true, .columns = columns});
    const size_t start = text.find("\033[Kstep 120/200 [") + 3;
    const size_t end = text.find('\r', start);
    return text.substr(start, end - start);
  };
  const std::string whole = line_at(1000);
  CHECK(std::count(whole.begin(), whole.end(), '\n') == 1);
  for (const int columns : {40, 60, 80, 120}) {
    const std::string text = line_at(columns);
    INFO(text);
    std::string joined;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      CHECK(line.size() < static_cast<size_t>(columns));
      CHECK(line.starts_with(joined.empty() ? "step 120" : "  "));
      // Two spaces stand between figures.
      joined += line;
    }
    CHECK(joined + '\n' == whole);
  }
  CHECK(line_at(60).starts_with("step 120/200 [00:00<00:40, 2.0 steps/s]  loss 2\n  val_loss 2.5"));
  CHECK(shown({.log_every = 50, .terminal = false, .columns = 20}).find("\n  ") ==
        std::string::npos);
}

TEST_CASE("progress line: samples where no tokens are counted, and why a training ended early") {
  const TemporaryFolder folder;
  std::FILE* file = std::fopen(folder.file("out").c_str(), "w");
  Setup setup;
  optim::Trainer* running = nullptr;
  {
    ProgressLine line({.log_every = 1, .out = file, .terminal = false, .device = kCPU});
    ProgressLine narrow({.out = file, .terminal = true, .columns = 20, .device = kCPU});
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(), {.steps = 9});
    running = &trainer;
    Record record;
    record.then = [&](const StepReport& report) {
      if (report.step == 3) running->stop();
    };
    trainer.add(line);
    trainer.add(narrow);
    trainer.add(record);
    trainer.run();
  }
  std::fclose(file);
  const std::string text = file_text(folder.file("out"));
  CHECK(text.find(" samples/s") != std::string::npos);
  CHECK(text.find("tokens/s") == std::string::npos);
  CHECK(text.ends_with("stopped after step 3 of 9\n\nstopped after step\n3 of 9\n"));
}

TEST_CASE("progress line: the share of the peak, where it is known") {
  const std::string text =
      shown({.log_every = 200, .terminal = false, .step_flops = 4e9, .peak_flops = 32e9});
  CHECK(text.find("tokens/s  25 % of peak  ") != std::string::npos);
}

TEST_CASE("progress line: the loss is an average, a line in progress is ended") {
  const TemporaryFolder folder;
  std::FILE* file = std::fopen(folder.file("out").c_str(), "w");
  {
    ProgressLine line({.out = file, .terminal = true, .device = kCPU});
    StepReport report = report_of(1);
    line.on_step(report);
    report = report_of(200);
    report.loss = 4;
    line.on_step(report);
  }
  {
    ProgressLine line({.out = file, .terminal = true, .device = kCPU});
    line.on_step(report_of(1));
  }
  std::fclose(file);
  const std::string text = file_text(folder.file("out"));
  // (0.09 * 2 + 0.1 * 4) / 0.19
  CHECK(text.find("loss 3.053 ") != std::string::npos);
  CHECK(text.ends_with("B\n"));
}
