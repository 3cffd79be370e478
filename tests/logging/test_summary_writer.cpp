// Event files for TensorBoard: their records, and that TensorBoard reads them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <thread>

#include <sash/core/error.h>
#include <sash/optim/logging/metrics_log.h>
#include <sash/optim/logging/summary_writer.h>
#include <sash/tensor/factories.h>

#include "../support/child_process.h"
#include "../support/expect_error.h"
#include "../support/small_training.h"
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

// At the end of an event: a session log of status START.
const std::string kStart = "\x3A\x02\x08\x01";

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
  // A run that was resumed after step 1.
  SummaryWriter before(folder.file("resumed")), after(folder.file("resumed"));
  optim::StepReport report;
  for (const int step : {1, 2, 3}) {
    report.step = step;
    report.metrics["accuracy"] = 1;
    before.on_step(report);
    report.metrics["accuracy"] = 2;
    if (step > 1) after.on_step(report);
  }
  before.flush();
  after.flush();
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
         "assert text.string_val[0] == b'**bold**'\n"
         "events = EventAccumulator(sys.argv[2])\n"
         "events.Reload()\n"
         "accuracy = events.Scalars('accuracy/train')\n"
         "assert [(e.step, e.value) for e in accuracy] == [(1, 1), (2, 2), (3, 2)]\n";
  CHECK(std::system(("python3 " + folder.file("read.py") + " " + folder.file("run") + " " +
                     folder.file("resumed") + " 2>/dev/null")
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
  REQUIRE(events.size() == 8);
  CHECK(events[1].substr(9) == "\x10\x03" + kStart);
  const char* tags[] = {"loss/train",     "lr", "grad_norm", "tokens_per_s", "accuracy/train",
                        "loss/validation"};
  for (size_t i = 0; i < 6; ++i) CHECK(events[i + 2].ends_with(tags[i]));
  writer.on_step(report);
  CHECK(events_of(read(writer.path())).size() == 14);  // one start
}

TEST_CASE("summary writer: a training's first step replaces those of earlier files") {
  const TemporaryFolder folder;
  Setup setup;
  const auto start_of = [&](int64_t steps, const std::function<void(SummaryWriter&)>& before) {
    SummaryWriter writer(folder.file("board"));
    before(writer);
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                           {.steps = steps, .save = folder.file("run"), .resume = "auto"});
    trainer.add(writer);
    trainer.run();
    writer.flush();
    std::vector<std::string> starts;
    for (const std::string& event : events_of(read(writer.path()))) {
      if (event.ends_with(kStart)) starts.push_back(event.substr(9));
    }
    return starts;
  };
  const auto nothing = [](SummaryWriter&) {};
  CHECK(start_of(2, nothing) == std::vector{"\x10\x01" + kStart});
  CHECK(start_of(4, nothing) == std::vector{"\x10\x03" + kStart});
  // It would hide what this writer has of such steps.
  const auto later = [](SummaryWriter& writer) { writer.add_text("notes", "end", 9); };
  CHECK(start_of(5, later).empty());
}

TEST_CASE("summary writer, metrics log: when a checkpoint is written, the files have its step") {
  const TemporaryFolder folder;
  Setup setup;
  SummaryWriter writer(folder.file("events"));
  const std::string lines = folder.file("run.jsonl");
  optim::MetricsLog log(lines);
  optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                         {.steps = 7, .save = folder.file("run"), .save_every = 3});
  // A run that is killed leaves what the file has.
  struct Watch : optim::Callback {
    Watch(const std::string& at, const std::string& metrics) : path(at), lines(metrics) {}
    int64_t steps() const {
      int64_t count = 0;
      for (const std::string& event : events_of(read(path))) {
        count += event.find("loss/train") != std::string::npos;
      }
      const std::string log = read(lines);
      CHECK(std::count(log.begin(), log.end(), '\n') == count);
      return count;
    }
    void on_step(const optim::StepReport&) override { before.push_back(steps()); }
    void on_save(const std::string&, int64_t) override { saved.push_back(steps()); }
    std::string path, lines;
    std::vector<int64_t> before{}, saved{};
  } watch(writer.path(), lines);
  trainer.add(writer);
  trainer.add(log);
  trainer.add(watch);
  trainer.run();
  CHECK(watch.before == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7});
  CHECK(watch.saved == std::vector<int64_t>{3, 6, 7});
}

TEST_CASE("summary writer: one that was moved from says so") {
  const TemporaryFolder folder;
  SummaryWriter first(folder.file(""));
  const SummaryWriter second = std::move(first);
  const std::string moved =
      "ValueError: SummaryWriter: expected an open file, got a writer that was moved from";
  expect_errors({{moved, [&] { first.add_scalar("a", 1, 1); }},
                 {moved, [&] { first.on_step({.step = 1}); }},
                 {moved, [&] { first.flush(); }}});
}

TEST_CASE("summary writer: the sums and the buckets of a histogram") {
  const TemporaryFolder folder;
  SummaryWriter writer(folder.file(""));
  writer.add_histogram("h",
                       tensor({-2.0, 0.5, 0.5, 4.0}, {.dtype = DType::float64, .device = kCPU}), 7);
  writer.flush();
  const std::string event = events_of(read(writer.path())).at(1);
  const auto bytes_of = [](double value) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &value, 8);
    return bytes;
  };
  std::string sums;  // fields 1 to 5: least, most, number, sum, sum of squares
  for (int field = 1; const double value : {-2.0, 4.0, 4.0, 3.0, 20.5}) {
    sums += static_cast<char>(field++ << 3 | 1) + bytes_of(value);
  }
  const size_t start = event.find(sums);
  REQUIRE(start != std::string::npos);
  // Fields 6 and 7: packed ends of buckets and as many counts, with lengths of two bytes.
  size_t at = start + sums.size();
  const auto packed = [&](int field) {
    REQUIRE(event.at(at) == static_cast<char>(field << 3 | 2));
    const size_t size = (static_cast<unsigned char>(event.at(at + 1)) & 0x7f) |
                        static_cast<size_t>(event.at(at + 2)) << 7;
    std::vector<double> values(size / 8);
    std::memcpy(values.data(), event.substr(at + 3, size).data(), size);
    at += 3 + size;
    return values;
  };
  const std::vector<double> ends = packed(6), counts = packed(7);
  REQUIRE(counts.size() == ends.size());
  CHECK(std::is_sorted(ends.begin(), ends.end()));
  const auto count_at = [&](double value) {
    return counts[static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), value) -
                                      ends.begin())];
  };
  CHECK(count_at(-2) == 1);
  CHECK(count_at(0.5) == 2);
  CHECK(count_at(4) == 1);
  CHECK(count_at(1) == 0);
  CHECK(counts.front() == 0);
}
