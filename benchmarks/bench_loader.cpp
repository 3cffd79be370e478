// Tokens per second of a training step on batches that lie ready, and on those of a
// nn::data::Loader; and the time in which a loader makes a batch.

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <sash/nn/data/loader.h>
#include <sash/nn/data/token_dataset.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/optim/adam.h>
#include <sash/tensor/random.h>

#include "bench.h"

using namespace sash;

int main(int argc, char** argv) {
  Flags flags("Training steps with and without a nn::data::Loader", "cpu");
  int64_t batch = 8, context = 128, dim = 128, layers = 2, steps = 10, rounds = 9;
  flags.add("--batch", batch);
  flags.add("--context", context);
  flags.add("--dim", dim);
  flags.add("--layers", layers);
  flags.add("--steps", steps, "Steps of a measurement");
  flags.add("--rounds", rounds, "Measurements of each kind, in turns");
  return flags.run(argc, argv, [&] {
    const Device device = default_device();
    constexpr int64_t kWords = 256;
    manual_seed(1);
    nn::CausalLM model(
        {.vocab = kWords, .context = context, .dim = dim, .heads = 4, .layers = layers});
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-3, .max_grad_norm = 1.0});
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 400000; ++i) ids.push_back(i * i % 251);
    const auto loader = [&](int64_t workers) {
      return nn::data::Loader(nn::data::TokenDataset(nn::data::Tokens(ids), context),
                              {.batch = batch, .shuffle = true, .workers = workers});
    };
    nn::data::Loader none = loader(0), two = loader(2), first = loader(0);
    std::vector<nn::data::Batch> ready;
    for (int64_t i = 0; i < 16; ++i) ready.push_back(first.next_or_restart());

    struct Kind {
      const char* name;
      std::function<nn::data::Batch(size_t)> batch;
      std::vector<double> rates{};
    };
    std::vector<Kind> kinds{{"ready", [&](size_t i) { return ready[i % ready.size()]; }},
                            {"loader", [&](size_t) { return none.next_or_restart(); }},
                            {"loader, 2 workers", [&](size_t) { return two.next_or_restart(); }}};
    for (int64_t round = -1; round < rounds; ++round) {  // the first is a warm-up
      for (Kind& kind : kinds) {
        synchronize(device);
        const auto start = std::chrono::steady_clock::now();
        for (int64_t i = 0; i < steps; ++i) {
          const nn::data::Batch one = kind.batch(static_cast<size_t>(i));
          optimizer.zero_grad();
          model.loss(one[0], one[1]).backward();
          optimizer.step();
        }
        synchronize(device);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        const auto tokens = static_cast<double>(steps * batch * context);
        if (round >= 0) kind.rates.push_back(tokens / seconds.count());
      }
    }
    const double ready_rate = bench::median(kinds[0].rates);
    for (const Kind& kind : kinds) {
      const double rate = bench::median(kind.rates);
      std::printf("%-18s %9.0f tokens/s  %+.1f %%\n", kind.name, rate,
                  100 * (rate / ready_rate - 1));
    }
    constexpr int64_t kBatches = 2000;
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < kBatches; ++i) none.next_or_restart();
    const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - start;
    std::printf("%-18s %9.1f us\n", "a batch", us.count() / kBatches);
  });
}
