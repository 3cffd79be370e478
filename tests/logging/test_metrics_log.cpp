// Metrics of each step as JSON lines and CSV, of a new run and of a resumed one.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include <sash/core/error.h>
#include <sash/optim/logging/metrics_log.h>

#include "../support/child_process.h"
#include "../support/expect_error.h"
#include "../support/step_report.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;
using optim::MetricsLog;
using optim::StepReport;

TEST_CASE("metrics log: a line of JSON a step") {
  const TemporaryFolder folder;
  MetricsLog log(folder.file("m.jsonl"));
  StepReport report = report_of(1);
  report.metrics["accuracy"] = 0.5;
  report.validation["loss"] = std::nan("");
  log.on_step(report);
  log.on_step(report_of(2));
  CHECK(
      file_text(folder.file("m.jsonl")) ==
      "{\"step\":1,\"loss\":2,\"accuracy\":0.5,\"val_loss\":null,\"lr\":0.001,\"grad_norm\":0.5,"
      "\"ms\":500,\"tokens_per_s\":12000}\n"
      "{\"step\":2,\"loss\":2,\"lr\":0.001,\"grad_norm\":0.5,\"ms\":500,\"tokens_per_s\":12000}\n");
  CHECK(!log.failed());
}

TEST_CASE("metrics log: a row of CSV a step; a new figure gets a column at the end") {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.csv");
  {
    MetricsLog log(path);
    log.on_step(report_of(1));
    StepReport report = report_of(2);
    report.validation["loss"] = 2.5;
    log.on_step(report);
    log.on_step(report_of(3));
  }
  const std::string header = "step,loss,lr,grad_norm,ms,tokens_per_s,val_loss\n";
  const std::string figures = ",2,0.001,0.5,500,12000";
  CHECK(file_text(path) == header + "1" + figures + "\n2" + figures + ",2.5\n3" + figures + ",\n");
  // Resumed after step 2.
  MetricsLog(path).on_step(report_of(3));
  CHECK(file_text(path) == header + "1" + figures + "\n2" + figures + ",2.5\n3" + figures + ",\n");
}

TEST_CASE("metrics log: a resumed run has each step once") {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.jsonl");
  for (const int64_t start : {1, 3, 1, 4}) {
    if (start == 4) std::ofstream(path, std::ios::app) << "{\"step\": 9, \"lo";  // cut short
    const std::string before = file_text(path);
    MetricsLog log(path);
    CHECK(file_text(path) == before);  // until the first step
    for (int64_t step = start; step <= 5; ++step) log.on_step(report_of(step));
    const std::string text = file_text(path);
    CHECK(std::count(text.begin(), text.end(), '\n') == 5);
    CHECK(text.find("{\"step\":5,") != std::string::npos);
  }
}

TEST_CASE("metrics log: a file with the line ends of Windows goes on") {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.csv");
  std::ofstream(path, std::ios::binary)
      << "step,loss,lr,grad_norm,ms,tokens_per_s\r\n1,2,0.001,0.5,500,12000\r\n";
  MetricsLog(path).on_step(report_of(2));
  CHECK(file_text(path) ==
        "step,loss,lr,grad_norm,ms,tokens_per_s\n1,2,0.001,0.5,500,12000\n"
        "2,2,0.001,0.5,500,12000\n");
  std::ofstream(path, std::ios::binary) << "step\r\n1\r\n";
  MetricsLog(path).on_step(report_of(1));
  CHECK(file_text(path).starts_with("step,loss,"));
}

TEST_CASE("metrics log: large steps are read again") {
  const TemporaryFolder folder;
  const int64_t large = int64_t{1} << 52;
  for (const char* name : {"m.jsonl", "m.csv"}) {
    const std::string path = folder.file(name);
    for (const int64_t step : {large, large + 1}) MetricsLog(path).on_step(report_of(step));
    const std::string text = file_text(path);
    CHECK(text.find("4503599627370496,") != std::string::npos);
    CHECK(text.find("4503599627370497,") != std::string::npos);
  }
}

TEST_CASE("metrics log: names in CSV are quoted, and read again") {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.csv");
  for (const int64_t step : {1, 2}) {
    StepReport report = report_of(step);
    report.metrics["acc,top5"] = 0.5;
    report.metrics["a \"b\""] = 0.25;
    report.metrics[""] = 3;
    MetricsLog(path).on_step(report);
  }
  CHECK(file_text(path) ==
        "step,loss,,\"a \"\"b\"\"\",\"acc,top5\",lr,grad_norm,ms,tokens_per_s\n"
        "1,2,3,0.25,0.5,0.001,0.5,500,12000\n2,2,3,0.25,0.5,0.001,0.5,500,12000\n");
}

TEST_CASE("metrics log: a metric has a name of its own") {
  const TemporaryFolder folder;
  for (const char* file : {"a.jsonl", "a.csv"}) {
    const std::string path = folder.file(file);
    MetricsLog log(path);
    log.on_step(report_of(1));
    const std::string before = file_text(path);
    for (const char* name : {"step", "loss", "lr", "grad_norm", "ms", "tokens_per_s", "val_loss"}) {
      StepReport report = report_of(2);
      report.metrics[name] = 100;
      report.validation["loss"] = 1;
      expect_error<ValueError>(
          "MetricsLog: expected a metric with an unused name, got '" + std::string(name) + "'",
          [&] { log.on_step(report); });
    }
    CHECK(file_text(path) == before);
  }
  StepReport report = report_of(1);
  report.metrics["two\nlines"] = 1;
  MetricsLog(folder.file("b.jsonl")).on_step(report);
  expect_error<ValueError>("MetricsLog: expected a metric whose name is one line, got 'two?lines'",
                           [&] { MetricsLog(folder.file("b.csv")).on_step(report); });
}

TEST_CASE("metrics log: other files stay as they are") {
  const TemporaryFolder folder;
  const std::string deep(1'000'000, '['), nested = deep + std::string(deep.size(), ']');
  for (const char* name : {"a.jsonl", "a.csv"}) {
    for (const std::string& text :
         {std::string("dear diary"), std::string("dear diary\n"),
          std::string("{\"step\":1}\ndear\n"), std::string("step\nx,1\n"), nested + "\n",
          "{\"step\":1}\n{\"step\":" + nested + "}\n", "step\n" + deep + "\n"}) {
      const bool json = std::string(name) == "a.jsonl", own = text[0] == (json ? '{' : 's');
      std::ofstream(folder.file(name)) << text;
      expect_error<FormatError>("MetricsLog: expected metrics in line " +
                                    std::string(own ? "2" : "1") + " of " + folder.file(name) +
                                    ", got something else",
                                [&] { MetricsLog log(folder.file(name)); });
      CHECK(file_text(folder.file(name)) == text);
    }
  }
  expect_error<IoError>("MetricsLog: cannot write the metrics to " + folder.file("none/a.csv"),
                        [&] { MetricsLog log(folder.file("none/a.csv")); });
}

TEST_CASE("metrics log: a path that cannot be looked at is an error, later a warning") {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  const std::string loop = folder.file("loop"), run = folder.file("run");
  fs::create_symlink("loop", loop);
  for (const std::string& path : {loop, folder.file(std::string(300, 'a'))}) {
    CHECK(thrown_by([&] {
            MetricsLog log(path);
          }).starts_with("IoError: MetricsLog: cannot read the metrics in " + path + ": "));
  }
  for (const char* name : {"/m.jsonl", "/m.csv"}) {
    for (const int64_t steps_before : {0, 1}) {
      fs::create_directory(run);
      MetricsLog log(run + name);
      if (steps_before > 0) log.on_step(report_of(1));
      fs::rename(run, folder.file("moved"));
      fs::create_symlink("run", run);
      StepReport report = report_of(2);
      report.validation["loss"] = 1;  // a new column
      CHECK(thrown_by([&] { log.on_step(report); }) == "nothing was thrown");
      CHECK(log.failed() == (steps_before == 0 || std::string(name) == "/m.csv"));
      fs::remove(run);
      fs::remove_all(folder.file("moved"));
    }
  }
}

TEST_CASE("metrics log: a full disk is a warning, not an end") {
  if (!std::filesystem::exists("/dev/full")) return;
  MetricsLog log("/dev/full");
  log.on_step(report_of(1));
  log.on_step(report_of(2));
  CHECK(log.failed());
}
