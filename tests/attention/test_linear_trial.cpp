// For a trial on a card: names each pass before it runs.
#include <doctest/doctest.h>

#include <cstdio>

#include <sash/sash.h>

#include "../support/attention/row_errors.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

void say(const char* what, int64_t length, int64_t depth) {
  std::fprintf(stderr, "%s, length %d, depth %d\n", what, static_cast<int>(length),
               static_cast<int>(depth));
}

void run(int64_t length, int64_t depth, int64_t heads) {
  manual_seed(1);
  const auto random = [&](int64_t of, bool leaf) {
    return randn({1, of, length, depth},
                 {.dtype = DType::bfloat16, .device = kCUDA, .requires_grad = leaf});
  };
  const Tensor q = random(heads, true), k = random(1, true), v = random(1, true);
  const Tensor g = random(heads, false);
  {
    const NoGradGuard no_grad;
    say("forward, nothing kept", length, depth);
    linear_attention(q, k, v, {.causal = true});
    synchronize(kCUDA);
  }
  say("forward", length, depth);
  const Tensor out = linear_attention(q, k, v, {.causal = true});
  synchronize(kCUDA);
  const auto wide = [](const Tensor& x) { return x.detach().to(DType::float64).requires_grad_(); };
  const std::vector<Tensor> exact{wide(q), wide(k), wide(v)};
  const Tensor expected =
      composite::linear_attention(exact[0], exact[1], exact[2], {.causal = true});
  check_rows("out", out, expected, 8e-3);
  say("backward", length, depth);
  const auto found = grad({out}, {q, k, v}, {g});
  synchronize(kCUDA);
  const auto wanted = grad({expected}, exact, {g.to(DType::float64)});
  const char* names[] = {"dq", "dk", "dv"};
  for (size_t i = 0; i < 3; ++i) check_rows(names[i], found[i], wanted[i], 1.6e-2);
}

}  // namespace

TEST_CASE("linear trial: passes, named before they run") {
  if (missing(kCUDA)) return;
  for (const int64_t depth : {64, 128}) {
    for (const int64_t length : {64, 128, 256, 320, 1500}) run(length, depth, 1);
    run(700, depth, 3);
  }
}
