#include <algorithm>

#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../eval_guard.h"
#include "causal_lm.h"

namespace sash::nn {
namespace {

// Logits of the token after a text that grows, from what was computed for its start.
class Continuation {
 public:
  // At most `context` tokens are seen at once; 0: any number.
  Continuation(CausalLM& model, int64_t context, int64_t stride)
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
                                        const GenerateOptions& options) {
  TokenSampler sampler("CausalLM.generate", prompt, 0, count, options);
  check_prompt("CausalLM.generate", prompt, options_.vocab);
  const NoGradGuard no_grad;
  const EvalGuard eval(*this);
  Continuation text(*this, options_.learned_positions ? options_.context : 0, options.stride);
  while (!sampler.done()) sampler.append(text.next_logits(sampler.text()).to_vector<double>());
  return sampler.new_tokens();
}

}  // namespace sash::nn
