// sash_long_training [STEPS [DEVICE]]: a training with dropout, windows, changing shapes, clipping,
// accumulated gradients and checkpoints, whose memory is flat. On a card its steps are captured.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/optim/adam.h>
#include <sash/optim/captured_step.h>
#include <sash/optim/checkpoint.h>
#include <sash/optim/clip.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "support/temporary_folder.h"

using namespace sash;

namespace {

constexpr int64_t kVocab = 19, kMiB = 1 << 20;

int64_t resident_bytes() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

nn::CausalLM make_model() {
  manual_seed(3);
  nn::CausalLMOptions options{.vocab = kVocab, .context = 32, .dim = 16};
  options.heads = 2;
  options.layers = 1;
  options.dropout = 0.1;
  options.attention = "causal_window:8";
  return nn::CausalLM(options);
}

// Two micro-batches of one of six shapes.
std::vector<Tensor> batch(int64_t step) {
  const int64_t rows = 2 + step % 3, tokens = step % 2 == 0 ? 32 : 17;
  std::vector<int64_t> x, y;
  for (int64_t i = 0; i < 2 * rows * tokens; ++i) {
    x.push_back((i * i + 7 * step) % kVocab);
    y.push_back((3 * x.back() + 1) % kVocab);
  }
  return {tensor(x, {2, rows, tokens}), tensor(y, {2, rows, tokens})};
}

int train(int64_t steps, const std::string& path) {
  nn::CausalLM model = make_model();
  model.to(default_device());
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
  optim::CapturedStep step([&](const std::vector<Tensor>& inputs) {
    optimizer.zero_grad();
    std::vector<Tensor> losses;
    for (int64_t part = 0; part < 2; ++part) {
      const Tensor logits = model(inputs[0].select(0, part));
      const Tensor loss =
          cross_entropy(logits.view({-1, kVocab}), inputs[1].select(0, part).reshape({-1})) / 2;
      loss.backward();
      losses.push_back(loss.detach());
    }
    optim::clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
    return std::vector<Tensor>{losses[0] + losses[1]};
  });
  const int64_t every = std::max<int64_t>(steps / 10, 1);
  int64_t live = 0, resident = 0;
  bool flat = true;
  std::printf("%10s %10s %14s %14s\n", "step", "loss", "live bytes", "resident MiB");
  for (int64_t number = 1; number <= steps; ++number) {
    const Tensor loss = step(batch(number));
    if (number % every != 0) continue;
    optim::save_checkpoint(path, model, optimizer, {.step = number});
    optim::load_checkpoint(path, model, optimizer);
    const int64_t live_now = memory_stats(default_device()).current, now = resident_bytes();
    std::printf("%10lld %10.4f %14lld %14.1f\n", static_cast<long long>(number),
                loss.item<double>(), static_cast<long long>(live_now),
                static_cast<double>(now) / kMiB);
    if (number == 3 * every) live = live_now, resident = now;
    if (number > 3 * every) flat &= live_now <= live && now <= resident + kMiB;
  }
  std::printf("memory is %s; %lld captures\n", flat ? "flat" : "not flat",
              static_cast<long long>(step.captures()));
  return flat ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  set_default_device(Device::parse(argc > 2 ? argv[2] : "cpu"));
  const TemporaryFolder folder;
  return train(argc > 1 ? std::atoll(argv[1]) : 2000, folder.file("checkpoint.safetensors"));
}
