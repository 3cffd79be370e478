#include "causal_lm.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "../core/philox.h"
#include "../ops/binary.h"
#include "../tensor/factories.h"
#include "../tensor/grad_mode.h"
#include "check.h"
#include "init.h"

namespace sash::nn {
namespace {

const CausalLMOptions& checked(const CausalLMOptions& options) {
  check_positive("CausalLM", "vocab", options.vocab);
  check_positive("CausalLM", "context", options.context);
  check_positive("CausalLM", "dim", options.dim);
  check_positive("CausalLM", "number of layers", options.layers);
  return options;
}

TransformerOptions layer_options(const CausalLMOptions& options) {
  return {.dim = options.dim,
          .heads = options.heads,
          .feedforward = options.feedforward,
          .dropout = options.dropout,
          .activation = Activation::gelu,
          .norm_first = true};
}

// Evaluation mode for a scope.
class EvalGuard {
 public:
  explicit EvalGuard(Module& module) : module_(module), before_(module.is_training()) {
    module_.eval();
  }
  ~EvalGuard() { module_.train(before_); }
  EvalGuard(const EvalGuard&) = delete;
  EvalGuard& operator=(const EvalGuard&) = delete;

 private:
  Module& module_;
  bool before_;
};

// Index of a token drawn with probability softmax(logits / temperature), among the likeliest top_k;
// `uniform` in [0, 1) decides. Ties go to the lower index.
int64_t sample(const std::vector<double>& logits, const SamplingOptions& options, double uniform) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (options.temperature == 0) return static_cast<int64_t>(order[0]);
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(options.top_k)));
  std::vector<double> cumulative;
  double total = 0;
  for (const size_t token : order) {
    total += std::exp((logits[token] - logits[order[0]]) / options.temperature);
    cumulative.push_back(total);
  }
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * total);
  const auto at =
      std::min(chosen - cumulative.begin(), static_cast<std::ptrdiff_t>(order.size()) - 1);
  return static_cast<int64_t>(order[static_cast<size_t>(at)]);
}

void check_sampling(const std::vector<int64_t>& prompt, int64_t count,
                    const SamplingOptions& options) {
  const char* op = "CausalLM.generate";
  if (prompt.empty()) throw ValueError(op, "a prompt of at least one token", "none");
  if (count < 0) throw ValueError(op, "a count of at least 0", std::to_string(count));
  if (!(options.temperature >= 0)) {
    throw ValueError(op, "a temperature of at least 0", to_text(options.temperature));
  }
  if (options.top_k < 0) {
    throw ValueError(op, "top_k of at least 0", std::to_string(options.top_k));
  }
}

}  // namespace

CausalLM::CausalLM(const CausalLMOptions& options)
    : options_(checked(options)),
      token_embedding(register_module<Embedding>("token_embedding", options.vocab, options.dim)),
      position_embedding(
          register_module<Embedding>("position_embedding", options.context, options.dim)),
      dropout(register_module<Dropout>("dropout", options.dropout)),
      layers(register_module<ModuleList<TransformerEncoderLayer>>("layers")),
      norm(register_module<LayerNorm>("norm", options.dim)),
      head(options.tie_weights ? register_module<Linear>("head", token_embedding.weight)
                               : register_module<Linear>("head", options.dim, options.vocab,
                                                         LinearOptions{.bias = false})) {
  for (int64_t i = 0; i < options.layers; ++i) layers.emplace(layer_options(options));
  initialise();
}

void CausalLM::initialise() {
  constexpr double kStd = 0.02;
  const double residual_std = kStd / std::sqrt(2.0 * static_cast<double>(options_.layers));
  init::normal_(token_embedding.weight, 0, kStd);
  init::normal_(position_embedding.weight, 0, kStd);
  for (TransformerEncoderLayer& layer : layers) {
    init::normal_(layer.self_attn.in_proj_weight, 0, kStd);
    init::normal_(layer.self_attn.out_proj.weight, 0, residual_std);
    init::normal_(layer.linear1.weight, 0, kStd);
    init::zeros_(layer.linear1.bias);
    init::normal_(layer.linear2.weight, 0, residual_std);
    init::zeros_(layer.linear2.bias);
  }
  if (!options_.tie_weights) init::normal_(head.weight, 0, kStd);
}

Tensor CausalLM::forward(const Tensor& tokens) {
  if (!tokens.defined()) throw ValueError("CausalLM", "tokens", "an undefined tensor");
  if (tokens.dtype() != DType::int64) {
    throw DTypeError("CausalLM", "int64 tokens", name(tokens.dtype()));
  }
  if (tokens.rank() != 2 || tokens.shape()[1] > options_.context) {
    throw ShapeError("CausalLM", "tokens [B, T] with T at most " + std::to_string(options_.context),
                     to_string(tokens.shape()));
  }
  const Tensor positions = position_embedding.weight.narrow(0, 0, tokens.shape()[1]);
  Tensor x = dropout(token_embedding(tokens) + positions);
  for (TransformerEncoderLayer& layer : layers) x = layer(x, options_.mask);
  return head(norm(x));
}

std::vector<int64_t> CausalLM::generate(const std::vector<int64_t>& prompt, int64_t count,
                                        const SamplingOptions& options) {
  check_sampling(prompt, count, options);
  const NoGradGuard no_grad;
  const EvalGuard eval(*this);
  const Device device = token_embedding.weight.device();
  std::vector<int64_t> tokens = prompt;
  for (int64_t i = 0; i < count; ++i) {
    const auto length = std::min(static_cast<int64_t>(tokens.size()), options_.context);
    const std::vector<int64_t> window(tokens.end() - length, tokens.end());
    const Tensor logits = forward(tensor(window, {1, length}, {.device = device}));
    const uint32_t bits = philox(options.seed, static_cast<uint64_t>(i)).lane[0];
    tokens.push_back(
        sample(logits.select(1, -1).to_vector<double>(), options, uniform_from_bits<double>(bits)));
  }
  return {tokens.end() - count, tokens.end()};
}

}  // namespace sash::nn
