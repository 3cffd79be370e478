#include <doctest/doctest.h>
#include <sash/core/backend/backend.h>
#include <sash/nn/data/loader.h>
#include <sash/nn/layers/activation.h>
#include <sash/nn/layers/dropout.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/sequential.h>
#include <sash/ops/loss/mse_loss.h>
#include <sash/optim/adam.h>
#include <sash/optim/checkpoint.h>
#include <sash/optim/clip.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>
#include <sash/tensor/random.h>

#include "../support/temporary_folder.h"

using namespace sash;

namespace {

nn::Sequential make_net() {
  return nn::Sequential(nn::Linear(4, 16), nn::Tanh(), nn::Dropout(0.2), nn::Linear(16, 1));
}

double train_step(nn::Module& net, optim::Optimizer& optimizer) {
  const Tensor x = randn({8, 4});
  optimizer.zero_grad();
  const Tensor loss = mse_loss(net(x), x.sum({1}, true));
  loss.backward();
  optim::clip_grad_norm_(net.parameters(), 1);
  optimizer.step();
  return loss.item<double>();
}

std::vector<float> all_elements(const nn::Module& net) {
  std::vector<float> all;
  for (const Tensor& p : net.parameters()) {
    const std::vector<float> part = p.to_vector<float>();
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

struct Wrapped : nn::Module {
  nn::Linear& model = register_module<nn::Linear>("model", 4, 3);
  nn::Linear& head = register_module<nn::Linear>("head", 3, 1);
};

}  // namespace

TEST_CASE("training lowers the loss") {
  manual_seed(1);
  nn::Sequential net = make_net();
  optim::AdamW adamw(net.parameters(), {.lr = 0.01});
  double early = 0, late = 0;
  for (int step = 0; step < 20; ++step) early += train_step(net, adamw);
  for (int step = 0; step < 300; ++step) train_step(net, adamw);
  for (int step = 0; step < 20; ++step) late += train_step(net, adamw);
  CHECK(late < 0.5 * early);
}

TEST_CASE("a run resumed from a checkpoint has equal bits") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.safetensors");
  manual_seed(2);
  nn::Sequential net = make_net();
  optim::AdamW adamw(net.parameters());
  for (int step = 0; step < 5; ++step) {
    adamw.set_lr(1e-3 * (step + 1));
    train_step(net, adamw);
  }
  optim::save_checkpoint(path, net, adamw, {.step = 5, .extra = {{"data.position", "17"}}});
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) losses.push_back(train_step(net, adamw));

  manual_seed(99);
  nn::Sequential resumed = make_net();
  optim::AdamW fresh(resumed.parameters());
  train_step(resumed, fresh);
  const optim::CheckpointInfo info = optim::load_checkpoint(path, resumed, fresh);
  CHECK(info.step == 5);
  CHECK(info.extra == std::map<std::string, std::string>{{"data.position", "17"}});
  CHECK(fresh.lr() == adamw.lr());
  for (int step = 0; step < 5; ++step) CHECK(train_step(resumed, fresh) == losses[size_t(step)]);
  CHECK(all_elements(resumed) == all_elements(net));

  nn::Sequential alone = make_net();
  optim::load_model(path, alone);
  save_safetensors(folder.file("model.safetensors"), alone.state_dict());
  nn::Sequential again = make_net();
  optim::load_model(folder.file("model.safetensors"), again);
  CHECK(all_elements(again) == all_elements(alone));
}

TEST_CASE("load_model loads a model that has a child named model") {
  const TemporaryFolder folder;
  const std::string path = folder.file("file");
  Wrapped saved;
  const auto check_load = [&] {
    Wrapped loaded;
    CHECK(all_elements(loaded) != all_elements(saved));
    optim::load_model(path, loaded);
    CHECK(all_elements(loaded) == all_elements(saved));
  };
  save_safetensors(path, saved.state_dict());
  check_load();
  optim::save_checkpoint(path, saved, optim::SGD(saved.parameters()));
  check_load();
  StateDict prefixed;
  for (const auto& [key, tensor] : saved.state_dict())
    prefixed.emplace_back("model." + key, tensor);
  save_safetensors(path, prefixed);
  check_load();
}

TEST_CASE("checkpoint_info reads the metadata alone") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.safetensors");
  nn::Sequential net(nn::Linear(512, 512));
  optim::AdamW adamw(net.parameters());
  optim::save_checkpoint(path, net, adamw, {.step = 7, .extra = {{"corpus", "a.txt"}}});
  reset_peak_memory(kCPU);
  const int64_t before = memory_stats(kCPU).current;
  const optim::CheckpointInfo info = optim::checkpoint_info(path);
  CHECK(memory_stats(kCPU).peak == before);
  CHECK(info.step == 7);
  CHECK(info.extra == std::map<std::string, std::string>{{"corpus", "a.txt"}});
  CHECK(load_safetensors_header(path).metadata == load_safetensors(path).metadata);
  CHECK_THROWS_AS(optim::checkpoint_info(folder.file("absent")), IoError);
}

TEST_CASE("a checkpoint has the generators of all devices; one of before has one state for all") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.safetensors");
  const Device first{DeviceType::cuda, 0}, last{DeviceType::cuda, 63};
  nn::Sequential net = make_net();
  optim::AdamW adamw(net.parameters());
  manual_seed(3);
  next_philox(kCPU, 4);
  set_random_state({5, 6}, last);  // a card that is not here
  const RandomStates saved = random_states();
  optim::save_checkpoint(path, net, adamw);
  manual_seed(9);
  next_philox(kCPU, 40);
  set_random_state({1, 2}, first);
  optim::load_checkpoint(path, net, adamw);
  CHECK(random_states() == saved);
  CHECK(random_state(kCPU) == RandomState{3, 1});
  CHECK(random_state(first) == RandomState{3, 0});
  CHECK(random_state(last) == RandomState{5, 6});

  SafetensorsFile file = load_safetensors(path, kCPU);
  const auto rewrite = [&](const std::map<std::string, std::string>& states) {
    std::erase_if(file.metadata,
                  [](const auto& entry) { return entry.first.starts_with("random."); });
    file.metadata.insert(states.begin(), states.end());
    save_safetensors(path, file.tensors, file.metadata);
  };
  rewrite({{"random.seed", "11"}, {"random.offset", "12"}});
  optim::load_checkpoint(path, net, adamw);
  for (const Device device : {kCPU, first, last})
    CHECK(random_state(device) == RandomState{11, 12});

  const RandomStates before = random_states();
  rewrite({{"random.seed", "1"}, {"random.offset", "2"}, {"random.seed.cuda:1", "3"}});
  CHECK_THROWS_WITH_AS(
      optim::load_checkpoint(path, net, adamw),
      ("load_checkpoint: expected metadata 'random.offset.cuda:1', got none; in '" + path + "'")
          .c_str(),
      FormatError);
  CHECK(random_states() == before);
}

TEST_CASE("loading a checkpoint that does not fit changes nothing") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.safetensors");
  manual_seed(3);
  nn::Sequential net = make_net();
  optim::AdamW adamw(net.parameters());
  optim::save_checkpoint(path, net, adamw);
  const std::vector<float> before = all_elements(net);

  manual_seed(4);
  nn::Sequential other = make_net();
  const std::vector<float> untouched = all_elements(other);
  const RandomState random = random_state();
  optim::SGD sgd(other.parameters());
  CHECK_THROWS_WITH_AS(
      optim::load_checkpoint(path, other, sgd),
      ("load_checkpoint: expected AdamW, as when it was saved, got SGD; in '" + path + "'").c_str(),
      ValueError);
  CHECK(all_elements(other) == untouched);
  CHECK(random_state() == random);

  nn::Sequential larger(nn::Linear(4, 17), nn::Tanh());
  optim::AdamW larger_adamw(larger.parameters());
  CHECK_THROWS_AS(optim::load_checkpoint(path, larger, larger_adamw), ValueError);

  save_safetensors(folder.file("plain.safetensors"), net.state_dict());
  CHECK_THROWS_WITH_AS(
      optim::load_checkpoint(folder.file("plain.safetensors"), net, adamw),
      doctest::Contains("load_checkpoint: expected metadata 'step', got none; in '/"), FormatError);
  CHECK_THROWS_AS(optim::load_checkpoint(folder.file("absent"), net, adamw), IoError);
  CHECK(all_elements(net) == before);
}

TEST_CASE("a checkpoint is one of its kind of optimizer and of its order of samples") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.safetensors"), old = folder.file("old.safetensors");
  nn::Sequential net = make_net();
  optim::AdamW adamw(net.parameters());
  const auto loader = [](bool shuffle) {
    return nn::data::Loader(nn::data::TensorDataset({zeros({6, 4})}),
                            {.batch = 2, .shuffle = shuffle});
  };
  nn::data::Loader shuffled = loader(true), ordered = loader(false);
  optim::save_checkpoint(path, net, adamw, {.step = 1}, nullptr, &shuffled);
  optim::Adam adam(net.parameters());
  CHECK_THROWS_WITH_AS(
      optim::load_checkpoint(path, net, adam, nullptr, &shuffled),
      doctest::Contains("load_checkpoint: expected AdamW, as when it was saved, got Adam; in '"),
      ValueError);
  CHECK_THROWS_WITH_AS(optim::load_checkpoint(path, net, adamw, nullptr, &ordered),
                       doctest::Contains("Loader::load_state: expected samples shuffled, as when "
                                         "it was saved, got samples in order; in '"),
                       ValueError);
  // Files of earlier versions say neither.
  SafetensorsFile file = load_safetensors(path);
  CHECK(file.metadata.erase("optimizer") == 1);
  std::string& place = file.metadata.at("loader");
  REQUIRE(place.find(", shuffled") != std::string::npos);
  place.erase(place.find(", shuffled"));
  save_safetensors(old, file.tensors, file.metadata);
  CHECK(optim::load_checkpoint(old, net, adam, nullptr, &ordered).step == 1);
}

TEST_CASE("steady training allocates nothing from the system") {
  manual_seed(5);
  nn::Sequential net = make_net();
  optim::AdamW adamw(net.parameters());
  for (int step = 0; step < 3; ++step) train_step(net, adamw);
  const MemoryStats before = memory_stats(kCPU);
  for (int step = 0; step < 100; ++step) train_step(net, adamw);
  const MemoryStats after = memory_stats(kCPU);
  CHECK(after.current == before.current);
  // Sanitizer builds run without the allocator's cache.
  if (before.cached > 0) CHECK(after.system_allocations == before.system_allocations);
}
