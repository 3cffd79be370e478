// Block-sparse linear layers, as users of pytorch_block_sparse know them: a layer instead of
// Linear, a model patched by the names of its layers, and an optimizer that moves the weakest
// blocks.
//
// The task: y = x W' for a W of which 1 block in 8 is other than zero. A layer with as many blocks,
// at first in random places, finds most of them by moving its weakest blocks while it trains.
#include <cstdio>

#include <sash/sash.h>

using namespace sash;

namespace {

constexpr int64_t kWidth = 256, kBlock = 16;

struct Net : nn::Module {
  nn::Linear& hidden = register_module<nn::Linear>("hidden", kWidth, 4 * kWidth);
  nn::Linear& out = register_module<nn::Linear>("out", 4 * kWidth, kWidth);
  Tensor forward(const Tensor& x) override { return out(relu(hidden(x))); }
};

double loss_of(nn::Module& model, const Tensor& x, const Tensor& y) {
  const NoGradGuard no_grad;
  return mse_loss(model(x), y).item<double>();
}

// The share of the task's blocks that the layer has.
double found(const nn::Linear& layer, const BlockPattern& truth) {
  const Tensor both = logical_and(layer.block_sparse_weight().pattern().mask(), truth.mask());
  return both.to(DType::float32).sum().item<double>() / static_cast<double>(truth.blocks());
}

}  // namespace

int main() {
  manual_seed(1);

  // A model that is there already: layers by name, the largest blocks stay.
  Net net;
  const Tensor sample = randn({32, kWidth});
  const int64_t before = net.num_parameters();
  for (const std::string& name : nn::sparsify(net, "hidden|out", 0.25, {.block = 32})) {
    std::printf("%s is block-sparse now\n", name.c_str());
  }
  std::printf("%lld parameters instead of %lld; y has shape %s\n",
              static_cast<long long>(net.num_parameters()), static_cast<long long>(before),
              to_string(net(sample).shape()).c_str());

  // A new layer.
  const BlockPattern truth = BlockPattern::random(kWidth, kWidth, kBlock, 0.125, 42);
  const BlockSparseMatrix w = BlockSparseMatrix::randn(truth);
  const Tensor x = randn({1024, kWidth}), y = block_sparse_linear(x, w);
  nn::Sequential model(
      nn::BlockSparseLinear(kWidth, kWidth, {.density = 0.125, .block = kBlock, .seed = 7}));
  auto& layer = dynamic_cast<nn::Linear&>(model[0]);
  optim::Adam adam(model.parameters(), {.lr = 0.02});
  const double first = loss_of(model, x, y), overlap = found(layer, truth);
  for (int step = 0; step < 400; ++step) {
    adam.zero_grad();
    mse_loss(model(x), y).backward();
    adam.step();
    if (step % 20 == 19 && step < 360) {
      optim::regrow_blocks(adam, model, {.fraction = 0.3, .seed = static_cast<uint64_t>(step)});
    }
  }
  const double last = loss_of(model, x, y);
  std::printf("loss %.2f -> %.2f, blocks found %.0f %% -> %.0f %%\n", first, last, 100 * overlap,
              100 * found(layer, truth));

  // Saved and loaded with the pattern.
  const char* const path = "block_sparse.safetensors";
  save_safetensors(path, model.state_dict());
  const StateDict saved = load_safetensors(path).tensors;
  std::remove(path);
  nn::Sequential dense(nn::Linear(kWidth, kWidth));
  nn::sparsify(dense, saved);
  dense.load_state_dict(saved);
  const double loaded = loss_of(dense, x, y);
  std::printf("loaded: loss %.2f\n", loaded);
  return last < first / 2 && loaded == last ? 0 : 1;
}
