// The line that shows how a training goes, on a terminal and elsewhere.
#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <sash/optim/logging/progress_line.h>

#include "../support/child_process.h"
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
