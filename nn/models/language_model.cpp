#include "language_model.h"

#include <algorithm>

#include "../../ops/attention/exact/attention_recorder.h"
#include "../../ops/attention/exact/attention_step.h"
#include "../../ops/loss/cross_entropy.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"

namespace sash::nn {

TransformerConfig LanguageModel::causal(TransformerConfig config) {
  for (LayerAttention& layer : config.attention) {
    AttentionKind::parse(layer.kind).check_causal("Decoder");
    layer.mask =
        layer.mask.shows_all() ? AttentionMask::causal() : AttentionMask::causal() & layer.mask;
  }
  return config;
}

Tensor LanguageModel::hidden(const Tensor& tokens, const std::vector<CrossKeys>& cross,
                             const AttentionMask& mask, const Tensor& positions) {
  const Past past = placed(tokens, mask, positions);
  return run(embed(tokens, {}, past), mask, past, cross);
}

Tensor LanguageModel::forward(const Tensor& tokens) { return head_of(hidden(tokens)); }

Tensor LanguageModel::forward(const Tensor& tokens, std::vector<KeyValueCache>& caches) {
  return forward(tokens, caches, {});
}

Tensor LanguageModel::forward(const Tensor& tokens, const AttentionMask& mask,
                              const Tensor& positions) {
  return head_of(hidden(tokens, {}, mask, positions));
}

Tensor LanguageModel::forward(const Tensor& tokens, const std::vector<CrossKeys>& cross,
                              const AttentionMask& mask, const Tensor& positions) {
  return head_of(hidden(tokens, cross, mask, positions));
}

Tensor LanguageModel::forward(const Tensor& tokens, std::vector<KeyValueCache>& caches,
                              const std::vector<CrossKeys>& cross) {
  const Past past(*this, {&caches}, tokens.size(0));
  return head_of(run(embed(tokens, {}, past), {}, past, cross));
}

Tensor LanguageModel::next_logits(const Tensor& tokens,
                                  const std::vector<std::vector<KeyValueCache>*>& caches) {
  return named_errors([&] {
    check_tokens(tokens);
    if (caches.empty()) return head_of(hidden(tokens).select(1, -1));
    const Past past(*this, caches, tokens.size(0));
    if (tokens.size(1) == 1 && !step_obstacle(caches)) {
      for (std::vector<KeyValueCache>* const text : caches) {
        for (KeyValueCache& cache : *text) cache.extend();
      }
      const auto texts = static_cast<int64_t>(caches.size());
      return step_logits(tokens, tensor(past.lengths, {texts}, {.device = tokens.device()}),
                         caches);
    }
    const Tensor states = run(embed(tokens, {}, past), {}, past, {});
    return head_of(states.select(1, -1));
  });
}

const char* LanguageModel::step_obstacle(const Texts& texts) const {
  const auto no_step = [](const BlockBase* block) {
    return block->multihead() || !block->kind().is_mask();
  };
  if (std::any_of(blocks_.begin(), blocks_.end(), no_step)) {
    return "its layers have no kernel for attention of one token";
  }
  if (grad_enabled()) return "gradients are recorded";
  if (AttentionRecorder::active()) return "attention's weights are recorded";
  for (const std::vector<KeyValueCache>* const text : texts) {
    for (const KeyValueCache& cache : *text) {
      if (!cache.reach().exact) return "a mask shows only some of the tokens it reaches";
      if (!cache.keys().defined()) return "a text has no tokens yet";
      if (has_attention_step_kernel(cache.keys())) continue;
      return "there is no kernel for attention of one token with such heads on this device";
    }
  }
  const bool by_length = std::any_of(
      tables_.begin(), tables_.end(),
      [](const std::optional<RotaryTable>& table) { return table && table->depends_on_length(); });
  return by_length ? "rotary frequencies depend on the length of the text" : nullptr;
}

Tensor LanguageModel::step_logits(const Tensor& tokens, const Tensor& positions,
                                  const Texts& texts) {
  Past past(*this, texts, tokens.size(0));
  for (int64_t& length : past.lengths) --length;
  past.positions = positions;
  return head_of(run(embed(tokens, {}, past), {}, past, {}).select(1, -1));
}

Tensor LanguageModel::loss(const Tensor& tokens, const Tensor& targets,
                           const LinearCrossEntropyOptions& options, const AttentionMask& mask,
                           const Tensor& positions) {
  return loss(tokens, {}, targets, options, mask, positions);
}

Tensor LanguageModel::loss(const Tensor& tokens, const std::vector<CrossKeys>& cross,
                           const Tensor& targets, const LinearCrossEntropyOptions& options,
                           const AttentionMask& mask, const Tensor& positions) {
  return named_errors([&] {
    if (!head) throw ValueError(type_name(), "a head for a loss", "none");
    const Tensor x = hidden(tokens, cross, mask, positions);
    const bool fuses = !head_dense && !head->bias.defined() && config_.logit_softcap == 0 &&
                       !head->is_block_sparse() && !head->has_forward_hooks();
    if (fuses) return linear_cross_entropy(x, head->weight, targets, options);
    return cross_entropy(head_of(x), targets,
                         {.ignore_index = options.ignore_index,
                          .label_smoothing = options.label_smoothing,
                          .reduction = options.reduction});
  });
}

bool LanguageModel::can_cache() const {
  const auto own = [](const BlockBase* block) { return block->kind().has_caches(); };
  const auto reaches = [](const LayerAttention& layer) {
    return layer.mask.causal_reach().has_value();
  };
  return std::all_of(blocks_.begin(), blocks_.end(), own) &&
         std::all_of(config_.attention.begin(), config_.attention.end(), reaches);
}

std::vector<KeyValueCache> LanguageModel::new_caches() const {
  std::vector<KeyValueCache> caches;
  for (const BlockBase* const block : blocks_) {
    block->kind().check_caches();
    caches.emplace_back(layer_mask(static_cast<int64_t>(caches.size())));
  }
  return caches;
}

}  // namespace sash::nn
