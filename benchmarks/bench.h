#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <sash/core/backend/backend.h>
#include <sash/core/parallel.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/graph.h>
#include <sash/tensor/random.h>
#include <sash/tensor/tensor.h>

#include "../examples/support/flags.h"

namespace sash::bench {

/// The median of `times`.
inline double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

/// Times the work queued between two CUDA events.
class EventTimer {
 public:
  explicit EventTimer(Device device) : device_(device) {
    start_ = owner().create_event(device);
    stop_ = owner().create_event(device);
  }
  ~EventTimer() {
    owner().destroy_event(device_, start_);
    owner().destroy_event(device_, stop_);
  }
  EventTimer(const EventTimer&) = delete;
  EventTimer& operator=(const EventTimer&) = delete;

  /// Milliseconds per call of `count` calls in a row.
  template <class Call>
  double ms(int count, Call&& call) {
    const Stream stream = owner().current_stream(device_);
    owner().record(start_, device_, stream);
    for (int i = 0; i < count; ++i) call();
    owner().record(stop_, device_, stream);
    return owner().elapsed_ms(start_, stop_, device_) / count;
  }

 private:
  Backend& owner() const { return backend(device_.type); }

  Device device_;
  Event start_, stop_;
};

/// Milliseconds per call on a GPU: the median of at least ten runs. A run times several calls in a
/// row, about 3 ms of them, so that the overhead at its start and end is negligible.
template <class Call>
double median_ms_of_runs(Device device, int runs, Call&& call) {
  constexpr double kRunMs = 3;
  EventTimer timer(device);
  timer.ms(2, call);
  const double about = timer.ms(2, call);
  const int in_a_row = std::clamp(static_cast<int>(kRunMs / about), 3, 50);
  std::vector<double> times;
  for (int i = 0; i < std::max(runs, 10); ++i) times.push_back(timer.ms(in_a_row, call));
  synchronize(device);
  return median(times);
}

/// The same for a call that ranks make together, so its number does not depend on the time.
template <class Call>
double median_ms_of_ranks(Device device, Call&& call) {
  EventTimer timer(device);
  timer.ms(5, call);
  std::vector<double> times;
  for (int i = 0; i < 10; ++i) times.push_back(timer.ms(3, call));
  synchronize(device);
  return median(times);
}

/// Milliseconds of the median call, after two warm-up calls; on a CPU of at least `calls` calls
/// that take `seconds` together.
template <class Call>
double median_ms(Device device, int calls, Call&& call, double seconds = 0) {
  if (device.is_cuda()) return median_ms_of_runs(device, calls, call);
  std::vector<double> times;
  double total = 0;
  for (int i = 0; i < calls + 2 || total < seconds * 1e3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start;
    if (i < 2) continue;
    times.push_back(spent.count());
    total += spent.count();
  }
  return median(times);
}

/// Milliseconds per call of a CUDA graph of 20 calls: without the host's time to launch them. The
/// median of five replays: many more in a row, and the card's clock falls.
template <class Call>
double graph_ms(Device device, Call&& call) {
  constexpr int kCalls = 20, kReplays = 5;
  call();
  Graph graph(device);
  for (int i = 0; i < kCalls; ++i) call();
  graph.end();
  EventTimer timer(device);
  timer.ms(1, [&] { graph.replay(); });
  std::vector<double> times;
  for (int i = 0; i < kReplays; ++i) times.push_back(timer.ms(1, [&] { graph.replay(); }) / kCalls);
  return median(times);
}

/// `value` rounded to `decimals` decimals, for readable output.
inline double rounded(double value, int decimals) {
  const double unit = std::pow(10, decimals);
  return std::round(value * unit) / unit;
}

/// Prints one figure as one line of JSON.
inline void print(const nlohmann::ordered_json& figure) { std::cout << figure.dump() << std::endl; }

/// Runs `call`. If it throws, prints the error and returns false, so that the others still run.
template <class Call>
bool attempt(Call&& call) {
  try {
    call();
    return true;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return false;
  }
}

/// The line about the machine.
inline void print_environment(Device device) {
  print({{"kind", "env"},
         {"device", backend(device.type).description(device)},
         {"threads", num_threads()}});
}

inline bool contains(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

/// Parses the flags of a program, and calls `body(device)`, which returns whether all went well.
/// The default device stays the CPU. Returns the exit status.
template <class Body>
int run(Flags& flags, int argc, char** argv, Body&& body) {
  return flags.run(argc, argv, [&] {
    const Device device = default_device();
    set_default_device(kCPU);
    return body(device) ? 0 : 1;
  });
}

/// The most MiB that `call` takes above what is allocated before it.
template <class Call>
double peak_mb(Device device, Call&& call) {
  const int64_t before = memory_stats(device).current;
  reset_peak_memory(device);
  call();
  return rounded(static_cast<double>(memory_stats(device).peak - before) / (1 << 20), 1);
}

/// A program that calls `time(setup, device, options)` for each of `cases(device, options)` whose
/// name the flags select. Options have the dtype and the device.
template <class Cases, class Time>
int run_cases(const std::string& text, int argc, char** argv, Cases&& cases, Time&& time) {
  Flags flags(text, "cpu");
  std::string dtype;
  std::vector<std::string> names;
  flags.add("--case", names, "only these cases");
  flags.add("--dtype", dtype, "float32 on the CPU and bfloat16 on CUDA by default");
  return run(flags, argc, argv, [&](Device device) {
    if (dtype.empty()) dtype = device.is_cpu() ? "float32" : "bfloat16";
    const TensorOptions options{.dtype = parse_dtype(dtype), .device = device};
    print_environment(device);
    bool good = true;
    manual_seed(0);
    for (const auto& setup : cases(device, options)) {
      if (!names.empty() && !contains(names, setup.name())) continue;
      good = attempt([&] { time(setup, device, options); }) && good;
    }
    return good;
  });
}

/// Throws unless |a - b| <= tolerance max(1, |b|) for every element, so that no wrong result is
/// timed. Compares on the tensors' device, because copying large ones to the host is slow.
inline void check_close(const std::string& what, const Tensor& a, const Tensor& b,
                        double tolerance) {
  const NoGradGuard no_grad;
  bool close = a.shape() == b.shape();
  if (close) {
    const Tensor scale = clamp(abs(b), 1);
    close = amax(abs(a - b) / scale).item<double>() <= tolerance;  // false for NaN
  }
  if (!close) throw std::runtime_error(what + ": the result is wrong, so it is not timed");
}

}  // namespace sash::bench
