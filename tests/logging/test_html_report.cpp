// The page about a training: its curves, what is added, and that it needs nothing from outside.
#include <string>

#include <doctest/doctest.h>

#include <sash/core/error.h>
#include <sash/optim/logging/html_report.h>
#include <sash/tensor/factories.h>

#include "../support/child_process.h"
#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;
using optim::HtmlReport;
using optim::StepReport;

namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

bool has(const std::string& text, const std::string& part) { return count(text, part) > 0; }

}  // namespace

TEST_CASE("report: curves of a training, and what is added") {
  const Tensor held = ones({1000}, {.device = kCPU});  // so that memory is in use
  const TemporaryFolder folder;
  const std::string path = folder.file("run.html");
  HtmlReport report(path, {.title = "A <run>", .device = kCPU});
  for (int64_t step = 1; step <= 100; ++step) {
    StepReport figures{.step = step,
                       .steps = 100,
                       .loss = 100.0 / static_cast<double>(step),
                       .lr = 1e-3 / static_cast<double>(step),
                       .grad_norm = 1,
                       .seconds = 0.1,
                       .tokens = 64};
    figures.metrics["accuracy"] = 0.5;
    if (step % 50 == 0) figures.validation = {{"loss", 3.0 - 0.01 * static_cast<double>(step)}};
    report.on_step(figures);
  }
  report.on_warning("a < b");
  report.add_text("Sample", "if (a < b) & \xFF");
  report.add_figure("Drawn", "<svg></svg>");
  report.add_table("Model", {"name", "parameters"}, {{"fc.weight", "64"}, {"fc.bias", "8"}});
  nn::Summary summary{.rows = {{.name = "", .type = "MLP", .output = Shape{2, 3}, .flops = 5e6}}};
  summary.rows[0].parameters = 1234;
  report.add_summary(summary);
  report.add_mask(AttentionMask::causal(), 16, 16);
  report.add_attention("Layer 0", ones({2, 3, 4, 4}, {.device = kCPU}));
  report.add_attention("Layer 1", ones({20, 4, 4}, {.device = kCPU}));
  CHECK(folder.count() == 0);  // until it is written
  report.write();
  CHECK(folder.count() == 1);
  const std::string page = file_text(path);
  for (const char* part :
       {"<title>A &lt;run&gt;</title>", "</span>100 of 100</div>", "</span>2 at step 100</div>",
        "<title>loss</title>", "training, averaged", ">validation<", "<title>accuracy</title>",
        "<title>learning rate</title>", "<title>gradient norm</title>", "<title>speed</title>",
        "memory (MiB)", "<pre>if (a &lt; b) &amp; \xEF\xBF\xBD</pre>",
        "<td>fc.weight</td><td class=\"number\">64</td>",
        "<td>(model)</td><td>MLP</td><td>[2, 3]</td><td class=\"number\">1234</td>",
        "<h2>Mask</h2>", "<h2>Drawn</h2>\n<svg></svg>", "<h2>Layer 0</h2>",
        "<h2>Layer 1: 16 of 20 heads</h2>", "<li>after step 100: a &lt; b</li>"}) {
    CHECK_MESSAGE(has(page, part), part);
  }
  CHECK(count(page, "<title>head ") == 3 + 16);
  // Its axis begins at 0, though the rates lie far apart.
  const size_t rate = page.find("<title>learning rate</title>");
  CHECK(has(page.substr(rate, page.find("</svg>", rate) - rate), ">0</text>"));
  // Nothing is loaded from elsewhere.
  CHECK(count(page, "http") == count(page, "xmlns=\"http://www.w3.org/2000/svg\""));
  for (const char* part : {"src=", "href=", "@import", "url("}) CHECK(!has(page, part));
}

TEST_CASE("report: figures that nothing was counted for are left out") {
  const TemporaryFolder folder;
  HtmlReport report(folder.file("run.html"), {.device = kCPU});
  for (int64_t step = 1; step <= 3; ++step) report.on_step({.step = step, .steps = 3, .loss = 1});
  report.write();
  const std::string page = file_text(folder.file("run.html"));
  CHECK(has(page, "<title>loss</title>"));
  for (const char* part : {"learning rate", "gradient norm", "speed", "per s<"}) {
    CHECK_MESSAGE(!has(page, part), part);
  }
  HtmlReport images(folder.file("images.html"), {.device = kCPU});
  for (int64_t step = 1; step <= 3; ++step) {
    images.on_step({.step = step, .steps = 3, .loss = 1, .seconds = 0.5, .samples = 8});
  }
  images.write();
  CHECK(has(file_text(folder.file("images.html")), "samples (1/s)"));
}

TEST_CASE("report: a confusion matrix as a figure and as numbers") {
  const TemporaryFolder folder;
  optim::ConfusionMatrix matrix(2);
  const Tensor target = tensor<int64_t>({0, 0, 1}, {3}, {.device = kCPU});
  matrix.update(tensor<int64_t>({0, 1, 1}, {3}, {.device = kCPU}), target);
  HtmlReport report(folder.file("run.html"), {.device = kCPU});
  report.add_confusion_matrix("Errors", matrix, {"cat", "dog"});
  report.write();
  const std::string page = file_text(folder.file("run.html"));
  for (const char* part : {"<h2>Errors</h2>", "<svg", ">predicted<", "share of the target",
                           "target \\ predicted  cat  dog\ncat                   1    1\n"}) {
    CHECK_MESSAGE(has(page, part), part);
  }
  CHECK(count(page, ">cat</text>") == 2);  // on both axes
  CHECK(count(page, ">dog</text>") == 2);
}

TEST_CASE("report: of a resumed training, the page says which steps it has") {
  const TemporaryFolder folder;
  HtmlReport report(folder.file("run.html"), {.device = kCPU});
  for (int64_t step = 301; step <= 303; ++step) report.on_step({.step = step, .steps = 500});
  report.write();
  CHECK(has(file_text(folder.file("run.html")),
            "<span>steps, after a resume</span>301 to 303 of 500</div>"));
}

TEST_CASE("report: without a step, and wrong calls") {
  const TemporaryFolder folder;
  HtmlReport report(folder.file("run.html"), {.device = kCPU});
  expect_errors({
      {"IoError: HtmlReport: cannot create '" + folder.file("none/a.html") +
           "': No such file or directory",
       [&] { HtmlReport none(folder.file("none/a.html")); }},
      {"ValueError: HtmlReport: expected rows of 2 fields, got one of 1",
       [&] {
         report.add_table("t", {"a", "b"}, {{"1"}});
       }},
      {"ShapeError: HtmlReport: expected weights [H, S_q, S_k] or [B, H, S_q, S_k], not empty, got "
       "[2, 2]",
       [&] {
         report.add_attention("t", ones({2, 2}, {.device = kCPU}));
       }},
  });
  report.write();
  const std::string page = file_text(folder.file("run.html"));
  CHECK(!has(page, "Curves"));
  CHECK(page.ends_with("</html>\n"));
}
