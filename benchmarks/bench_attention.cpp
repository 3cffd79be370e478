// Times attention over windows and sparse patterns, after checking what it computes; one line of
// JSON per case. TFLOP/s count visible pairs alone: two products forward, five backward.

#include <stdexcept>
#include <string>

#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/attention/mask/mask_statistics.h>
#include <sash/tensor/random.h>

#include "../tests/support/attention/attention_check.h"
#include "attention_cases.h"
#include "bench.h"

using nlohmann::ordered_json;
using sash::Tensor;
using sash::bench::AttentionCase;

namespace {

constexpr int kCalls = 7;

/// What rounding to `dtype` may do to a row, in the mean of squares.
double tolerance(sash::DType dtype) {
  switch (dtype) {
    case sash::DType::bfloat16:
      return 1e-2;
    case sash::DType::float16:
      return 2e-3;
    case sash::DType::float64:
      return 1e-9;
    default:
      return 1e-4;
  }
}

struct Times {
  double forward, both;
  double pairs;
  double graph_forward = 0, graph_both = 0;  // on a card
};

class AttentionRun {
 public:
  AttentionRun(const AttentionCase& setup, sash::Device device)
      : setup_(setup), device_(device), pattern_(setup.pattern()), options_(setup.options) {
    options_.mask = pattern_.mask;
    sash::manual_seed(0);
    q_ = variable(setup.heads);
    k_ = variable(setup.kv_heads);
    v_ = variable(setup.kv_heads);
    g_ = variable(setup.heads).detach();
  }

  void check() const {
    const sash::AttentionOptions options{.mask = pattern_.mask};
    const Tensor out = attention(q_, k_, v_, options);
    const auto gradients = sash::grad({out}, {q_, k_, v_}, {g_});
    const Tensor lse = attention_with_lse(q_, k_, v_, options).lse;
    const sash::testing::AttentionCall call{
        q_, k_, v_, g_, out, lse, gradients[0], gradients[1], gradients[2], pattern_.sees};
    for (const auto& row : sash::testing::AttentionCheck(call).rows(12, 6)) {
      if (row.error <= tolerance(setup_.dtype) * (row.size + 0.01)) continue;
      throw std::runtime_error(
          setup_.name + ": the result is wrong, so it is not timed: " + row.what + " of row " +
          std::to_string(row.row) + " is " + std::to_string(row.error) + " away from " +
          std::to_string(row.size) + " in the mean");
    }
  }

  /// Most memory that both passes held at once, the inputs apart, in MiB.
  double peak_mb() const {
    const int64_t before = sash::memory_stats(device_).current;
    sash::reset_peak_memory(device_);
    both();
    const int64_t peak = sash::memory_stats(device_).peak - before;
    return static_cast<double>(peak) / (1 << 20);
  }

  Times time() const {
    const sash::MaskShape shape{setup_.batch, setup_.heads, setup_.length, setup_.length};
    const double pairs =
        pattern_.pairs > 0
            ? pattern_.pairs
            : static_cast<double>(mask_statistics(pattern_.mask, shape).visible_pairs);
    Times times{sash::bench::median_ms(device_, kCalls, [&] { forward(); }),
                sash::bench::median_ms(device_, kCalls, [&] { both(); }), pairs};
    if (device_.is_cuda()) {
      times.graph_forward = sash::bench::graph_ms(device_, [&] { forward(); });
      times.graph_both = sash::bench::graph_ms(device_, [&] { both(); });
    }
    return times;
  }

 private:
  Tensor variable(int64_t heads) const {
    return sash::randn({setup_.batch, heads, setup_.length, setup_.dim},
                       {.dtype = setup_.dtype, .device = device_, .requires_grad = true});
  }
  Tensor forward() const { return attention(q_, k_, v_, options_); }
  void both() const { sash::grad({forward()}, {q_, k_, v_}, {g_}); }

  const AttentionCase& setup_;
  sash::Device device_;
  sash::bench::Pattern pattern_;
  sash::AttentionOptions options_;
  Tensor q_, k_, v_, g_;
};

ordered_json figure_of(const AttentionCase& setup, const Times& times, double peak_mb) {
  using sash::bench::rounded;
  const double backward = times.both - times.forward;
  const double products = 2 * static_cast<double>(setup.dim) * times.pairs;
  ordered_json figure{{"kind", "attention"},
                      {"case", setup.name},
                      {"impl", "sash"},
                      {"group", setup.group},
                      {"dtype", sash::name(setup.dtype)},
                      {"shape", {setup.batch, setup.heads, setup.length, setup.dim}},
                      {"kv_heads", setup.kv_heads},
                      {"pairs", static_cast<int64_t>(times.pairs)},
                      {"fwd_ms", rounded(times.forward, 4)},
                      {"fwdbwd_ms", rounded(times.both, 4)},
                      {"bwd_ms", rounded(backward, 4)},
                      {"fwd_tflops", rounded(2 * products / times.forward / 1e9, 3)},
                      {"bwd_tflops", rounded(5 * products / backward / 1e9, 3)},
                      {"peak_mb", rounded(peak_mb, 1)}};
  if (times.graph_forward > 0) {
    figure["fwd_graph_ms"] = rounded(times.graph_forward, 4);
    figure["bwd_graph_ms"] = rounded(times.graph_both - times.graph_forward, 4);
  }
  return figure;
}

/// Times each case of a device in turn, and remembers the last for ratios.
class Bench {
 public:
  explicit Bench(sash::Device device) : device_(device) {}

  void run(const AttentionCase& setup) {
    const AttentionRun attention(setup, device_);
    attention.check();
    const double peak_mb = attention.peak_mb();
    const Times times = attention.time();
    ordered_json figure = figure_of(setup, times, peak_mb);
    add_ratios(figure, setup, times);
    sash::bench::print(figure);
    before_ = times;
    series_ = setup.series;
  }

 private:
  void add_ratios(ordered_json& figure, const AttentionCase& setup, const Times& times) const {
    using sash::bench::rounded;
    if (setup.series.empty() || setup.series != series_) return;
    figure["pairs_ratio"] = rounded(times.pairs / before_.pairs, 3);
    figure["fwd_ratio"] = rounded(times.forward / before_.forward, 3);
    figure["fwdbwd_ratio"] = rounded(times.both / before_.both, 3);
  }

  sash::Device device_;
  Times before_{};
  std::string series_;
};

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Times attention", "cpu");
  std::string dtype;
  std::vector<std::string> groups, names;
  flags.add("--group", groups,
            "peers (the default), scaling, lengths, dense, sparse, blocks, selected, "
            "widths, options, dropout, memory");
  flags.add("--case", names, "only these cases, of any group");
  flags.add("--dtype", dtype, "of all cases: float32, bfloat16, ...");
  return sash::bench::run(flags, argc, argv, [&](sash::Device device) {
    using sash::bench::contains;
    if (groups.empty() && names.empty()) groups = {"peers"};
    sash::bench::print_environment(device);
    Bench bench(device);
    bool good = true;
    for (AttentionCase& setup : sash::bench::attention_cases(device)) {
      const bool wanted = (groups.empty() || contains(groups, setup.group)) &&
                          (names.empty() || contains(names, setup.name));
      if (!wanted) continue;
      if (!dtype.empty()) setup.dtype = sash::parse_dtype(dtype);
      good = sash::bench::attempt([&] { bench.run(setup); }) && good;
    }
    return good;
  });
}
