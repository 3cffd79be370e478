// Event files for TensorBoard: their records, and that TensorBoard reads them.
#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <thread>

#include <sash/core/error.h>
#include <sash/optim/logging/summary_writer.h>
#include <sash/tensor/factories.h>

#include "../support/child_process.h"
#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;
using sash::optim::SummaryWriter;

namespace {

const TensorOptions kHost{.device = kCPU};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The messages of a file of whole records.
std::vector<std::string> events_of(const std::string& file) {
  std::vector<std::string> events;
  for (size_t at = 0; at < file.size();) {
    uint64_t size = 0;
    REQUIRE(at + 12 <= file.size());
    std::memcpy(&size, &file[at], 8);
    REQUIRE(at + 16 + size <= file.size());
    events.push_back(file.substr(at + 12, size));
    at += 16 + size;
  }
  return events;
}

}  // namespace

TEST_CASE("summary writer: the bytes of a record") {
  const TemporaryFolder folder;
  SummaryWriter writer(folder.file("new/run"));
  writer.add_scalar("loss", 0.5, 300);
  writer.flush();
  const std::string file = read(writer.path());
  const std::vector<std::string> events = events_of(file);
  REQUIRE(events.size() == 2);
  CHECK(events[0].substr(9) ==
        "\x1A\x0D"
        "brain.Event:2");
  // Step 300; a summary of one value: its float, then its tag.
  CHECK(events[1].substr(9) ==
        std::string("\x10\xAC\x02\x2A\x0D\x0A\x0B\x15\0\0\0\x3F\x0A\x04loss", 18));
  // The masked CRC-32C of the length 24, the first record's.
  CHECK(events[0].size() == 24);
  CHECK(file.substr(8, 4) == std::string("\xA3\x7F\x4B\x22", 4));
}

TEST_CASE("summary writer: writers of a folder have files of their own") {
  const TemporaryFolder folder;
  SummaryWriter first(folder.file("")), second(folder.file(""));
  first.add_scalar("a", 1, 0);
  SummaryWriter moved = std::move(first);
  moved.add_text("notes", "**bold** \xC3\xA4", 1);
  moved.flush();
  CHECK(folder.count() == 2);
  CHECK(events_of(read(moved.path())).size() == 3);
  CHECK(events_of(read(second.path())).size() == 1);
}

TEST_CASE("summary writer: wrong calls write nothing") {
  const TemporaryFolder folder;
  SummaryWriter writer(folder.file("run"));
  const std::string blocked = folder.file("file");
  std::ofstream(blocked) << "x";
  expect_errors({
      {"ValueError: SummaryWriter: expected at least one value, got none",
       [&] { writer.add_histogram("h", zeros({0}, kHost), 1); }},
      {"ValueError: SummaryWriter: expected finite values, got inf",
       [&] { writer.add_histogram("h", 1 / zeros({2}, kHost), 1); }},
      {"ValueError: SummaryWriter: expected a tag in UTF-8, got other bytes",
       [&] { writer.add_scalar("\xFF", 1, 1); }},
      {"ValueError: SummaryWriter: expected a text in UTF-8, got other bytes",
       [&] { writer.add_text("t", "\xC3", 1); }},
      {"IoError: SummaryWriter: cannot make the folder '" + blocked + "/run': Not a directory",
       [&] { SummaryWriter bad(blocked + "/run"); }},
  });
  writer.flush();
  CHECK(events_of(read(writer.path())).size() == 1);
}

TEST_CASE("summary writer: TensorBoard reads scalars, histograms and texts") {
  if (std::system("python3 -c 'import tensorboard' 2>/dev/null") != 0) {
    MESSAGE("skipped: this machine's Python has no TensorBoard");
    return;
  }
  const TemporaryFolder folder;
  SummaryWriter writer(folder.file("run"));
  for (int step = 0; step < 5; ++step) writer.add_scalar("loss/train", 1.0 / (1 + step), step);
  writer.add_histogram("weights", linspace(-1, 3, 401, {.dtype = DType::float32, .device = kCPU}),
                       7);
  writer.add_text("notes", "**bold**", 2);
  writer.flush();
  std::ofstream(folder.file("read.py"))
      << "import sys\n"
         "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
         "events = EventAccumulator(sys.argv[1])\n"
         "events.Reload()\n"
         "loss = events.Scalars('loss/train')\n"
         "assert [e.step for e in loss] == [0, 1, 2, 3, 4]\n"
         "assert abs(loss[3].value - 0.25) < 1e-6\n"
         "h = events.Histograms('weights')[0]\n"
         "assert h.step == 7\n"
         "h = h.histogram_value\n"
         "assert (h.min, h.max, h.num) == (-1, 3, 401) and abs(h.sum - 401) < 1e-3\n"
         "assert sum(h.bucket) == 401 and len(h.bucket) == len(h.bucket_limit)\n"
         "below = sum(n for n, end in zip(h.bucket, h.bucket_limit) if end <= 0)\n"
         "assert below == 100, below\n"
         "text = events.Tensors('notes/text_summary')[0].tensor_proto\n"
         "assert text.string_val[0] == b'**bold**'\n";
  CHECK(
      std::system(("python3 " + folder.file("read.py") + " " + folder.file("run") + " 2>/dev/null")
                      .c_str()) == 0);
}

TEST_CASE("summary writer: as a callback it adds a step's figures") {
  const TemporaryFolder folder;
  SummaryWriter writer(folder.file("run"));
  optim::StepReport report{.step = 3, .steps = 9, .loss = 1.5, .seconds = 0.5, .tokens = 64};
  report.metrics["accuracy"] = 0.5;
  report.validation["loss"] = 2.5;
  writer.on_step(report);
  const std::vector<std::string> events = events_of(read(writer.path()));
  REQUIRE(events.size() == 7);
  const char* tags[] = {"loss/train",     "lr", "grad_norm", "tokens_per_s", "accuracy/train",
                        "loss/validation"};
  for (size_t i = 0; i < 6; ++i) CHECK(events[i + 1].ends_with(tags[i]));
}
