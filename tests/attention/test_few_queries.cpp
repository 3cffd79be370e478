// A few queries, as while a text is written, get what they get among many.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

TEST_CASE_TEMPLATE("attention: few queries are rows of many", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  constexpr int64_t queries = 70;
  const std::vector<AttentionMask> masks{
      {},
      AttentionMask::causal(),
      AttentionMask::causal_window(90) | AttentionMask::sinks(3),
      AttentionMask::key_lengths(tensor<int32_t>({131, 64}, {.device = On::device}))};
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    for (const int64_t depth : {24, 64, 100}) {
      for (const int64_t keys : {131, 301}) {
        manual_seed(static_cast<uint64_t>(depth + keys));
        const TensorOptions options{.dtype = dtype, .device = On::device};
        const Tensor q = randn({2, 4, queries, depth}, options),
                     k = randn({2, 2, keys, depth}, options),
                     v = randn({2, 2, keys, depth - 5}, options);
        for (const AttentionMask& mask : masks) {
          AttentionOptions call{.mask = mask};
          if (depth == 64) call.softcap = 2;
          const AttentionWithLse all = attention_with_lse(q, k, v, call);
          for (const int64_t count : {1, 3, 8, 9}) {
            const std::string where = std::string(name(dtype)) + " " + std::to_string(count) +
                                      " x " + std::to_string(keys) + " x " + std::to_string(depth) +
                                      " " + mask.to_string();
            CAPTURE(where);
            const int64_t first = queries - count;
            const AttentionWithLse few = attention_with_lse(q.narrow(2, first, count), k, v, call);
            const double tolerance = is_half(dtype) ? 2e-2 : dtype == DType::float32 ? 2e-6 : 1e-14;
            const auto error = [](const Tensor& x, const Tensor& y) {
              return (x.to(DType::float64) - y.to(DType::float64)).abs().max().item<double>();
            };
            CHECK(error(few.out, all.out.narrow(2, first, count)) < tolerance);
            CHECK(error(few.lse, all.lse.narrow(2, first, count)) < 4 * tolerance);
          }
        }
      }
    }
  }
}

// docs/attention.md: on the CPU, keys outside those that any of 8 queries sees are not read.
TEST_CASE("attention: few queries do not read keys behind the ends") {
  manual_seed(2);
  const AttentionMask ends = AttentionMask::key_lengths(tensor<int32_t>({70}));
  const AttentionMask window =
      AttentionMask::row_ranges(tensor<int32_t>({75, 75, 76}), tensor<int32_t>({120, 121, 122}));
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const TensorOptions options{.dtype = dtype};
    const Tensor q = randn({1, 2, 3, 16}, options), k = randn({1, 2, 130, 16}, options),
                 v = randn({1, 2, 130, 16}, options);
    const auto same = [&](const AttentionMask& mask, int64_t first, int64_t count) {
      const Tensor expected = attention(q, k, v, {.mask = mask});
      const Tensor bad_k = k.clone(), bad_v = v.clone();
      bad_k.narrow(2, first, count).fill_(std::nan(""));
      bad_v.narrow(2, first, count).fill_(std::nan(""));
      const Tensor got = attention(q, bad_k, bad_v, {.mask = mask});
      CHECK((got - expected).abs().max().item<double>() == 0);
    };
    same(ends, 70, 60);
    same(window, 122, 8);
    same(window, 64, 11);
  }
}
