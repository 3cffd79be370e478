// Memory that runs out while a graph is recorded, and memory that holds NaN when it is handed out.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/error.h>
#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

const TensorOptions kOnCard{.dtype = DType::float32, .device = kCUDA};
constexpr int64_t kMiB = 1 << 20, kTooMany = int64_t{1} << 46;

Tensor bytes(int64_t count) { return empty({count}, {.dtype = DType::uint8, .device = kCUDA}); }

/// Everything that is left on the card: large pieces, then small ones for the last of these.
std::vector<Tensor> fill_the_card(int64_t small) {
  std::vector<Tensor> pieces;
  CHECK_THROWS_AS(for (;;) pieces.push_back(bytes(2048 * kMiB)), OutOfMemory);
  REQUIRE(!pieces.empty());
  pieces.pop_back();
  empty_cache(kCUDA);
  CHECK_THROWS_AS(for (;;) pieces.push_back(bytes(small)), OutOfMemory);
  return pieces;
}

}  // namespace

TEST_CASE("cuda capture: running out of memory undoes a recording, and another one works") {
  if (missing(kCUDA)) return;
  const Tensor x = full({1000}, 2, kOnCard);
  Tensor w = full({1000}, 3, kOnCard).requires_grad_();
  (x * w).sum().backward();  // sets up what a recording cannot
  w.zero_grad();
  manual_seed(3);
  const std::vector<float> first = rand({8}, kOnCard).to_vector<float>();
  synchronize(kCUDA);
  const int64_t held = memory_stats(kCUDA).current;
  manual_seed(3);
  {
    Graph graph(kCUDA);
    const Tensor drawn = rand({8}, kOnCard);
    (x * w).sum().backward();
    CHECK_THROWS_AS(bytes(kTooMany), OutOfMemory);
  }
  CHECK(!w.grad().defined());
  CHECK(rand({8}, kOnCard).to_vector<float>() == first);
  CHECK(memory_stats(kCUDA).current == held);

  // The same recording may go on, too.
  Tensor y;
  Graph graph(kCUDA);
  y = x + x;
  CHECK_THROWS_AS(bytes(kTooMany), OutOfMemory);
  y = y + w.detach();
  graph.end();
  for (int i = 0; i < 2; ++i) graph.replay();
  CHECK(all_equal(y, 7));
}

TEST_CASE("cuda capture: a step that was running out of memory is right when there is some") {
  if (missing(kCUDA)) return;
  constexpr int64_t count = 64 * kMiB, piece = 64 * kMiB;  // an input has 256 MiB
  Tensor w = full({1}, 1, kOnCard).requires_grad_();
  optim::SGD optimizer(std::vector<Tensor>{w}, {.lr = 0.5});
  optim::CapturedStep step(
      [&](const std::vector<Tensor>& inputs) {
        optimizer.zero_grad();
        const Tensor loss = (inputs[0] * w + inputs[1]).mean();  // gradient 2
        loss.backward();
        optimizer.step();
        return loss;
      },
      {.device = kCUDA});
  const Tensor a = full({count}, 2, kOnCard), b = full({count}, 3, kOnCard);
  CHECK(step({a, b}).item<float>() == 5);  // w is 1, then 0
  for (const int free : {0, 5, 9}) {       // room for nothing, one input, both
    CAPTURE(free);
    synchronize(kCUDA);
    empty_cache(kCUDA);
    std::vector<Tensor> pieces = fill_the_card(piece);
    pieces.resize(pieces.size() - static_cast<size_t>(free));
    CHECK_THROWS_AS(step({a, b}), OutOfMemory);
    CHECK(w.detach().item<float>() == 0);  // no step was made
    pieces.clear();
  }
  empty_cache(kCUDA);
  float expected = 0;
  for (int i = 0; i < 4; ++i, --expected) {
    CHECK(step({a, b}).item<float>() == 2 * expected + 3);
    CHECK(w.detach().item<float>() == expected - 1);
  }
}

TEST_CASE("cuda nan memory: what is handed out holds NaN, where it is asked for") {
  if (missing(kCUDA)) return;
  if (!std::getenv("SASH_NAN_MEMORY")) {
    MESSAGE("skipped: SASH_NAN_MEMORY is not set");
    return;
  }
  const auto all_nan = [](const Tensor& x) {
    for (const double element : x.to_vector<double>()) {
      if (!std::isnan(element)) return false;
    }
    return true;
  };
  for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16}) {
    for (int round = 0; round < 2; ++round) {  // new memory, and the same again
      Tensor x = empty({1001}, {.dtype = dtype, .device = kCUDA});
      CHECK(all_nan(x));
      x.fill_(1);
      CHECK(all_equal(x, 1));
    }
  }
}
