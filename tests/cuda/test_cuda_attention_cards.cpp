// Attention as cards with less shared memory, or without the kernels for sm_90a, compute it. On a
// card; any can stand in for a smaller one.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/attention/attention_run.h"
#include "../support/attention/row_errors.h"
#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/scopes.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr uint64_t kSeed = 5;
constexpr const char* kLimit = "SASH_SHARED_MEMORY_LIMIT";
constexpr const char* kKernel = "SASH_ATTENTION_KERNEL";

/// Numbers that all floating dtypes hold.
Array short_numbers(RandomNumbers& random, const Shape& shape) {
  return generate(shape,
                  [&](const Index&) { return static_cast<double>(random.below(129)) / 64 - 1; });
}

enum class Options { none, dropout, all };

/// Two heads of queries read one of keys; several blocks of the map.
AttentionProblem make_problem(int64_t depth, int64_t v_depth, Options options) {
  constexpr int64_t batch = 2, heads = 2, queries = 100;
  const int64_t keys = options == Options::dropout ? 132 : 131;
  RandomNumbers random(static_cast<uint64_t>(depth + v_depth));
  AttentionProblem p;
  p.q = short_numbers(random, {batch, heads, queries, depth});
  p.k = short_numbers(random, {batch, 1, keys, depth});
  p.v = short_numbers(random, {batch, 1, keys, v_depth});
  p.g = short_numbers(random, {batch, heads, queries, v_depth});
  p.g_lse = short_numbers(random, {batch, heads, queries});
  p.scale = 0.25;
  p.seed = kSeed;
  p.sees = [options, keys](const MaskIndex& at) {
    const bool inside = options != Options::all || at.key < (at.batch == 0 ? 77 : keys);
    return at.key <= at.query + keys - queries && inside;
  };
  if (options == Options::none) return p;
  p.dropout = 0.25;
  if (options == Options::dropout) return p;
  p.softcap = 2;
  p.bias = short_numbers(random, {heads, queries, keys});
  p.relative_bias = short_numbers(random, {heads, 2 * 40 + 1});
  p.slopes = {0.0625, 0.125};
  return p;
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
  const Environment kernel(kKernel, run.kernel);
  const AllowTf32 allow(run.tf32);
  AttentionMask mask = AttentionMask::causal();
  if (p.softcap > 0) {
    mask = mask & AttentionMask::key_lengths(tensor<int32_t>({77, 131}, {.device = kCUDA}));
  }
  const std::vector<Tensor> found = run_attention(p, mask, run.dtype, kCUDA).all();
  const std::vector<const Array*> expected{&answer.out, &answer.lse,   &answer.dq,       &answer.dk,
                                           &answer.dv,  &answer.dbias, &answer.drelative};
  const std::vector<std::string> names{"out", "lse", "dq", "dk", "dv", "dbias", "drelative"};
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined() && expected[i]->values.empty()) continue;
    CAPTURE(run.kernel);
    CAPTURE(name(run.dtype));
    CAPTURE(run.tf32);
    check_rows(names[i], found[i], tensor(expected[i]->values, expected[i]->shape), run.tolerance);
  }
}

/// Every width of tiles; plain calls, such with dropout alone and such with all options, by all
/// kernels that any card has.
void check_widths(const char* limit) {
  const Environment limited(kLimit, limit);
  struct Features {
    int64_t depth, v_depth;
  };
  const std::vector<Features> all{{24, 24},   {64, 64},   {96, 96},  {128, 128},
                                  {160, 160}, {256, 256}, {72, 136}, {256, 40}};
  for (size_t i = 0; i < all.size(); i += short_tests() ? 3 : 1) {
    for (const Options options : {Options::none, Options::dropout, Options::all}) {
      const AttentionProblem p = make_problem(all[i].depth, all[i].v_depth, options);
      const AttentionAnswer answer = solve(p);
      CAPTURE(all[i].depth);
      CAPTURE(all[i].v_depth);
      CAPTURE(static_cast<int>(options));
      for (const Run& run : kRuns) check(p, answer, run);
    }
  }
}

}  // namespace

TEST_CASE("cuda mask kernels: those that SASH_ATTENTION_KERNEL names can run") { missing(kCUDA); }

TEST_CASE("cuda attention cards: all widths and options with 99 KiB of shared memory") {
  if (!missing(kCUDA)) check_widths("101376");
}

TEST_CASE("cuda attention cards: all widths and options with the shared memory of the card") {
  if (!missing(kCUDA)) check_widths(nullptr);
}

TEST_CASE("cuda attention cards: a shared memory limit below 99 KiB, or no number, is an error") {
  if (missing(kCUDA)) return;
  const Tensor x = zeros({1, 1, 4, 64}, {.dtype = DType::float64, .device = kCUDA});
  const Environment kernel(kKernel, nullptr);
  for (const std::string text : {"101375", "-1", "", "100k", "99999999999"}) {
    const Environment limited(kLimit, text.c_str());
    expect_error<ValueError>(
        "attention: expected SASH_SHARED_MEMORY_LIMIT of at least 101376, got " + text,
        [&] { attention(x, x, x); });
  }
}

TEST_CASE("cuda attention cards: asking for kernels that cannot run is an error") {
  if (missing(kCUDA)) return;
  const Tensor x = zeros({1, 1, 4, 8}, {.dtype = DType::bfloat16, .device = kCUDA});
  const Environment kernel(kKernel, "hopper"), limited(kLimit, "101376");
  expect_error<DeviceError>(
      "attention: expected a card of compute capability 9.0, a library with code for sm_90a and no "
      "lower SASH_SHARED_MEMORY_LIMIT, for SASH_ATTENTION_KERNEL=hopper, got cuda:0 without one of "
      "these",
      [&] { attention(x, x, x); });
}

TEST_CASE("cuda attention cards: an unknown name of backward passes is an error") {
  if (missing(kCUDA)) return;
  const Environment kernel(kKernel, "hopper");
  if (std::string reason; !has_cuda(reason)) {
    MESSAGE("skipped: ", reason);
    return;
  }
  const Environment passes("SASH_ATTENTION_PASSES", "one");
  const Tensor x =
      zeros({1, 1, 4, 64}, {.dtype = DType::bfloat16, .device = kCUDA, .requires_grad = true});
  const Tensor y = attention(x, x, x);
  expect_error<ValueError>("attention: expected SASH_ATTENTION_PASSES of staged, got one",
                           [&] { grad({y}, {x}, {y.detach()}); });
}
