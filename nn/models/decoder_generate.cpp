#include <algorithm>

#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../eval_guard.h"
#include "decode_step.h"

namespace sash::nn {
namespace {

// A text that is written, and what was computed of it.
struct Text {
  TokenSampler sampler;
  std::vector<KeyValueCache> caches;
};

// Reads all of a text, and appends a token.
void read(Decoder& model, Text& text) {
  for (KeyValueCache& cache : text.caches) cache.clear();
  const std::vector<int64_t>& all = text.sampler.text();
  const Tensor tokens = tensor(all, {1, static_cast<int64_t>(all.size())},
                               {.device = model.token_embedding.weight.device()});
  text.sampler.append(model.next_logits(tokens, {&text.caches}).to_vector<double>());
}

// Whether with the next token of a text longrope turns all keys by other angles.
bool turns_anew(const Decoder& model, const Text& text) {
  const std::vector<LayerAttention>& layers = model.config().attention;
  return std::any_of(layers.begin(), layers.end(), [&](const LayerAttention& layer) {
    return layer.rotary && layer.rotary->scaling.kind == RotaryScalingKind::longrope &&
           layer.rotary->scaling.original_context == text.caches[0].length();
  });
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

std::vector<std::vector<int64_t>> Decoder::generate(
    const std::vector<std::vector<int64_t>>& prompts, int64_t count,
    const GenerateOptions& options) {
  const NoGradGuard no_grad;
  const EvalGuard eval(*this);
  std::vector<Text> texts;
  for (const std::vector<int64_t>& prompt : prompts) {
    check_prompt("Decoder.generate", prompt, config_.vocab);
    const auto number = static_cast<int64_t>(texts.size());
    texts.push_back(
        {TokenSampler("Decoder.generate", prompt, number, count, options), new_caches()});
  }
  // Each prompt by itself, at once.
  for (Text& text : texts) {
    if (!text.sampler.done()) read(*this, text);
  }
  // Then a token of all texts at a time, until one is done or has to be read again.
  while (true) {
    std::vector<Text*> open;
    std::vector<std::vector<KeyValueCache>*> caches;
    for (Text& text : texts) {
      if (!text.sampler.done() && turns_anew(*this, text)) read(*this, text);
      if (text.sampler.done()) continue;
      open.push_back(&text);
      caches.push_back(&text.caches);
    }
    if (open.empty()) break;
    DecodeStep step(*this, caches, options.capture);
    const auto stops = [this](const Text* text) {
      return text->sampler.done() || turns_anew(*this, *text);
    };
    while (std::none_of(open.begin(), open.end(), stops)) append_next(step, open);
  }
  std::vector<std::vector<int64_t>> result;
  for (const Text& text : texts) result.push_back(text.sampler.new_tokens());
  return result;
}

std::vector<int64_t> Decoder::generate(const std::vector<int64_t>& prompt, int64_t count,
                                       const GenerateOptions& options) {
  return generate(std::vector<std::vector<int64_t>>{prompt}, count, options)[0];
}

}  // namespace sash::nn
