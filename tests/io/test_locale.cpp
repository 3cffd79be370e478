#include <doctest/doctest.h>

#include <clocale>
#include <cstdio>
#include <fstream>
#include <locale>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <sash/core/error.h>
#include <sash/core/readable.h>
#include <sash/nn/inspect/summary.h>
#include <sash/nn/layers/linear.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/optim/logging/html_report.h>
#include <sash/optim/logging/progress_line.h>
#include <sash/optim/profiler.h>
#include <sash/tensor/autograd/gradcheck.h>
#include <sash/tensor/factories.h>

#include "../support/child_process.h"
#include "../support/step_report.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

/// A locale whose decimal point is a comma, if the system has one, for C and for streams.
class CommaLocale {
 public:
  CommaLocale() : c_(std::setlocale(LC_ALL, nullptr)) {
    for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "es_ES.UTF-8",
                             "it_IT.UTF-8", "nl_NL.UTF-8", "pt_BR.UTF-8", "ru_RU.UTF-8"}) {
      try {
        std::locale::global(std::locale(name));  // calls setlocale too
        found_ = std::string(std::localeconv()->decimal_point) == ",";
        if (found_) return;
      } catch (const std::runtime_error&) {  // not on this system
      }
    }
    MESSAGE("skipped: no locale with a decimal comma");
  }
  ~CommaLocale() {
    std::locale::global(stream_);
    std::setlocale(LC_ALL, c_.c_str());
  }
  CommaLocale(const CommaLocale&) = delete;
  CommaLocale& operator=(const CommaLocale&) = delete;

  explicit operator bool() const { return found_; }

 private:
  const std::string c_;
  const std::locale stream_;
  bool found_ = false;
};

// The same text with and without the comma.
template <class F>
void check_same(const F& text) {
  const std::string expected = text();
  const CommaLocale comma;
  if (comma) CHECK(text() == expected);
}

}  // namespace

TEST_CASE("locale: tensors, messages and numbers for people have points") {
  check_same([] { return to_string(tensor<float>({1.5F, 2, 1000})); });
  check_same([] { return to_string(tensor<double>({1e-5, 1})); });
  check_same([] { return to_text(1.5) + ' ' + to_text(1e-5) + ' ' + to_text(1e300); });
  check_same([] { return with_prefix(1234567) + ' ' + bytes_text(1 << 20); });
  check_same([] {
    GradcheckReport report;
    report.compared = 12345;
    report.worst.analytical = 1.5;
    return report.message();
  });
}

TEST_CASE("locale: a summary has points") {
  const CommaLocale comma;
  if (!comma) return;
  nn::Linear model(40, 50);
  const std::string text = to_string(nn::summary(model, ones({1, 40})));
  CHECK(text.find("4.00 k") != std::string::npos);
}

TEST_CASE("locale: a profile has points, and its trace is JSON") {
  const CommaLocale comma;
  if (!comma) return;
  const TemporaryFolder folder;
  const Tensor x = ones({3, 5});
  optim::Profiler profiler;
  add(x, x);
  const std::string table = profiler.table();
  CHECK(table.find('.') != std::string::npos);
  CHECK(table.find(',') == table.find(", "));  // of the words below it alone
  profiler.write_trace(folder.file("trace"));
  std::ifstream file(folder.file("trace"));
  const nlohmann::json trace = nlohmann::json::parse(file)["traceEvents"];
  REQUIRE(trace.size() == 1);
  CHECK(trace[0]["ts"].get<double>() >= 0);
}

TEST_CASE("locale: progress and reports have points") {
  const CommaLocale comma;
  if (!comma) return;
  const TemporaryFolder folder;
  optim::StepReport step = report_of(200);
  step.validation = {{"loss", 2.25}};
  std::FILE* const out = std::fopen(folder.file("out").c_str(), "w");
  optim::ProgressLine({.out = out, .terminal = false, .device = kCPU}).on_step(step);
  std::fclose(out);
  CHECK(file_text(folder.file("out")).find("val_loss 2.25  lr 1.0e-03  |g| 0.50") !=
        std::string::npos);
  optim::HtmlReport report(folder.file("page"), {.device = kCPU});
  report.on_step(step);
  report.write();
  CHECK(file_text(folder.file("page")).find("</span>2.25 at step 200</div>") != std::string::npos);
}
