// Training on a loader with workers, saving, generating and profiling at the same time, for the
// thread sanitizer above all.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sash/nn/data/loader.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/optim/profiler.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/io/safetensors.h>

#include "../support/small_models.h"
#include "../support/small_training.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr int kSteps = 30;

nn::Sequential make() {
  manual_seed(3);
  return nn::Sequential(nn::Linear(4, 8), nn::ReLU(), nn::Linear(8, 2));
}

StateDict copy_of(const nn::Module& model) {
  const NoGradGuard no_grad;
  StateDict copy;
  for (const auto& [name, x] : model.state_dict()) copy.push_back({name, x.clone()});
  return copy;
}

std::vector<double> numbers_of(const StateDict& state) {
  std::vector<double> all;
  for (const auto& [name, x] : state) {
    const std::vector<double> part = x.to_vector<double>();
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

bool by_name(const StateDict::value_type& a, const StateDict::value_type& b) {
  return a.first < b.first;
}

}  // namespace

TEST_CASE("at once: training with workers, saving, generating and profiling") {
  nn::Sequential model = make();
  std::mutex mutex;
  StateDict newest = copy_of(model);
  const auto train = [&](nn::Sequential& trained, bool shows) {
    optim::AdamW optimizer(trained.parameters(), {.lr = 1e-2});
    nn::data::Loader loader(samples(), {.batch = 4, .shuffle = true, .workers = 2, .seed = 9});
    for (int step = 0; step < kSteps; ++step) {
      const nn::data::Batch batch = loader.next_or_restart();
      optimizer.zero_grad();
      cross_entropy(trained(batch[0]), batch[1]).backward();
      optimizer.step();
      if (!shows) continue;
      StateDict copy = copy_of(trained);
      const std::lock_guard lock(mutex);
      newest = std::move(copy);
    }
  };
  manual_seed(5);
  nn::CausalLM writer = small_lm({.attention = "causal_window:4"});
  const auto write = [&] { return writer.generate({1, 2, 3}, 12, {.temperature = 0}); };
  nn::Sequential alone = make();
  train(alone, false);
  const std::vector<int64_t> text = write();

  const TemporaryFolder folder;
  std::atomic<bool> done = false, wrong = false;
  std::vector<std::thread> others;
  others.emplace_back([&] {
    const std::string path = folder.file("weights");
    while (!done) {
      StateDict state;
      {
        const std::lock_guard lock(mutex);
        state = newest;
      }
      save_safetensors(path, state);
      StateDict loaded = load_safetensors(path).tensors;
      std::sort(loaded.begin(), loaded.end(), by_name);
      std::sort(state.begin(), state.end(), by_name);
      if (numbers_of(loaded) != numbers_of(state)) wrong = true;
    }
  });
  others.emplace_back([&] {
    while (!done) {
      if (write() != text) wrong = true;
    }
  });
  others.emplace_back([&] {
    const Tensor x = ones({4, 4}, {.device = kCPU});
    while (!done) {
      optim::Profiler profiler;
      matmul(x, x);
      profiler.stop();
      if (profiler.rows().empty()) wrong = true;
    }
  });
  train(model, true);
  done = true;
  for (std::thread& other : others) other.join();
  CHECK(!wrong);
  CHECK(numbers_of(model.state_dict()) == numbers_of(alone.state_dict()));
}
