// Trains the model of a file that loss_curves.py wrote, on its data, and prints the loss of every
// step.

#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include <sash/sash.h>

using namespace sash;

namespace {

int64_t number(const SafetensorsFile& file, const char* name) {
  return find(file.tensors, name)->item<int64_t>();
}

std::vector<double> losses_of(const SafetensorsFile& file, Device device) {
  nn::CausalLM model({.vocab = number(file, "vocab"),
                      .context = number(file, "context"),
                      .dim = number(file, "dim"),
                      .heads = number(file, "heads"),
                      .layers = number(file, "layers")});
  StateDict weights;
  for (const auto& [key, tensor] : file.tensors) {
    if (key.starts_with("weight.")) weights.emplace_back(key.substr(7), tensor);
  }
  model.load_state_dict(weights);
  model.to(device);
  model.to(DType::bfloat16);
  optim::AdamW optimizer(model.parameters(),
                         {.lr = 1e-3, .master_weights = true, .max_grad_norm = 1.0});
  const Tensor batches = find(file.tensors, "batches")->to(device).to(DType::int64);
  const int64_t context = model.context();
  std::vector<Tensor> losses;
  for (int64_t step = 0; step < batches.size(0); ++step) {
    const Tensor batch = batches[step];
    const Tensor x = batch.narrow(1, 0, context).contiguous();
    const Tensor y = batch.narrow(1, 1, context).contiguous();
    optimizer.zero_grad();
    const Tensor loss = model.loss(x, y);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.detach());
  }
  return stack(losses).to_vector<double>();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench_losses FILE DEVICE\n");
    return 2;
  }
  try {
    for (const double loss : losses_of(load_safetensors(argv[1], kCPU), Device::parse(argv[2]))) {
      std::printf("%.6f\n", loss);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
