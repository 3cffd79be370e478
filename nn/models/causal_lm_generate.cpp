#include <algorithm>
#include <cmath>
#include <numeric>

#include "../../core/philox.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../check.h"
#include "causal_lm.h"

namespace sash::nn {
namespace {

// Evaluation mode for a scope; every module then has its own mode again.
class EvalGuard {
 public:
  explicit EvalGuard(Module& module) {
    for (const auto& [name, part] : module.named_modules()) {
      before_.emplace_back(part, part->is_training());
    }
    module.eval();
  }
  ~EvalGuard() {
    // Parents come first, and `train` sets all below.
    for (const auto& [part, training] : before_) part->train(training);
  }
  EvalGuard(const EvalGuard&) = delete;
  EvalGuard& operator=(const EvalGuard&) = delete;

 private:
  std::vector<std::pair<Module*, bool>> before_;
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
  check_not_negative(op, "a count", count);
  check_not_negative(op, "a temperature", options.temperature);
  check_not_negative(op, "top_k", options.top_k);
  check_positive(op, "stride", options.stride);
}

// Logits of the token after a text that grows, from what was computed for its start.
class Decoder {
 public:
  // At most `context` tokens are seen at once; 0: any number.
  Decoder(CausalLM& model, int64_t context, int64_t stride)
      : model_(model), context_(context), stride_(std::min(stride, context)) {}

  Tensor next_logits(const std::vector<int64_t>& text) {
    const auto past = static_cast<int64_t>(text.size());
    if (context_ > 0 && past - start_ > context_) {
      start_ = past - (context_ - stride_ + 1);
      caches_.clear();
    }
    if (!model_.can_cache()) return last(model_(tokens(text, start_)));
    if (caches_.empty()) caches_ = model_.new_caches();
    return last(model_(tokens(text, start_ + caches_[0].length()), caches_));
  }

 private:
  Tensor tokens(const std::vector<int64_t>& text, int64_t first) const {
    const std::vector<int64_t> part(text.begin() + first, text.end());
    return tensor(part, {1, static_cast<int64_t>(part.size())},
                  {.device = model_.token_embedding.weight.device()});
  }
  static Tensor last(const Tensor& logits) { return logits.select(1, -1); }

  CausalLM& model_;
  int64_t context_, stride_;
  int64_t start_ = 0;
  std::vector<KeyValueCache> caches_;
};

}  // namespace

std::vector<int64_t> CausalLM::generate(const std::vector<int64_t>& prompt, int64_t count,
                                        const SamplingOptions& options) {
  check_sampling(prompt, count, options);
  const NoGradGuard no_grad;
  const EvalGuard eval(*this);
  Decoder decoder(*this, options_.learned_positions ? options_.context : 0, options.stride);
  std::vector<int64_t> text = prompt;
  for (int64_t i = 0; i < count; ++i) {
    const std::vector<double> logits = decoder.next_logits(text).to_vector<double>();
    const uint32_t bits = philox(options.seed, static_cast<uint64_t>(i)).lane[0];
    text.push_back(sample(logits, options, uniform_from_bits<double>(bits)));
  }
  return {text.end() - count, text.end()};
}

}  // namespace sash::nn
