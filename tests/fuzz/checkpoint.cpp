// Checkpoints of a small model. A file that is refused leaves model, optimizer and generators as
// they were.
#include <unistd.h>

#include <fstream>
#include <iterator>

#include <sash/nn/layers/linear.h>
#include <sash/optim/adam.h>
#include <sash/optim/checkpoint.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>
#include <sash/tensor/random.h>

#include "support/fuzz.h"

namespace sash::fuzz {
namespace {

struct Training {
  Training() {
    const Tensor loss = model(ones({1, 2})).sum();
    loss.backward();
    optimizer.step();
  }

  std::vector<double> numbers() const {
    std::vector<double> all;
    for (const StateDict& state : {model.state_dict(), optimizer.state_dict()}) {
      for (const auto& [key, tensor] : state) {
        const std::vector<double> elements = tensor.to_vector<double>();
        all.insert(all.end(), elements.begin(), elements.end());
      }
    }
    const RandomStates random = random_states();
    all.push_back(static_cast<double>(random.others.seed));
    all.push_back(static_cast<double>(random.others.offset));
    return all;
  }

  nn::Linear model{2, 2};
  optim::AdamW optimizer{model.parameters()};
};

Training& training() {
  static Training all;
  return all;
}

std::string saved() {
  const std::string path = "/tmp/sash_fuzz_checkpoint." + std::to_string(::getpid());
  optim::save_checkpoint(path, training().model, training().optimizer,
                         {.step = 7, .extra = {{"config", "small"}}});
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  ::unlink(path.c_str());
  return text;
}

}  // namespace

const std::vector<std::string> words{"model.weight",
                                     "model.bias",
                                     "optimizer.",
                                     "scaler.scale",
                                     "random.seed",
                                     "random.offset",
                                     "random.seed.cuda:1",
                                     "step",
                                     "loader",
                                     "extra.",
                                     "\"-1\"",
                                     "\"9223372036854775808\"",
                                     "\"1e3\"",
                                     "\"\"",
                                     "[2,2]",
                                     "[4]",
                                     "[0,16]",
                                     "F32",
                                     "F64",
                                     "I64",
                                     "\"optimizer\":\"AdamW\"",
                                     "\"optimizer\":\"SGD\"",
                                     "{",
                                     "}",
                                     ",",
                                     ":"};

std::vector<std::string> seeds() {
  const std::string file = saved();
  uint64_t length = 0;
  file.copy(reinterpret_cast<char*>(&length), sizeof length);
  return {file + '\0', file.substr(8, length) + '\1'};
}

void run(Bytes& bytes) {
  // A header whose length is computed, or a whole file.
  static const size_t data = [] {
    const std::string file = saved();
    uint64_t length = 0;
    file.copy(reinterpret_cast<char*>(&length), sizeof length);
    return file.size() - 8 - length;
  }();
  const bool header = bytes.ConsumeBool();
  std::string text = bytes.ConsumeRemainingBytesAsString();
  if (header) text = raw(uint64_t{text.size()}) + text + std::string(data, '\0');
  const std::string path = path_of(text);
  Training& all = training();
  const std::vector<double> before = all.numbers();
  try {
    optim::checkpoint_info(path);
    optim::load_checkpoint(path, all.model, all.optimizer);
  } catch (const Error&) {
    require(before == all.numbers(), "a refused checkpoint changes nothing");
  }
  optim::load_model(path, all.model);
}

}  // namespace sash::fuzz
