// Times whole training steps of causal language models. Prints one line of JSON per case.

#include <cstdio>
#include <functional>

#include <sash/nn/init.h>
#include <sash/nn/layers/embedding.h>
#include <sash/nn/layers/layer_norm.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/module_list.h>
#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/attention/exact/packed_heads.h>
#include <sash/ops/elementwise/dropout.h>
#include <sash/ops/linalg/linear.h>
#include <sash/ops/linalg/linear_gelu.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/loss/linear_cross_entropy.h>
#include <sash/ops/norm/dropout_add_layer_norm.h>
#include <sash/optim/adam.h>
#include <sash/optim/captured_step.h>
#include <sash/optim/data_parallel.h>
#include <sash/optim/profiler.h>
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
  sash::DType dtype = sash::DType::float32;  ///< bfloat16: with float32 masters
  int64_t window = 0;                        ///< keys before a query that it sees; 0: all
  int64_t full_every = 0;  ///< of so many layers, the last sees all keys; 0: none does
};

constexpr auto kBf16 = sash::DType::bfloat16;

constexpr Case kCases[] = {
    {"tiny", 96, 64, 2, 64, 4, 8},
    {"toy", 96, 128, 4, 128, 4, 16},
    {"char", 96, 256, 6, 384, 6, 8},
    {"toy_fp32", 96, 256, 4, 128, 4, 16, 0.1, true},
    {"char_fp32", 96, 256, 6, 384, 6, 64, 0.2, true},
    {"char_bf16", 96, 256, 6, 384, 6, 64, 0.2, true, kBf16},
    {"gpt2_124m", 50304, 1024, 12, 768, 12, 16, 0, true, kBf16},
    {"long16k", 96, 16384, 6, 512, 8, 4, 0, true, kBf16, 256},
    {"gpt2_sssl_4k", 50304, 4096, 12, 768, 12, 4, 0, true, kBf16, 1024, 4},
};

sash::AttentionMask mask_of(const Case& c, int64_t layer) {
  const bool full = c.window == 0 || (c.full_every > 0 && (layer + 1) % c.full_every == 0);
  return full ? sash::AttentionMask::causal() : sash::AttentionMask::window(c.window, 0);
}

struct Block : nn::Module {
  Block(const Case& c, int64_t layer) : setup(c), mask(mask_of(c, layer)) {}

  /// From the residual stream and its n1, the stream after this block and its norm by `next`.
  sash::SumAndNorm operator()(const sash::SumAndNorm& x, const nn::LayerNorm& next) {
    const auto [q, k, v] = split_packed_heads(qkv(x.norm), setup.heads);
    const Tensor y = attention(q, k, v, {.mask = mask, .dropout = setup.gpu ? setup.dropout : 0});
    const auto [h, normed] = add(o(merge_heads(y)), x.sum, n2);
    const auto formula = setup.gpu ? sash::GeluApproximation::tanh : sash::GeluApproximation::none;
    return add(gelu_mlp(normed, f1.weight, f1.bias, f2.weight, f2.bias, formula), h, next);
  }

  sash::SumAndNorm add(const Tensor& branch, const Tensor& x, const nn::LayerNorm& norm) const {
    return dropout_add_layer_norm(branch, x, norm.weight, norm.bias, setup.dropout, norm.eps());
  }

  Case setup;
  sash::AttentionMask mask;
  nn::LayerNorm& n1 = register_module<nn::LayerNorm>("n1", setup.dim);
  nn::LayerNorm& n2 = register_module<nn::LayerNorm>("n2", setup.dim);
  nn::Linear& qkv = register_module<nn::Linear>("qkv", setup.dim, 3 * setup.dim);
  nn::Linear& o = register_module<nn::Linear>("o", setup.dim, setup.dim);
  nn::Linear& f1 = register_module<nn::Linear>("f1", setup.dim, 4 * setup.dim);
  nn::Linear& f2 = register_module<nn::Linear>("f2", 4 * setup.dim, setup.dim);
};

struct Model : nn::Module {
  explicit Model(const Case& c) : setup(c) {
    for (int64_t i = 0; i < setup.layers; ++i) blocks.emplace(setup, i);
  }

  Tensor loss(const Tensor& x, const Tensor& y) {
    Tensor h = tokens(x) + positions.weight;
    if (setup.gpu) h = dropout(h, setup.dropout);
    sash::SumAndNorm state{h, blocks[0].n1(h)};
    for (int64_t i = 0; i < setup.layers; ++i) {
      state = blocks[i](state, i + 1 < setup.layers ? blocks[i + 1].n1 : norm);
    }
    return linear_cross_entropy(state.norm, head.weight, y);
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

int calls = 5;
constexpr double kSeconds = 0.5;  ///< on a CPU, of the steps that are timed

/// Milliseconds of the products of a step with weights, forward and backward, each timed alone.
double products_ms(const Case& c, sash::Device device) {
  struct Product {
    int64_t in, out, count;
  };
  const sash::NoGradGuard no_grad;
  const sash::TensorOptions options{.dtype = c.dtype, .device = device};
  const int64_t tokens = c.batch * c.context;
  double total = 0;
  for (const Product& p : {Product{c.dim, 3 * c.dim, c.layers}, Product{c.dim, c.dim, c.layers},
                           Product{c.dim, 4 * c.dim, c.layers}, Product{4 * c.dim, c.dim, c.layers},
                           Product{c.dim, c.vocab, 1}}) {
    const Tensor x = sash::randn({tokens, p.in}, options), w = sash::randn({p.out, p.in}, options);
    const Tensor g = sash::randn({tokens, p.out}, options);
    const double ms = sash::bench::median_ms(device, calls, [&] { linear(x, w); }) +
                      sash::bench::median_ms(device, calls, [&] { matmul(g, w); }) +
                      sash::bench::median_ms(device, calls, [&] { matmul(g.mT(), x); });
    total += ms * static_cast<double>(p.count);
  }
  return total;
}

/// The kernels of five steps, each with its share of the limit, to the error stream.
void print_profile(const char* name, const std::function<void()>& step) {
  sash::optim::Profiler profiler;
  for (int i = 0; i < 5; ++i) step();
  std::fprintf(stderr, "%s, five steps\n%s\n", name, profiler.table().c_str());
}

void run(const Case& setup, sash::Device device, const std::string& impl, bool captured,
         bool profile) {
  sash::manual_seed(0);
  const auto start = std::chrono::steady_clock::now();
  Model model(setup);
  if (setup.gpu) {
    for (const auto& [name, parameter] : model.named_parameters()) {
      if (parameter.rank() == 2) nn::init::normal_(parameter, 0, 0.02);
    }
  }
  model.to(device);
  model.to(setup.dtype);
  sash::optim::AdamW optimizer(
      model.parameters(),
      {.lr = 3e-4, .master_weights = true, .max_grad_norm = setup.gpu ? 1.0 : 0.0});
  const sash::distributed::Group ranks = sash::distributed::world();
  sash::optim::DataParallel parallel(model, ranks);
  const sash::Shape shape{setup.batch, setup.context};
  const Tensor x = sash::randint(0, setup.vocab, shape, {.device = device});
  const Tensor y = sash::randint(0, setup.vocab, shape, {.device = device});
  Tensor loss;
  sash::optim::CapturedStep train(
      [&](const std::vector<Tensor>& batch) {
        optimizer.zero_grad();
        const Tensor mean = model.loss(batch[0], batch[1]);
        mean.backward();
        optimizer.step();
        return mean;
      },
      {.device = device, .capture = captured});
  const auto step = [&] { loss = train({x, y}); };
  step();
  const double first = loss.item<double>();
  const std::chrono::duration<double> until_first = std::chrono::steady_clock::now() - start;
  sash::reset_peak_memory(device);
  step();
  if (captured && !train.reason().empty()) throw std::runtime_error(train.reason());
  const double ms = ranks.size() == 1 ? sash::bench::median_ms(device, calls, step, kSeconds)
                                      : sash::bench::median_ms_of_ranks(device, step);
  parallel.check_equal();
  // All steps use the same batch, so the loss of a correct training step falls.
  if (!(loss.item<double>() < first)) throw std::runtime_error("the loss does not fall");
  const auto tokens = static_cast<double>(ranks.size() * setup.batch * setup.context);
  const auto peak = static_cast<double>(sash::memory_stats(device).peak);
  if (ranks.rank() != 0) return;
  const double products = products_ms(setup, device);
  if (profile) print_profile(setup.name, step);
  sash::bench::print({{"kind", "train"},
                      {"case", setup.name},
                      {"impl", impl},
                      {"ranks", ranks.size()},
                      {"ms", sash::bench::rounded(ms, 3)},
                      {"tok_s", std::round(tokens / ms * 1e3)},
                      {"peak_mb", std::round(peak / (1 << 20))},
                      {"first_step_s", sash::bench::rounded(until_first.count(), 2)},
                      {"products_ms", sash::bench::rounded(products, 3)},
                      {"share", sash::bench::rounded(products / ms, 2)}});
}

/// On a GPU each step runs eagerly and captured, in float32 with TF32 products, as is common in
/// PyTorch, and without.
void run_all(const Case& setup, sash::Device device, bool profile) {
  if (!device.is_cuda()) return run(setup, device, "sash", false, profile);
  const bool twice = setup.dtype == sash::DType::float32;
  for (const bool tf32 : twice ? std::vector<bool>{true, false} : std::vector<bool>{false}) {
    sash::set_tf32_allowed(tf32);
    const std::string impl = twice && !tf32 ? "sash_no_tf32" : "sash";
    run(setup, device, impl, false, profile);
    run(setup, device, impl + "_captured", true, false);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times training steps");
  std::vector<std::string> wanted;
  app.add_option("--case", wanted, "only these cases");
  bool profile = false;
  app.add_option("--calls", calls, "steps that are timed");
  app.add_flag("--profile", profile, "also print a table of the kernels of each case");
  return sash::bench::run_program(app, argc, argv, [&](sash::Device device) {
    for (const Case& setup : kCases) {
      const bool chosen = wanted.empty() ? setup.gpu == device.is_cuda()
                                         : sash::bench::contains(wanted, setup.name);
      if (chosen) run_all(setup, device, profile);
    }
    return true;
  });
}
