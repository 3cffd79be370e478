#include "summary_writer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "../../core/error.h"

namespace sash::optim {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr const char* kWriter = "SummaryWriter";

// Protocol buffers: a field is its number and wire type, then a varint, eight or four bytes, or a
// length and so many bytes.
enum class Wire : uint8_t { varint = 0, eight = 1, bytes = 2, four = 5 };

template <class T>
void append_raw(std::string& to, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  to.append(bytes, sizeof(T));
}

void append_varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>(0x80 | (value & 0x7F));
  to += static_cast<char>(value);
}

void append_key(std::string& to, uint64_t field, Wire wire) {
  append_varint(to, field << 3 | static_cast<uint64_t>(wire));
}

void append(std::string& to, uint64_t field, std::string_view bytes) {
  append_key(to, field, Wire::bytes);
  append_varint(to, bytes.size());
  to += bytes;
}
void append(std::string& to, uint64_t field, double value) {
  append_key(to, field, Wire::eight);
  append_raw(to, value);
}
void append(std::string& to, uint64_t field, float value) {
  append_key(to, field, Wire::four);
  append_raw(to, value);
}
void append(std::string& to, uint64_t field, int64_t value) {
  append_key(to, field, Wire::varint);
  append_varint(to, static_cast<uint64_t>(value));
}

void append_packed(std::string& to, uint64_t field, const std::vector<double>& values) {
  std::string bytes;
  for (const double value : values) append_raw(bytes, value);
  append(to, field, bytes);
}

// CRC-32C (Castagnoli), as the record format asks for.
constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82F63B78u : 0);
    table[i] = value;
  }
  return table;
}();

uint32_t masked_crc(std::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char c : bytes) crc = kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF] ^ crc >> 8;
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

std::string new_path(const std::string& folder) {
  static std::atomic<int> writers{0};
  char host[256] = "host";
  ::gethostname(host, sizeof(host) - 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return folder + "/events.out.tfevents." +
         std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now).count()) + "." +
         host + "." + std::to_string(::getpid()) + "." + std::to_string(writers++);
}

/// A message `HistogramProto` of values that are finite.
std::string histogram_of(const std::vector<double>& values) {
  // Upper ends of the buckets: powers of 1.1 of both signs, and zero.
  static const std::vector<double> ends = [] {
    std::vector<double> positive;
    for (double end = 1e-12; end < 1e20; end *= 1.1) positive.push_back(end);
    std::vector<double> all;
    for (auto end = positive.rbegin(); end != positive.rend(); ++end) all.push_back(-*end);
    all.push_back(0);
    all.insert(all.end(), positive.begin(), positive.end());
    all.push_back(std::numeric_limits<double>::max());
    return all;
  }();
  std::vector<double> counts(ends.size());
  double low = values[0], high = values[0], sum = 0, squares = 0;
  for (const double value : values) {
    low = std::min(low, value);
    high = std::max(high, value);
    sum += value;
    squares += value * value;
    counts[static_cast<size_t>(std::upper_bound(ends.begin(), ends.end() - 1, value) -
                               ends.begin())] += 1;
  }
  // Without the empty buckets at both ends, but the one below the first.
  size_t first = 0, past = counts.size();
  while (counts[first] == 0) ++first;
  while (counts[past - 1] == 0) --past;
  first -= first > 0 ? 1 : 0;
  const auto cut = [&](const std::vector<double>& all) {
    return std::vector<double>(all.begin() + static_cast<std::ptrdiff_t>(first),
                               all.begin() + static_cast<std::ptrdiff_t>(past));
  };
  std::string message;
  append(message, 1, low);
  append(message, 2, high);
  append(message, 3, static_cast<double>(values.size()));
  append(message, 4, sum);
  append(message, 5, squares);
  append_packed(message, 6, cut(ends));
  append_packed(message, 7, cut(counts));
  return message;
}

void check_utf8(const char* what, std::string_view text) try {
  (void)nlohmann::json(text).dump();
} catch (const nlohmann::json::exception&) {
  throw ValueError(kWriter, std::string("a ") + what + " in UTF-8", "other bytes");
}

}  // namespace

SummaryWriter::SummaryWriter(const std::string& folder) : path_(new_path(folder)) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) {
    throw IoError(kWriter, "cannot make the folder '" + folder + "': " + failed.message());
  }
  file_.reset(std::fopen(path_.c_str(), "wbx"));
  if (!file_) fail("create");
  std::string event;
  append(event, 1, static_cast<double>(std::time(nullptr)));
  append(event, 3, std::string_view("brain.Event:2"));
  write_record(event);
  flush();
}

SummaryWriter::~SummaryWriter() = default;
SummaryWriter::SummaryWriter(SummaryWriter&&) noexcept = default;
SummaryWriter& SummaryWriter::operator=(SummaryWriter&&) noexcept = default;

void SummaryWriter::fail(const char* what) const {
  throw IoError(kWriter, std::string("cannot ") + what + " '" + path_ +
                             "': " + std::system_category().message(errno));
}

void SummaryWriter::check_open() const {
  if (!file_) throw ValueError(kWriter, "an open file", "a writer that was moved from");
}

void SummaryWriter::write_record(std::string_view event) {
  check_open();
  std::string record;
  append_raw(record, uint64_t{event.size()});
  append_raw(record, masked_crc(record));
  record += event;
  append_raw(record, masked_crc(event));
  if (std::fwrite(record.data(), 1, record.size(), file_.get()) != record.size()) fail("write");
}

void SummaryWriter::write_event(int64_t step, uint64_t field, std::string_view message) {
  std::string event;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  append(event, 1, std::chrono::duration<double>(now).count());
  append(event, 2, step);
  append(event, field, message);
  write_record(event);
}

void SummaryWriter::write_value(std::string value, std::string_view tag, int64_t step) {
  check_utf8("tag", tag);
  append(value, 1, tag);
  std::string summary;
  append(summary, 1, value);
  write_event(step, 5, summary);
  last_step_ = std::max(last_step_, step);
}

// A session log of status START, at which TensorBoard drops what has `step` or a later one.
void SummaryWriter::begin(int64_t step) {
  if (std::exchange(begun_, true) || last_step_ >= step) return;
  std::string log;
  append(log, 1, int64_t{1});
  write_event(step, 7, log);
}

void SummaryWriter::add_scalar(std::string_view tag, double value, int64_t step) {
  std::string message;
  append(message, 2, static_cast<float>(value));
  write_value(std::move(message), tag, step);
}

void SummaryWriter::add_histogram(std::string_view tag, const Tensor& values, int64_t step) {
  const std::vector<double> elements = values.detach().to_vector<double>();
  if (elements.empty()) throw ValueError(kWriter, "at least one value", "none");
  for (const double element : elements) {
    if (!std::isfinite(element))
      throw ValueError(kWriter, "finite values", std::to_string(element));
  }
  std::string message;
  append(message, 5, histogram_of(elements));
  write_value(std::move(message), tag, step);
}

void SummaryWriter::add_text(std::string_view tag, std::string_view text, int64_t step) {
  check_utf8("text", text);
  constexpr int64_t kDtString = 7, kTensorData = 2;
  std::string plugin, metadata, extent, shape, tensor, message;
  append(plugin, 1, std::string_view("text"));
  append(metadata, 1, plugin);
  append(metadata, 4, kTensorData);
  append(extent, 1, int64_t{1});
  append(shape, 2, extent);
  append(tensor, 1, kDtString);
  append(tensor, 2, shape);
  append(tensor, 8, text);
  append(message, 8, tensor);
  append(message, 9, metadata);
  write_value(std::move(message), std::string(tag) + "/text_summary", step);
}

void SummaryWriter::add_report(const StepReport& report) {
  const int64_t step = report.step;
  begin(step);
  add_scalar("loss/train", report.loss, step);
  add_scalar("lr", report.lr, step);
  add_scalar("grad_norm", report.grad_norm, step);
  if (report.per_second() > 0) add_scalar(report.unit() + "_per_s", report.per_second(), step);
  for (const auto& [name, value] : report.metrics) add_scalar(name + "/train", value, step);
  for (const auto& [name, value] : report.validation) {
    add_scalar(name + "/validation", value, step);
  }
  flush();  // before the step is saved, so that a resumed run has it
}

void SummaryWriter::on_step(const StepReport& report) try {
  if (!failed_) add_report(report);
} catch (const IoError& error) {
  give_up(error);
}

// Other callbacks may have added something after the step.
void SummaryWriter::on_save(const std::string&, int64_t) try {
  if (!failed_) flush();
} catch (const IoError& error) {
  give_up(error);
}

void SummaryWriter::give_up(const IoError& error) {
  failed_ = true;
  std::fprintf(stderr, "warning: %s\n", error.what());
}

void SummaryWriter::on_end(Trainer&) {
  if (!failed_) flush();
}

void SummaryWriter::flush() {
  check_open();
  if (std::fflush(file_.get()) != 0) fail("write");
}

}  // namespace sash::optim
