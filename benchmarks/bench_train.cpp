// Times whole training steps of causal language models: written for this program ("train"), or made
// from nn::TransformerConfig ("models"). Prints one line of JSON per case.

#include <cstdio>
#include <functional>

#include <sash/nn/attention/sequence_parallel.h>
#include <sash/nn/init.h>
#include <sash/nn/layers/embedding.h>
#include <sash/nn/layers/layer_norm.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/module_list.h>
#include <sash/nn/models/block.h>
#include <sash/nn/models/decoder.h>
#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/attention/exact/packed_heads.h>
#include <sash/ops/elementwise/dropout.h>
#include <sash/ops/linalg/linear.h>
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
    const auto formula = setup.gpu ? nn::MlpKind::gelu_tanh : nn::MlpKind::gelu;
    return add(nn::plain_mlp(normed, f1, f2, formula), h, next);
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
bool fp8 = false;                 ///< whether models of halves are timed with FP8 products too
int64_t bucket_mb = 25;           ///< of gradients that ranks reduce at a time
bool shard = false;               ///< whether ranks share the optimizer's state
bool split = false;               ///< whether ranks share each sequence of models
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

/// Training steps of a model on one batch, as they are timed.
struct Steps {
  const char* kind;
  const char* name;
  std::string impl;
  sash::Device device;
  sash::Shape batch;
  int64_t vocab;
  double max_grad_norm;
  bool captured, profile;

  /// The figures of the steps. The model was begun at `start`. `whole`: the sequences that ranks
  /// share, if they do.
  template <class Model, class Loss>
  nlohmann::ordered_json time(Model& model, std::chrono::steady_clock::time_point start,
                              const Loss& loss_of, const nn::SequenceParallel* whole) const {
    sash::optim::AdamW optimizer(
        model.parameters(), {.lr = 3e-4, .master_weights = true, .max_grad_norm = max_grad_norm});
    const sash::distributed::Group ranks = sash::distributed::world();
    sash::optim::DataParallel parallel(model, ranks, {.bucket_bytes = bucket_mb << 20});
    if (shard && ranks.size() > 1) parallel.shard(optimizer);
    const auto tokens = [&] {
      const Tensor all = sash::randint(0, vocab, batch, {.device = device});
      return whole ? whole->stretch(all, 1).contiguous() : all;
    };
    const Tensor x = tokens(), y = tokens();
    Tensor loss;
    sash::optim::CapturedStep train(
        [&](const std::vector<Tensor>& inputs) {
          optimizer.zero_grad();
          const Tensor mean = loss_of(inputs[0], inputs[1]);
          mean.backward();
          optimizer.step();
          return mean;
        },
        {.device = device, .capture = captured});
    const auto step = [&] { loss = train({x, y}); };
    step();
    const auto mean_loss = [&] {
      return ranks.all_reduce(loss.item<double>(), sash::distributed::ReduceOp::mean);
    };
    const double first = mean_loss();
    const std::chrono::duration<double> until_first = std::chrono::steady_clock::now() - start;
    sash::reset_peak_memory(device);
    step();
    if (captured && !train.reason().empty()) throw std::runtime_error(train.reason());
    const double ms = ranks.size() == 1 ? sash::bench::median_ms(device, calls, step, kSeconds)
                                        : sash::bench::median_ms_of_ranks(device, step);
    parallel.check_equal();
    // All steps use the same batch, so the loss of a correct training step falls.
    if (!(mean_loss() < first)) throw std::runtime_error("the loss does not fall");
    const auto peak = static_cast<double>(sash::memory_stats(device).peak);
    if (profile) print_profile(name, step);
    return {{"kind", kind},
            {"case", name},
            {"impl", impl},
            {"ranks", ranks.size()},
            {"ms", sash::bench::rounded(ms, 3)},
            {"first_loss", sash::bench::rounded(first, 6)},
            {"tok_s", std::round(static_cast<double>(ranks.size() * x.numel()) / ms * 1e3)},
            {"peak_mb", std::round(peak / (1 << 20))},
            {"first_step_s", sash::bench::rounded(until_first.count(), 2)}};
  }
};

void run(const Case& setup, sash::Device device, const std::string& impl, bool captured,
         bool profile, bool float8 = false) {
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
  model.float8(float8);
  const Steps steps{"train",
                    setup.name,
                    impl,
                    device,
                    {setup.batch, setup.context},
                    setup.vocab,
                    setup.gpu ? 1.0 : 0.0,
                    captured,
                    profile};
  nlohmann::ordered_json figure = steps.time(
      model, start, [&](const Tensor& x, const Tensor& y) { return model.loss(x, y); }, nullptr);
  const double products = products_ms(setup, device);
  figure["products_ms"] = sash::bench::rounded(products, 3);
  figure["share"] = sash::bench::rounded(products / figure["ms"].get<double>(), 2);
  if (sash::distributed::world().rank() == 0) sash::bench::print(figure);
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
  if (fp8 && !twice) run(setup, device, "sash_fp8_captured", true, profile, true);
}

/// A model made from a configuration, in bfloat16 with float32 masters on a GPU.
struct ConfiguredCase {
  const char* name;
  nn::TransformerConfig config;
  int64_t batch, length;
  bool float8 = false;  ///< timed with FP8 products too
};

nn::LayerAttention rotating(const sash::AttentionMask& mask, double theta) {
  nn::LayerAttention layer{mask, nn::RotaryOptions()};
  layer.rotary->theta = theta;
  return layer;
}

// 12 layers of Llama's kind.
nn::TransformerConfig llama_160m() {
  nn::TransformerConfig config;
  config.vocab = 32000;
  config.dim = 768;
  config.layers = 12;
  config.heads = 12;
  config.mlp_dim = 3072;
  config.attention = {rotating({}, 1e4)};
  return config;
}

// Of the size and shape of Llama 3.2 1B, with Llama 2's vocabulary.
nn::TransformerConfig llama_1b() {
  nn::TransformerConfig config = llama_160m();
  config.dim = 2048;
  config.layers = 16;
  config.heads = 32;
  config.kv_heads = 8;
  config.mlp_dim = 8192;
  return config;
}

// A stack of Gemma 3's layers: heads of 256, five windows of 1,024 keys to one layer that sees all.
nn::TransformerConfig gemma3_stack() {
  nn::TransformerConfig config;
  config.vocab = 1024;
  config.dim = 1152;
  config.layers = 6;
  config.heads = 4;
  config.kv_heads = 1;
  config.head_dim = 256;
  config.mlp_dim = 6912;
  config.norm = nn::NormKind::rms_norm_unit_offset;
  config.norm_placement = nn::NormPlacement::around;
  config.qk_norm = nn::QKNorm::per_head;
  config.mlp = nn::MlpKind::geglu_tanh;
  config.tie_weights = true;
  const nn::LayerAttention near = rotating(sash::AttentionMask::causal_window(1024), 1e4);
  config.attention = {near, near, near, near, near, rotating({}, 1e6)};
  return config;
}

// long16k with rotary positions, for a sequence of 256k tokens.
nn::TransformerConfig long256k() {
  nn::TransformerConfig config = llama_160m();
  config.vocab = 96;
  config.dim = 512;
  config.layers = 6;
  config.heads = 8;
  config.mlp_dim = 2048;
  config.attention = {rotating(sash::AttentionMask::causal_window(257), 1e4)};
  return config;
}

// As llama_160m, small enough for a CPU.
nn::TransformerConfig llama_tiny() {
  nn::TransformerConfig config = llama_160m();
  config.vocab = 96;
  config.dim = 128;
  config.layers = 4;
  config.heads = 4;
  config.mlp_dim = 384;
  return config;
}

std::vector<ConfiguredCase> configured_cases(sash::Device device) {
  if (!device.is_cuda()) return {{"llama_tiny", llama_tiny(), 8, 128}};
  return {{"llama_160m", llama_160m(), 8, 2048},
          {"gemma3_stack", gemma3_stack(), 1, 8192},
          {"long256k", long256k(), 1, 262144},
          {"llama_1b", llama_1b(), 2, 8192, true}};
}

void run(const ConfiguredCase& setup, sash::Device device, bool float8, bool profile) {
  sash::manual_seed(0);
  const auto start = std::chrono::steady_clock::now();
  nn::Decoder model(setup.config);
  model.to(device);
  if (device.is_cuda()) model.bfloat16();
  model.float8(float8);
  const Steps steps{"models",
                    setup.name,
                    float8 ? "sash_fp8" : "sash",
                    device,
                    {setup.batch, setup.length},
                    setup.config.vocab,
                    1,
                    device.is_cuda() && !profile,
                    profile};
  const sash::distributed::Group ranks = sash::distributed::world();
  const nn::SequenceParallel whole(ranks, setup.length / (split ? ranks.size() : 1));
  if (split) whole.apply(model);
  const auto loss = [&](const Tensor& x, const Tensor& y) {
    return split ? model.loss(x, y, {}, {}, whole.positions(setup.batch, device))
                 : model.loss(x, y);
  };
  const nlohmann::ordered_json figure = steps.time(model, start, loss, split ? &whole : nullptr);
  if (sash::distributed::world().rank() == 0) sash::bench::print(figure);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Times training steps", "cpu");
  std::vector<std::string> wanted;
  std::string kind = "train";
  bool profile = false;
  flags.add("--kind", kind, "train or models");
  flags.add("--case", wanted, "only these cases");
  flags.add("--bucket", bucket_mb, "MiB of gradients that ranks reduce at a time");
  flags.add("--shard", shard, "ranks share the optimizer's state");
  flags.add("--fp8", fp8, "every case of halves with FP8 products too");
  flags.add("--split", split, "ranks share each sequence; for --kind models");
  flags.add("--calls", calls, "steps that are timed");
  flags.add("--profile", profile, "also print a table of the kernels of each case");
  return sash::bench::run(flags, argc, argv, [&](sash::Device device) {
    const auto chosen = [&](const char* name, bool otherwise) {
      return wanted.empty() ? otherwise : sash::bench::contains(wanted, name);
    };
    if (kind == "models") {
      for (const ConfiguredCase& setup : configured_cases(device)) {
        if (!chosen(setup.name, true)) continue;
        run(setup, device, false, profile);
        if (fp8 || setup.float8) run(setup, device, true, profile);
      }
      return true;
    }
    for (const Case& setup : kCases) {
      if (chosen(setup.name, setup.gpu == device.is_cuda())) run_all(setup, device, profile);
    }
    return true;
  });
}
