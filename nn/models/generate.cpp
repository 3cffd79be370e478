#include <algorithm>

#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../eval_guard.h"
#include "beam_search.h"
#include "decode_step.h"

namespace sash::nn {
namespace {

// A text that is written, and what was computed of it.
struct Text {
  TokenSampler sampler;
  std::vector<KeyValueCache> caches;  // empty if the model has none
  int64_t start = 0;                  // of the tokens that the model sees
};

// Reads the tokens of a text that the model may see, all at once, and appends a token.
void read(LanguageModel& model, Text& text, int64_t window, int64_t stride) {
  const std::vector<int64_t>& all = text.sampler.text();
  const auto length = static_cast<int64_t>(all.size());
  if (window > 0 && length - text.start > window) {
    text.start = length - (window - std::min(stride, window) + 1);
  }
  const std::vector<int64_t> seen(all.begin() + text.start, all.end());
  const Tensor tokens = tensor(seen, {1, static_cast<int64_t>(seen.size())},
                               {.device = model.token_embedding.weight.device()});
  for (KeyValueCache& cache : text.caches) cache.clear();
  std::vector<std::vector<KeyValueCache>*> caches;
  if (!text.caches.empty()) caches.push_back(&text.caches);
  text.sampler.append(model.next_logits(tokens, caches).to_vector<double>());
}

// Whether longrope turns all keys by other angles if there is a token more.
bool turns_all(const LanguageModel& model, const std::vector<KeyValueCache>& caches) {
  const std::vector<LayerAttention>& layers = model.config().attention;
  return std::any_of(layers.begin(), layers.end(), [&](const LayerAttention& layer) {
    return layer.rotary && layer.rotary->scaling.kind == RotaryScalingKind::longrope &&
           layer.rotary->scaling.original_context == caches[0].length();
  });
}

// Whether the next token needs all tokens to be read again.
bool reads_anew(const LanguageModel& model, const Text& text, int64_t window) {
  if (text.caches.empty()) return true;
  const auto length = static_cast<int64_t>(text.sampler.text().size());
  return (window > 0 && length - text.start > window) || turns_all(model, text.caches);
}

// The rows of the caches are the texts.
BeamModel beams_of(LanguageModel& model, std::vector<KeyValueCache>& caches) {
  const auto next = [&](const BeamModel::Texts& texts) {
    const bool anew = caches.empty() || caches[0].length() == 0 || turns_all(model, caches);
    if (anew) {
      for (KeyValueCache& cache : caches) cache.clear();
    }
    std::vector<std::vector<KeyValueCache>*> read;
    if (!caches.empty()) read.push_back(&caches);
    return model.next_logits(newest_tokens(texts, anew, model.token_embedding.weight.device()),
                             read);
  };
  const auto reorder = [&](const std::vector<int64_t>& from) {
    for (KeyValueCache& cache : caches) cache.reorder(from);
  };
  return {next, reorder};
}

// A token more of each text. The likeliest are found where the logits are.
void append_next(DecodeStep& step, const std::vector<Text*>& texts) {
  std::vector<int64_t> newest;
  for (const Text* const text : texts) newest.push_back(text->sampler.text().back());
  const Tensor& logits = step(newest);
  if (texts[0]->sampler.takes_likeliest() && logits.device().is_cuda()) {
    const std::vector<int64_t> tokens = step.likeliest();
    for (size_t i = 0; i < texts.size(); ++i) texts[i]->sampler.append_likeliest(tokens[i]);
    return;
  }
  const std::vector<double> all = logits.to_vector<double>();
  const auto vocab = static_cast<std::ptrdiff_t>(all.size() / texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto row = all.begin() + static_cast<std::ptrdiff_t>(i) * vocab;
    texts[i]->sampler.append({row, row + vocab});
  }
}

}  // namespace

std::vector<std::vector<int64_t>> LanguageModel::generate_all(
    const std::vector<std::vector<int64_t>>& prompts, int64_t count,
    const GenerateOptions& options) {
  const NoGradGuard no_grad;
  const EvalGuard eval(*this);
  const std::string op = type_name() + ".generate";
  std::vector<Text> texts;
  for (const std::vector<int64_t>& prompt : prompts) {
    check_prompt(op.c_str(), prompt, config_.vocab);
    const auto number = static_cast<int64_t>(texts.size());
    texts.push_back({TokenSampler(op.c_str(), prompt, number, count, options),
                     can_cache() ? new_caches() : std::vector<KeyValueCache>()});
  }
  if (options.beams > 1) {
    std::vector<std::vector<int64_t>> best;
    for (size_t i = 0; i < texts.size(); ++i) {
      best.push_back(beam_search(op, prompts[i], count, options, beams_of(*this, texts[i].caches)));
    }
    return best;
  }
  // Each prompt by itself, at once.
  for (Text& text : texts) {
    if (!text.sampler.done()) read(*this, text, window_, options.stride);
  }
  // Then a token of all texts at a time, until one is done or has to be read again.
  const auto stops = [this](const Text* text) {
    return text->sampler.done() || reads_anew(*this, *text, window_);
  };
  while (true) {
    std::vector<Text*> open;
    std::vector<std::vector<KeyValueCache>*> caches;
    for (Text& text : texts) {
      if (text.sampler.done()) continue;
      if (reads_anew(*this, text, window_)) read(*this, text, window_, options.stride);
      if (text.sampler.done()) continue;
      open.push_back(&text);
      caches.push_back(&text.caches);
    }
    if (open.empty()) break;
    DecodeStep step(*this, caches, options.capture);
    while (std::none_of(open.begin(), open.end(), stops)) append_next(step, open);
  }
  std::vector<std::vector<int64_t>> result;
  for (const Text& text : texts) result.push_back(text.sampler.new_tokens());
  return result;
}

std::vector<int64_t> LanguageModel::generate(const std::vector<int64_t>& prompt, int64_t count,
                                             const GenerateOptions& options) {
  return generate_all({prompt}, count, options)[0];
}

}  // namespace sash::nn
