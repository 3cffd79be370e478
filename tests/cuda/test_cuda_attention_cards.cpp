// Attention as cards with less shared memory, or without the kernels for sm_90a, compute it, and
// calls that have no scores. On a card; any can stand in for a smaller one.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/attention_reference.h"
#include "../support/cuda_device.h"
#include "../support/expect_error.h"
#include "../support/op_inputs.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr uint64_t kSeed = 5;
constexpr const char* kLimit = "SASH_SHARED_MEMORY_LIMIT";
constexpr const char* kKernel = "SASH_ATTENTION_KERNEL";

/// Sets an environment variable, or with null removes it, until the end of the scope.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) {
    if (const char* former = std::getenv(name)) former_ = former;
    put(value);
  }
  ~Setting() { put(former_ ? former_->c_str() : nullptr); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  void put(const char* value) {
    value ? setenv(name_, value, 1) : unsetenv(name_);  // NOLINT(concurrency-mt-unsafe)
  }
  const char* name_;
  std::optional<std::string> former_;
};

class AllowTf32 {
 public:
  explicit AllowTf32(bool allowed) { set_tf32_allowed(allowed); }
  ~AllowTf32() { set_tf32_allowed(false); }
  AllowTf32(const AllowTf32&) = delete;
  AllowTf32& operator=(const AllowTf32&) = delete;
};

/// Numbers that all floating dtypes hold.
Array short_numbers(RandomNumbers& random, const Shape& shape) {
  return generate(shape,
                  [&](const Index&) { return static_cast<double>(random.below(129)) / 64 - 1; });
}

/// Two heads of queries read one of keys; several blocks of the map.
AttentionProblem make_problem(int64_t depth, int64_t v_depth, bool options) {
  constexpr int64_t batch = 2, heads = 2, queries = 100, keys = 131;
  RandomNumbers random(static_cast<uint64_t>(depth + v_depth));
  AttentionProblem p;
  p.q = short_numbers(random, {batch, heads, queries, depth});
  p.k = short_numbers(random, {batch, 1, keys, depth});
  p.v = short_numbers(random, {batch, 1, keys, v_depth});
  p.g = short_numbers(random, {batch, heads, queries, v_depth});
  p.g_lse = short_numbers(random, {batch, heads, queries});
  p.scale = 0.25;
  p.seed = kSeed;
  p.sees = [options](const MaskIndex& at) {
    const bool inside = !options || at.key < (at.batch == 0 ? 77 : keys);
    return at.key <= at.query + keys - queries && inside;
  };
  if (!options) return p;
  p.softcap = 2;
  p.dropout = 0.25;
  p.bias = short_numbers(random, {heads, queries, keys});
  p.relative_bias = short_numbers(random, {heads, 2 * 40 + 1});
  p.slopes = {0.0625, 0.125};
  return p;
}

/// out, lse, dq, dk, dv, and with options the gradients of both biases.
std::vector<Tensor> results(const AttentionProblem& p, DType dtype, Device device) {
  const bool options = p.softcap > 0;
  std::vector<Tensor> x;
  for (const Array* input : {&p.q, &p.k, &p.v, &p.bias, &p.relative_bias}) {
    if (x.size() < 3 || options) x.push_back(to_tensor(*input, dtype, device).requires_grad_());
  }
  AttentionOptions with{.mask = AttentionMask::causal(),
                        .scale = p.scale,
                        .softcap = p.softcap,
                        .dropout = p.dropout};
  if (options) {
    with.mask = with.mask & AttentionMask::key_lengths(tensor<int32_t>({77, 131}).to(device));
    with.bias = x[3];
    with.relative_bias = x[4];
    with.alibi_slopes = tensor(p.slopes, {2}).to(DType::float32).to(device);
  }
  manual_seed(kSeed);
  const AttentionWithLse y = attention_with_lse(x[0], x[1], x[2], with);
  backward({y.out, y.lse},
           {to_tensor(p.g, dtype, device), to_tensor(p.g_lse, y.lse.dtype(), device)});
  std::vector<Tensor> all{y.out.detach(), y.lse.detach()};
  for (const Tensor& input : x) all.push_back(input.grad());
  return all;
}

/// |x - y| / |y|, by the sums of squares.
double distance(const std::vector<double>& x, const std::vector<double>& y) {
  REQUIRE(x.size() == y.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    if (x[i] == y[i]) continue;
    error += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return error == 0 ? 0 : std::sqrt(error / size);
}

struct Run {
  const char* kernel;
  DType dtype;
  bool tf32;
  double tolerance;
};

const std::vector<Run> kRuns{{"simple", DType::float64, false, 1e-12},
                             {"simple", DType::float32, false, 1e-5},
                             {"mma", DType::float32, true, 4 * 0x1p-11},
                             {"mma", DType::float16, false, 4 * 0x1p-11},
                             {"mma", DType::bfloat16, false, 4 * 0x1p-8}};

void check(const AttentionProblem& p, const AttentionAnswer& answer, const Run& run) {
  const Setting kernel(kKernel, run.kernel);
  const AllowTf32 allow(run.tf32);
  const std::vector<Tensor> found = results(p, run.dtype, kCUDA);
  const std::vector<const Array*> expected{&answer.out, &answer.lse,   &answer.dq,       &answer.dk,
                                           &answer.dv,  &answer.dbias, &answer.drelative};
  const std::vector<std::string> names{"out", "lse", "dq", "dk", "dv", "dbias", "drelative"};
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = distance(found[i].to_vector<double>(), expected[i]->values);
    CAPTURE(run.kernel);
    CAPTURE(name(run.dtype));
    CAPTURE(run.tf32);
    CAPTURE(names[i]);
    CHECK_MESSAGE(error <= run.tolerance, error);
  }
}

/// Every width of tiles, plain calls and such with all options, by all kernels that any card has.
void check_widths(const char* limit) {
  const Setting limited(kLimit, limit);
  struct Features {
    int64_t depth, v_depth;
  };
  const std::vector<Features> all{{24, 24},   {64, 64},   {96, 96},  {128, 128},
                                  {160, 160}, {256, 256}, {72, 136}, {256, 40}};
  for (size_t i = 0; i < all.size(); i += short_tests() ? 3 : 1) {
    for (const bool options : {false, true}) {
      const AttentionProblem p = make_problem(all[i].depth, all[i].v_depth, options);
      const AttentionAnswer answer = solve(p);
      CAPTURE(all[i].depth);
      CAPTURE(all[i].v_depth);
      CAPTURE(options);
      for (const Run& run : kRuns) check(p, answer, run);
    }
  }
}

void expect_all(const Tensor& x, double value) {
  for (const double element : x.to_vector<double>()) REQUIRE(element == value);
}

}  // namespace

TEST_CASE("cuda mask kernels: those that SASH_ATTENTION_KERNEL names run") { cuda_missing(); }

TEST_CASE("cuda attention cards: all widths and options where blocks have 99 KiB") {
  if (!cuda_missing()) check_widths("101376");
}

TEST_CASE("cuda attention cards: all widths and options with the shared memory of the card") {
  if (!cuda_missing()) check_widths(nullptr);
}

TEST_CASE("cuda attention cards: a limit below that of all cards, or no number, is refused") {
  if (cuda_missing()) return;
  const Tensor x = zeros({1, 1, 4, 64}, {.dtype = DType::float64, .device = kCUDA});
  const Setting kernel(kKernel, nullptr);
  for (const std::string text : {"101375", "-1", "", "100k", "99999999999"}) {
    const Setting limited(kLimit, text.c_str());
    expect_error<ValueError>(
        "attention: expected SASH_SHARED_MEMORY_LIMIT of at least 101376, got " + text,
        [&] { attention(x, x, x); });
  }
}

TEST_CASE("cuda attention cards: kernels asked for by name that cannot run are an error") {
  if (cuda_missing()) return;
  const Tensor x = zeros({1, 1, 4, 8}, {.dtype = DType::bfloat16, .device = kCUDA});
  const Setting kernel(kKernel, "hopper"), limited(kLimit, "101376");
  expect_error<DeviceError>(
      "attention: expected a card of compute capability 9.0, a library with code for sm_90a and no "
      "lower SASH_SHARED_MEMORY_LIMIT, for SASH_ATTENTION_KERNEL=hopper, got cuda:0 without one of "
      "these",
      [&] { attention(x, x, x); });
}

TEST_CASE("cuda mask ends: calls without keys, queries or batches") {
  if (cuda_missing()) return;
  struct Extents {
    int64_t batch, queries, keys;
  };
  for (const Extents& s : {Extents{2, 3, 0}, {2, 0, 3}, {0, 3, 3}, {2, 0, 0}}) {
    for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      CAPTURE(s.batch);
      CAPTURE(s.queries);
      CAPTURE(s.keys);
      CAPTURE(name(dtype));
      const TensorOptions options{.dtype = dtype, .device = kCUDA, .requires_grad = true};
      const Tensor q = ones({s.batch, 2, s.queries, 16}, options),
                   k = ones({s.batch, 1, s.keys, 16}, options),
                   v = ones({s.batch, 1, s.keys, 8}, options), relative = ones({2, 5}, options);
      const AttentionWithLse y =
          attention_with_lse(q, k, v, {.mask = AttentionMask::causal(), .relative_bias = relative});
      CHECK(y.out.shape() == Shape{s.batch, 2, s.queries, 8});
      expect_all(y.out, 0);
      expect_all(y.lse, std::numeric_limits<double>::infinity());
      backward({y.out, y.lse}, {ones_like(y.out), ones_like(y.lse)});
      for (const Tensor& x : {q, k, v, relative}) {
        CHECK(x.grad().shape() == x.shape());
        expect_all(x.grad(), 0);
      }
    }
  }
}
