// The smallest language model: learns the bytes of a text under a causal window, and goes on from a
// prompt. `train_transformer` has all that this leaves out.
#include <cstdio>

#include <sash/sash.h>

#include "support/flags.h"

using namespace sash;

int main(int argc, char** argv) {
  std::string path, prompt = "The ", attention = "causal_window:64";
  int steps = 500, context = 256;
  Flags flags("Trains a language model on the bytes of a text.");
  flags.add("text", path, "The file");
  flags.add("--steps", steps);
  flags.add_size("--context", context, "Bytes of a sample");
  flags.add("--attention", attention, "The mask");
  flags.add("--prompt", prompt, "Written on from");
  return flags.run(argc, argv, [&] {
    const nn::data::Tokens bytes = nn::data::Tokens::from_file(path, 8);
    nn::data::Loader loader(nn::data::TokenDataset(bytes, context, {.stride = 32}),
                            {.batch = 8, .shuffle = true});
    nn::CausalLM model({.vocab = 256, .context = context, .layers = 2, .attention = attention});
    optim::AdamW optimizer(model.parameters(), {.lr = 2e-3, .max_grad_norm = 1});
    for (int step = 1; step <= steps; ++step) {
      const nn::data::Batch batch = loader.next_or_restart();
      const Tensor loss = model.loss(batch[0], batch[1]);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      if (step % 50 == 0) std::printf("step %4d  loss %.3f\n", step, loss.item<double>());
    }
    const std::vector<int64_t> rest =
        model.generate({prompt.begin(), prompt.end()}, 200, {.temperature = 0.7});
    std::printf("%s%s\n", prompt.c_str(), std::string(rest.begin(), rest.end()).c_str());
  });
}
