#include "profiler.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "../core/backend/backend.h"
#include "../core/backend/kernel.h"
#include "../core/error.h"
#include "../core/readable.h"
#include "../ops/kernels/float8.h"
#include "../ops/linalg/matmul.h"
#include "../ops/operation_count.h"
#include "../tensor/autograd/grad_mode.h"
#include "../tensor/factories.h"
#include "../tensor/graph.h"
#include "../tensor/io/replacement_file.h"
#include "../tensor/run_kernel.h"

namespace sash::optim {
namespace {

constexpr size_t kMostCalls = 200'000, kMostShapes = 8;
constexpr size_t kWritten = 1 << 16;  // bytes of a trace at a time

// Times are microseconds from the start; on a card, from the first call there.
struct Call {
  const char* name;
  Device device;
  Stream stream;
  std::string shapes;
  DType dtype;
  int64_t bytes;
  double operations;
  bool within;                // another call
  double begin = 0, end = 0;  // `end`: 0 until it has ended
  Event first{}, last{};
};

// About a kernel; it reads no elements, and is not kept.
bool is_question(const KernelCall& call) {
  const std::string_view name = call.name;
  return name == "attention_block_rows" || name == "layer_norm_chunks";
}

std::string fixed(double value, int digits) {
  return to_text(value, std::chars_format::fixed, digits);
}

// Microseconds with three digits behind the point.
double rounded(double us) { return std::round(1000 * us) / 1000; }

// Of the columns of a table. The first is aligned to the left, the others to the right.
constexpr std::array<size_t, 8> kWidths{32, 8, 12, 6, 10, 8, 9, 6};

std::string table_line(const std::array<std::string, kWidths.size()>& fields) {
  std::string line;
  for (size_t i = 0; i < fields.size(); ++i) {
    const std::string padding(kWidths[i] - std::min(kWidths[i], fields[i].size()), ' ');
    line += i == 0 ? fields[i] + padding : ' ' + padding + fields[i];
  }
  return line + '\n';
}

// Numbers of the calls that this thread is in; `kNone` for one that is not kept.
thread_local std::vector<size_t> open;
constexpr size_t kNone = kMostCalls;

std::string shapes_of(const KernelCall& call) {
  std::string text;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    if (i == kMostShapes) return text + " ...";
    const KernelCall::Operand& x = call.operands[i];
    text += (i == 0 ? "" : " ") + std::string(name(x.dtype)) + to_string(x.shape);
  }
  return text;
}

// Microseconds of the fastest of some calls.
template <class F>
double least_us(Device device, F&& call) {
  double least = 1e30;
  for (int i = 0; i < 4; ++i) {
    synchronize(device);
    const auto start = std::chrono::steady_clock::now();
    call();
    synchronize(device);
    const std::chrono::duration<double, std::micro> spent =
        std::chrono::steady_clock::now() - start;
    least = std::min(least, spent.count());
  }
  return least;
}

// What a device does at best, per microsecond.
class Limits {
 public:
  double least_us(const Call& call) {
    const double copying = static_cast<double>(call.bytes) / bytes(call.device);
    if (call.operations == 0) return copying;
    return std::max(copying, call.operations / operations(call.device, call.dtype));
  }

 private:
  double bytes(Device device) {
    double& rate = bytes_[device.index + (device.is_cuda() ? 1 : 0)];
    if (rate > 0) return rate;
    const int64_t count = int64_t{device.is_cuda() ? 64 : 16} << 20;
    const Tensor x = zeros({count}, {.dtype = DType::float32, .device = device});
    return rate = 8 * static_cast<double>(count) / optim::least_us(device, [&] { x.clone(); });
  }
  double operations(Device device, DType dtype) {
    double& rate = operations_[{device.index + (device.is_cuda() ? 1 : 0), dtype}];
    if (rate > 0) return rate;
    const int64_t n = device.is_cuda() ? 4096 : 768;
    const Tensor x = zeros({n, n}, {.dtype = dtype, .device = device});
    const auto side = static_cast<double>(n);
    const auto multiply = [&] {
      if (dtype != DType::uint8) return static_cast<void>(matmul(x, x));
      const Tensor one = ones({1}, {.dtype = DType::float32, .device = device});
      run_kernel(kernels::float8_matmul, x, one, kernels::Float8::e4m3, x, one, Tensor(),
                 empty({n, n}, {.dtype = DType::bfloat16, .device = device}));
    };
    return rate = 2 * side * side * side / optim::least_us(device, multiply);
  }

  std::map<int, double> bytes_;
  std::map<std::pair<int, DType>, double> operations_;
};

}  // namespace

struct Profiler::State final : KernelObserver {
  void before(const KernelCall& call) override;
  void after(const KernelCall& call) noexcept override;
  void finish();

  double now() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
  }

  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  bool running = true;
  std::mutex mutex;
  bool finished = false;  // calls that have not ended by then tell nothing more
  std::vector<Call> calls;
  double wall = 0;
  int64_t peak_bytes = 0;
  Limits limits;
};

void Profiler::State::before(const KernelCall& call) {
  Call made{.name = call.name,
            .device = call.context.device,
            .stream = call.context.stream,
            .shapes = shapes_of(call),
            .dtype = call.operands.empty() ? DType::float32 : call.operands[0].dtype,
            .bytes = byte_count(call),
            .operations = operation_count(call),
            .within = !open.empty()};
  Backend& owner = backend(made.device.type);
  owner.begin_range(call.name);
  const std::lock_guard lock(mutex);
  if (finished || calls.size() == kMostCalls || Graph::recording() || is_question(call)) {
    return open.push_back(kNone);
  }
  if (made.device.is_cuda()) {
    made.first = owner.create_event(made.device);
    made.last = owner.create_event(made.device);
    owner.record(made.first, made.device, made.stream);
  }
  open.push_back(calls.size());
  made.begin = now();
  calls.push_back(std::move(made));
}

void Profiler::State::after(const KernelCall& call) noexcept {
  const double end = now();
  const std::lock_guard lock(mutex);
  const size_t number = open.back();
  open.pop_back();
  try {
    Backend& owner = backend(call.context.device.type);
    owner.end_range();
    if (finished || number == kNone) return;
    peak_bytes = std::max(peak_bytes, owner.memory_stats(call.context.device).current);
    Call& made = calls[number];
    made.end = end;
    if (made.last.handle) owner.record(made.last, made.device, made.stream);
  } catch (const Error&) {  // the kernel's own is on its way
  }
}

// The times of a card's calls, from its events.
void Profiler::State::finish() {
  {
    const std::lock_guard lock(mutex);
    finished = true;
  }
  std::map<int, std::pair<Event, double>> origins;  // the first call on each card
  for (Call& call : calls) {
    if (!call.first.handle || call.end == 0) continue;
    Backend& owner = backend(call.device.type);
    const auto [event, time] =
        origins.emplace(call.device.index, std::pair(call.first, call.begin)).first->second;
    call.begin = time + 1000 * owner.elapsed_ms(event, call.first, call.device);
    call.end = call.begin + 1000 * owner.elapsed_ms(call.first, call.last, call.device);
  }
  for (Call& call : calls) {
    for (Event* event : {&call.first, &call.last}) {
      if (event->handle) backend(call.device.type).destroy_event(call.device, *event);
      *event = {};
    }
  }
  std::erase_if(calls, [](const Call& call) { return call.end == 0; });
}

Profiler::Profiler() : state_(std::make_shared<State>()) {
  if (KernelObserver::install(state_)) return;
  throw ValueError("Profiler", "no other running profiler", "one");
}

Profiler::~Profiler() {
  try {
    stop();
  } catch (const Error&) {  // what a device reported too late
  }
}

void Profiler::stop() {
  if (!std::exchange(state_->running, false)) return;
  KernelObserver::remove(*state_);
  state_->wall = state_->now();
  state_->finish();
}

std::vector<ProfileRow> Profiler::rows() {
  stop();
  const NoGradGuard no_grad;
  std::map<std::string_view, ProfileRow> by_name;
  for (const Call& call : state_->calls) {
    if (call.within) continue;
    ProfileRow& row = by_name[call.name];
    row.op = call.name;
    ++row.calls;
    row.ms += (call.end - call.begin) / 1000;
    row.bytes += call.bytes;
    row.operations += call.operations;
    row.share += state_->limits.least_us(call) / 1000;
  }
  std::vector<ProfileRow> rows;
  for (auto& [name, row] : by_name) {
    row.share = row.ms > 0 ? row.share / row.ms : 0;
    rows.push_back(std::move(row));
  }
  std::sort(rows.begin(), rows.end(),
            [](const ProfileRow& a, const ProfileRow& b) { return a.ms > b.ms; });
  return rows;
}

double Profiler::wall_ms() {
  stop();
  return state_->wall / 1000;
}

int64_t Profiler::peak_bytes() {
  stop();
  return state_->peak_bytes;
}

std::string Profiler::table() {
  const std::vector<ProfileRow> all = rows();
  ProfileRow sum{.op = "all"};
  for (const ProfileRow& row : all) {
    sum.calls += row.calls;
    sum.ms += row.ms;
    sum.bytes += row.bytes;
    sum.operations += row.operations;
    sum.share += row.share * row.ms;
  }
  sum.share /= std::max(sum.ms, 1e-9);
  std::string text = table_line({"op", "calls", "ms", "%", "bytes", "GB/s", "GFLOP/s", "limit%"});
  const auto add = [&](const ProfileRow& row) {
    const double us = std::max(1000 * row.ms, 1e-6);
    text += table_line({row.op.substr(0, kWidths[0]), std::to_string(row.calls), fixed(row.ms, 3),
                        fixed(100 * row.ms / std::max(sum.ms, 1e-9), 1), bytes_text(row.bytes),
                        fixed(static_cast<double>(row.bytes) * 1e-3 / us, 1),
                        fixed(row.operations * 1e-3 / us, 1), fixed(100 * row.share, 1)});
  };
  for (const ProfileRow& row : all) add(row);
  add(sum);
  return text + "wall " + fixed(wall_ms(), 3) + " ms, " +
         fixed(100 * sum.ms / std::max(wall_ms(), 1e-9), 1) + " % of it in kernels; at most " +
         bytes_text(peak_bytes()) + " in use\n";
}

void Profiler::write_trace(const std::string& path) {
  stop();
  ReplacementFile file("Profiler.write_trace", path);
  const auto write = [&](const std::string& text) { file.write(text.data(), text.size()); };
  std::map<void*, int> streams;
  std::string text = "{\"traceEvents\":[";
  const char* separator = "\n";
  for (const Call& call : state_->calls) {
    const int stream =
        streams.emplace(call.stream.handle, static_cast<int>(streams.size())).first->second;
    const nlohmann::ordered_json event{
        {"name", call.name},
        {"ph", "X"},
        {"pid", to_string(call.device)},
        {"tid", stream},
        {"ts", rounded(call.begin)},
        {"dur", rounded(call.end - call.begin)},
        {"args", {{"bytes", call.bytes}, {"operations", call.operations}, {"shape", call.shapes}}}};
    text += separator + event.dump();
    separator = ",\n";
    if (text.size() >= kWritten) write(std::exchange(text, {}));
  }
  write(text + "\n]}\n");
  file.commit();
}

}  // namespace sash::optim
