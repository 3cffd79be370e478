// Times whole training steps of causal language models. Prints one line of JSON per case.

#include <sash/nn/init.h>
#include <sash/nn/layers/embedding.h>
#include <sash/nn/layers/layer_norm.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/module_list.h>
#include <sash/ops/attention/attention.h>
#include <sash/ops/attention/packed_heads.h>
#include <sash/ops/elementwise/dropout.h>
#include <sash/ops/elementwise/gelu.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/ops/norm/dropout_add_layer_norm.h>
#include <sash/optim/adam.h>
#include <sash/optim/clip.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "bench.h"

namespace nn = sash::nn;
using sash::Tensor;

namespace {

/// The size of the model, and the settings that differ between CPU and GPU cases.
struct Case {
  const char* name;
  int64_t vocab, context, layers, dim, heads, batch;
  double dropout = 0.1;
  bool gpu = false;  ///< tied head, dropout of embeddings and attention, tanh GELU, clipping
  int calls = 5;
};

constexpr Case kCases[] = {
    {"tiny", 96, 64, 2, 64, 4, 8},
    {"toy", 96, 128, 4, 128, 4, 16},
    {"char", 96, 256, 6, 384, 6, 8},
    {"toy_fp32", 96, 256, 4, 128, 4, 16, 0.1, true, 20},
    {"char_fp32", 96, 256, 6, 384, 6, 64, 0.2, true, 20},
};

struct Block : nn::Module {
  explicit Block(const Case& c) : setup(c) {}

  Tensor forward(const Tensor& x) override {
    const auto [q, k, v] = split_packed_heads(qkv(n1(x)), setup.heads);
    const Tensor y = attention(
        q, k, v, {.mask = sash::AttentionMask::causal(), .dropout = setup.gpu ? setup.dropout : 0});
    const auto [h, normed] =
        dropout_add_layer_norm(o(merge_heads(y)), x, n2.weight, n2.bias, setup.dropout, n2.eps());
    const Tensor hidden =
        gelu(f1(normed), setup.gpu ? sash::GeluApproximation::tanh : sash::GeluApproximation::none);
    return h + dropout(f2(hidden), setup.dropout);
  }

  Case setup;
  nn::LayerNorm& n1 = register_module<nn::LayerNorm>("n1", setup.dim);
  nn::LayerNorm& n2 = register_module<nn::LayerNorm>("n2", setup.dim);
  nn::Linear& qkv = register_module<nn::Linear>("qkv", setup.dim, 3 * setup.dim);
  nn::Linear& o = register_module<nn::Linear>("o", setup.dim, setup.dim);
  nn::Linear& f1 = register_module<nn::Linear>("f1", setup.dim, 4 * setup.dim);
  nn::Linear& f2 = register_module<nn::Linear>("f2", 4 * setup.dim, setup.dim);
};

struct Model : nn::Module {
  explicit Model(const Case& c) : setup(c) {
    for (int64_t i = 0; i < setup.layers; ++i) blocks.emplace(setup);
  }

  Tensor loss(const Tensor& x, const Tensor& y) {
    Tensor h = tokens(x) + positions.weight;
    if (setup.gpu) h = dropout(h, setup.dropout);
    for (Block& block : blocks) h = block(h);
    return cross_entropy(head(norm(h)), y);
  }

  Case setup;
  nn::Embedding& tokens = register_module<nn::Embedding>("e", setup.vocab, setup.dim);
  nn::Embedding& positions = register_module<nn::Embedding>("p", setup.context, setup.dim);
  nn::ModuleList<Block>& blocks = register_module<nn::ModuleList<Block>>("b");
  nn::LayerNorm& norm = register_module<nn::LayerNorm>("n", setup.dim);
  nn::Linear& head = setup.gpu ? register_module<nn::Linear>("hd", tokens.weight)
                               : register_module<nn::Linear>("hd", setup.dim, setup.vocab,
                                                             nn::LinearOptions{.bias = false});
};

void run(const Case& setup, sash::Device device, const char* impl) {
  sash::manual_seed(0);
  Model model(setup);
  if (setup.gpu) {
    for (const auto& [name, parameter] : model.named_parameters()) {
      if (parameter.rank() == 2) nn::init::normal_(parameter, 0, 0.02);
    }
  }
  model.to(device);
  sash::optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
  const sash::Shape shape{setup.batch, setup.context};
  const Tensor x = sash::randint(0, setup.vocab, shape, {.device = device});
  const Tensor y = sash::randint(0, setup.vocab, shape, {.device = device});
  Tensor loss;
  const auto step = [&] {
    optimizer.zero_grad();
    loss = model.loss(x, y);
    loss.backward();
    if (setup.gpu) sash::optim::clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
  };
  step();
  const double first = loss.item<double>();
  sash::reset_peak_memory(device);
  const double ms = sash::bench::median_ms(device, setup.calls, step);
  // All steps use the same batch, so the loss of a correct training step falls.
  if (!(loss.item<double>() < first)) throw std::runtime_error("the loss does not fall");
  const auto tokens = static_cast<double>(setup.batch * setup.context);
  const auto peak = static_cast<double>(sash::memory_stats(device).peak);
  sash::bench::print({{"kind", "train"},
                      {"case", setup.name},
                      {"impl", impl},
                      {"ms", sash::bench::rounded(ms, 3)},
                      {"tok_s", std::round(tokens / ms * 1e3)},
                      {"peak_mb", std::round(peak / (1 << 20))}});
}

/// On a GPU, runs twice: with TF32 products, as is common in PyTorch, and in plain float32.
void run_all(const Case& setup, sash::Device device) {
  if (!device.is_cuda()) return run(setup, device, "sash");
  sash::set_tf32_allowed(true);
  run(setup, device, "sash");
  sash::set_tf32_allowed(false);
  run(setup, device, "sash_no_tf32");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times training steps");
  std::vector<std::string> wanted;
  app.add_option("--case", wanted, "only these cases");
  return sash::bench::run_program(app, argc, argv, [&](sash::Device device) {
    for (const Case& setup : kCases) {
      const bool chosen = wanted.empty() ? setup.gpu == device.is_cuda()
                                         : sash::bench::contains(wanted, setup.name);
      if (chosen) run_all(setup, device);
    }
    return true;
  });
}
