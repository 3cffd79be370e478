// Random mask expressions, over any lengths and with any parameters, against plain loops over
// pairs. SASH_RANDOM_COUNT sets how many, SASH_RANDOM_SEED the seed.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/attention/attention_run.h"
#include "../support/attention/mask_kinds.h"
#include "../support/devices.h"
#include "../support/scopes.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr uint64_t kFew = 400;

uint64_t rounds() { return random_count(kFew, 50 * kFew, 10); }

MaskShape random_shape(RandomNumbers& random, int64_t longest) {
  const std::vector<int64_t> edges{0, 1, 2, 3, 63, 64, 65, 127, 128, 129};
  const auto length = [&] {
    const int64_t edge = edges[random.below(edges.size())];
    const bool any = edge > longest || random.below(2) == 0;
    return any ? static_cast<int64_t>(random.below(static_cast<uint64_t>(longest + 1))) : edge;
  };
  const auto few = [&] { return random.below(8) == 0 ? 0 : 1 + random.below(3); };
  MaskShape shape;
  shape.batch = static_cast<int64_t>(few());
  shape.heads = static_cast<int64_t>(few());
  shape.queries = length();
  shape.keys = random.below(3) == 0 ? shape.queries : length();
  return shape;
}

NamedMask random_mask(RandomNumbers& random, const MaskShape& shape, Device device, int depth) {
  if (depth > 0 && random.below(4) > 0) {
    const NamedMask a = random_mask(random, shape, device, depth - 1);
    const NamedMask b = random_mask(random, shape, device, depth - 1);
    return random.below(2) == 0 ? both(a, b) : either(a, b);
  }
  const std::vector<MaskKind>& kinds = mask_kinds();
  for (;;) {
    const MaskKind& kind = kinds[random.below(kinds.size())];
    if (!kind.square || shape.queries == shape.keys) return kind.make(random, shape, device);
  }
}

MaskStatistics counted(const std::vector<double>& seen, const MaskShape& s) {
  constexpr int64_t kBlock = 64;
  MaskStatistics all;
  for (int64_t head = 0; head < s.batch * s.heads; ++head) {
    for (int64_t top = 0; top < s.queries; top += kBlock) {
      for (int64_t left = 0; left < s.keys; left += kBlock) {
        int64_t visible = 0, pairs = 0;
        for (int64_t i = top; i < std::min(top + kBlock, s.queries); ++i) {
          for (int64_t j = left; j < std::min(left + kBlock, s.keys); ++j, ++pairs) {
            visible += seen[static_cast<size_t>((head * s.queries + i) * s.keys + j)] != 0;
          }
        }
        all.visible_pairs += visible;
        all.listed_blocks += visible > 0;
        all.full_blocks += visible == pairs;
        ++all.all_blocks;
      }
    }
  }
  return all;
}

Array random_array(RandomNumbers& random, const Shape& shape) {
  return generate(shape, [&](const Index&) { return 2 * random.uniform() - 1; });
}

bool near(const Tensor& found, const std::vector<double>& expected) {
  const std::vector<double> x = found.to_vector<double>();
  REQUIRE(x.size() == expected.size());
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] != expected[i] && !(std::abs(x[i] - expected[i]) < 1e-11)) return false;
  }
  return true;
}

void check_attention(RandomNumbers& random, const NamedMask& mask, const MaskShape& s,
                     Device device) {
  AttentionProblem problem;
  problem.q = random_array(random, {s.batch, s.heads, s.queries, 3});
  problem.k = random_array(random, {s.batch, s.heads, s.keys, 3});
  problem.v = random_array(random, {s.batch, s.heads, s.keys, 2});
  problem.g = random_array(random, {s.batch, s.heads, s.queries, 2});
  problem.g_lse = random_array(random, {s.batch, s.heads, s.queries});
  problem.relative_bias = random_array(random, {s.heads, 5});
  problem.sees = mask.sees;
  const AttentionAnswer answer = solve(problem);
  const AttentionResults found = run_attention(problem, mask.mask, DType::float64, device);
  CHECK(near(found.out, answer.out.values));
  CHECK(near(found.lse, answer.lse.values));
  CHECK(near(found.dq, answer.dq.values));
  CHECK(near(found.dk, answer.dk.values));
  CHECK(near(found.dv, answer.dv.values));
  CHECK(near(found.drelative, answer.drelative.values));
}

// Fused kernels against the same function from plain ops, results and gradients.
void check_composite(RandomNumbers& random, const NamedMask& mask, const MaskShape& s) {
  const auto leaf = [&](const Shape& shape) {
    return tensor(random_array(random, shape).values, shape,
                  {.dtype = DType::float64, .device = kCPU, .requires_grad = true});
  };
  const std::vector<Tensor> inputs{leaf({s.batch, s.heads, s.queries, 3}),
                                   leaf({s.batch, s.heads, s.keys, 3}),
                                   leaf({s.batch, s.heads, s.keys, 2})};
  const Tensor g = leaf({s.batch, s.heads, s.queries, 2}).detach();
  const AttentionOptions options{.mask = mask.mask, .softcap = random.below(2) == 0 ? 0.0 : 2.0};
  const Tensor fused = attention(inputs[0], inputs[1], inputs[2], options);
  const Tensor plain = composite::attention(inputs[0], inputs[1], inputs[2], options, {}).out;
  const auto same = [](const Tensor& a, const Tensor& b) { return near(a, b.to_vector<double>()); };
  CHECK(same(fused, plain));
  const std::vector<Tensor> first = grad({fused}, inputs, {g}), second = grad({plain}, inputs, {g});
  for (size_t i = 0; i < inputs.size(); ++i) CHECK(same(first[i], second[i]));
}

void check_expressions(Device device) {
  RandomNumbers random(random_seed(41));
  draw_extremes(true);
  for (uint64_t round = 0; round < rounds(); ++round) {
    const MaskShape s = random_shape(random, 30);
    const NamedMask mask = random_mask(random, s, device, 2);
    CAPTURE(round);
    CAPTURE(mask.mask.to_string());
    CAPTURE(to_string(Shape{s.batch, s.heads, s.queries, s.keys}));
    check_attention(random, mask, s, device);
    if (device.is_cpu()) check_composite(random, mask, s);
  }
  draw_extremes(false);
}

/// Kernels of a device and the size of their rounding errors. On the CPU there is one family.
struct Family {
  std::string name;
  const char* kernel;
  const char* passes;
  DType dtype;
  double rounding;
  double worst = 0;  ///< error over what is allowed
};

std::vector<Family> families(Device device) {
  constexpr double kTf32 = 0x1p-10, kFloat16 = 0x1p-10, kBFloat16 = 0x1p-7, kFloat32 = 0x1p-18;
  if (device.is_cpu()) {
    return {{"cpu float32", nullptr, nullptr, DType::float32, kFloat32},
            {"cpu float16", nullptr, nullptr, DType::float16, kFloat16},
            {"cpu bfloat16", nullptr, nullptr, DType::bfloat16, kBFloat16}};
  }
  std::vector<Family> all{{"simple float32", "simple", nullptr, DType::float32, kFloat32},
                          {"mma tf32", "mma", nullptr, DType::float32, kTf32},
                          {"mma float16", "mma", nullptr, DType::float16, kFloat16},
                          {"mma bfloat16", "mma", nullptr, DType::bfloat16, kBFloat16}};
  const Environment kernel("SASH_ATTENTION_KERNEL", "hopper");
  if (std::string reason; has_cuda(reason)) {
    all.push_back({"hopper float16", "hopper", nullptr, DType::float16, kFloat16});
    all.push_back({"hopper bfloat16", "hopper", nullptr, DType::bfloat16, kBFloat16});
    all.push_back({"hopper staged", "hopper", "staged", DType::bfloat16, kBFloat16});
  } else {
    MESSAGE("without the kernels for sm_90a: ", reason);
  }
  return all;
}

/// The largest root mean square of a row's error over `scale`, or over the root mean square of all
/// elements if it is larger. Infinity if an infinity or a NaN is not where it should be.
double row_error(const Tensor& found, const Tensor& expected, size_t width, double scale) {
  const std::vector<double> x = found.to_vector<double>(), y = expected.to_vector<double>();
  REQUIRE(x.size() == y.size());
  double worst = 0, squares = 0;
  for (size_t row = 0; row < y.size(); row += width) {
    double error = 0;
    for (size_t i = row; i < row + width; ++i) {
      if (x[i] == y[i]) continue;
      error += (x[i] - y[i]) * (x[i] - y[i]);
      squares += y[i] * y[i];
    }
    if (!std::isfinite(error)) return INFINITY;
    worst = std::max(worst, std::sqrt(error / static_cast<double>(width)));
  }
  return worst / std::max(scale, std::sqrt(squares / static_cast<double>(y.size() + 1)));
}

/// A call of attention in float64, which other tests compare with loops, and in each family.
void check_families(RandomNumbers& random, std::vector<Family>& all, Device device) {
  const std::vector<int64_t> widths{64, 64, 128, 128, 24, 40};
  const int64_t width = widths[random.below(widths.size())];
  const int64_t v_width = random.below(4) > 0 ? width : widths[random.below(widths.size())];
  const MaskShape s = random_shape(random, 200);
  const NamedMask mask = random_mask(random, s, device, 2);
  const int64_t kv_heads = random.below(4) > 0 ? s.heads : std::min<int64_t>(s.heads, 1);
  const auto drawn = [&](const Shape& shape) {  // numbers that all dtypes hold
    return generate(shape,
                    [&](const Index&) { return static_cast<double>(random.below(129)) / 64 - 1; });
  };
  AttentionProblem problem;
  problem.q = drawn({s.batch, s.heads, s.queries, width});
  problem.k = drawn({s.batch, kv_heads, s.keys, width});
  problem.v = drawn({s.batch, kv_heads, s.keys, v_width});
  problem.g = drawn({s.batch, s.heads, s.queries, v_width});
  problem.g_lse = drawn({s.batch, s.heads, s.queries});
  problem.scale = 1 / std::sqrt(static_cast<double>(width));
  problem.softcap = random.below(4) > 0 ? 0 : 2;
  CAPTURE(mask.mask.to_string());
  CAPTURE(to_string(Shape{s.batch, s.heads, kv_heads, s.queries, s.keys, width, v_width}));
  const AttentionResults expected = run_attention(problem, mask.mask, DType::float64, device);
  // What rounding leaves where terms cancel: of a row of dq one term, of dk and dv one of each
  // query.
  const double dp = std::sqrt(static_cast<double>(v_width)) / 3, queries = std::sqrt(s.queries + 1);
  const double ds = problem.scale * dp * queries;
  for (Family& family : all) {
    const Environment kernel("SASH_ATTENTION_KERNEL", family.kernel);
    const Environment passes("SASH_ATTENTION_PASSES", family.passes);
    const AllowTf32 allow(family.name == "mma tf32");
    const AttentionResults found = run_attention(problem, mask.mask, family.dtype, device);
    const auto check = [&](const char* what, const Tensor& x, const Tensor& y, int64_t row,
                           double scale) {
      const double error = row_error(x, y, static_cast<size_t>(row), scale) / family.rounding;
      family.worst = std::max(family.worst, error);
      CHECK_MESSAGE(error < 1, family.name, ", ", what, ": ", error, " of what is allowed");
    };
    check("out", found.out, expected.out, v_width, 0.5);
    check("lse", found.lse, expected.lse, 1, 1);
    check("dq", found.dq, expected.dq, width, ds);
    check("dk", found.dk, expected.dk, width, ds);
    check("dv", found.dv, expected.dv, v_width, queries);
  }
}

void compare_families(Device device) {
  RandomNumbers random(random_seed(42));
  std::vector<Family> all = families(device);
  draw_extremes(true);
  for (uint64_t round = 0; round < random_count(40, 4000, 8); ++round) {
    CAPTURE(round);
    check_families(random, all, device);
  }
  draw_extremes(false);
  for (const Family& family : all) {
    MESSAGE(family.name, ": at most ", family.worst, " of the error that is allowed");
  }
}

}  // namespace

TEST_CASE_TEMPLATE("mask families: random masks in all dtypes agree with float64", On, Cpu, Cuda) {
  if (!missing(On::device)) compare_families(On::device);
}

TEST_CASE("random masks: to_dense, statistics and picture agree with the definitions") {
  RandomNumbers random(random_seed(40));
  draw_extremes(true);
  for (uint64_t round = 0; round < rounds(); ++round) {
    const MaskShape s = random_shape(random, 150);
    const NamedMask mask = random_mask(random, s, kCPU, 3);
    const std::vector<double> seen = defined(mask, s);
    CAPTURE(round);
    CAPTURE(mask.mask.to_string());
    CAPTURE(to_string(Shape{s.batch, s.heads, s.queries, s.keys}));
    const Tensor dense = mask.mask.to_dense(s).expand({s.batch, s.heads, s.queries, s.keys});
    CHECK(dense.to_vector<double>() == seen);
    const MaskStatistics found = mask_statistics(mask.mask, s), expected = counted(seen, s);
    CHECK(found.visible_pairs == expected.visible_pairs);
    CHECK(found.listed_blocks == expected.listed_blocks);
    CHECK(found.full_blocks == expected.full_blocks);
    CHECK(found.all_blocks == expected.all_blocks);
    if (s.batch * s.heads * s.queries * s.keys == 0) continue;
    std::string picture;
    for (int64_t i = 0; i < s.queries; ++i) {
      for (int64_t j = 0; j < s.keys; ++j) {
        picture += seen[static_cast<size_t>(i * s.keys + j)] != 0 ? '#' : ' ';
      }
      picture += '\n';
    }
    CHECK(mask_picture(mask.mask, s.queries, s.keys, 200) == picture);
  }
  draw_extremes(false);
}

TEST_CASE_TEMPLATE("masks: attention with random masks agrees with plain loops", On, Cpu, Cuda) {
  if (!missing(On::device)) check_expressions(On::device);
}
