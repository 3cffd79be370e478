// A few queries, as while a text is written, get what they get among many.
#include <doctest/doctest.h>

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
