// An encoder-decoder learns to sort: it reads numbers, and writes them in order, one by one. More
// than 99 % of new sequences come out sorted.
#include <algorithm>
#include <cstdio>

#include <sash/sash.h>

#include "support/flags.h"

using namespace sash;

namespace {

constexpr int64_t kNumbers = 32;      // distinct numbers
constexpr int64_t kStart = kNumbers;  // what the decoder reads first

const nn::TransformerConfig kConfig{.vocab = kStart + 1, .dim = 64, .heads = 4, .layers = 2};

// What the decoder reads while it is trained: kStart, then all but the last of the sorted numbers.
Tensor shifted(const Tensor& sorted) {
  return cat({full({sorted.size(0), 1}, kStart, {.dtype = DType::int64}), sorted.slice(1, 0, -1)},
             1);
}

// Likeliest number after likeliest number.
Tensor write(nn::Transformer& model, const Tensor& numbers) {
  const NoGradGuard no_grad;
  nn::TransformerCache cache = model.new_cache(numbers);
  std::vector<Tensor> written{full({numbers.size(0), 1}, kStart, {.dtype = DType::int64})};
  for (int64_t i = 0; i < numbers.size(1); ++i) {
    written.push_back(argmax(model(written.back(), cache)));
  }
  return cat(written, 1).slice(1, 1, {});
}

}  // namespace

int main(int argc, char** argv) {
  int steps = 500, length = 12, batch = 64;
  double least = 0;
  Flags flags("Trains an encoder-decoder to sort numbers.");
  flags.add("--steps", steps);
  flags.add_size("--length", length, "Numbers of a sequence");
  flags.add_size("--batch", batch, "Sequences of a step");
  flags.add("--least", least, "Percent of test sequences to sort, below which the run fails");
  return flags.run(argc, argv, [&] {
    nn::Transformer model(kConfig, kConfig);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-3, .max_grad_norm = 1});
    const optim::WarmupCosine schedule{.lr = 2e-3, .warmup = std::min(100, steps), .total = steps};
    for (int step = 1; step <= steps; ++step) {
      const Tensor numbers = randint(0, kNumbers, {batch, length});
      const Tensor sorted = sort(numbers).values;
      const Tensor loss = model.loss(numbers, shifted(sorted), sorted);
      optimizer.zero_grad();
      loss.backward();
      optimizer.set_lr(schedule(step));
      optimizer.step();
      if (step % 100 == 0) std::printf("step %4d  loss %.4f\n", step, loss.item<double>());
    }

    const Tensor test = randint(0, kNumbers, {1000, length});
    const Tensor right = all(eq(write(model, test), sort(test).values), {1});
    const double percent = 100 * right.to(default_dtype()).mean().item<double>();
    std::printf("%.1f %% of 1000 new sequences sorted\n", percent);
    return percent >= least ? 0 : 1;
  });
}
