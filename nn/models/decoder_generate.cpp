#include <algorithm>

#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "decoder.h"

namespace sash::nn {
namespace {

// A text that is written, and what was computed of it.
struct Text {
  TokenSampler sampler;
  std::vector<KeyValueCache> caches;
};

Tensor tensor_of(const std::vector<int64_t>& tokens, const Shape& shape, Device device) {
  return tensor(tokens, shape, {.device = device});
}

}  // namespace

std::vector<std::vector<int64_t>> Decoder::generate(
    const std::vector<std::vector<int64_t>>& prompts, int64_t count,
    const GenerateOptions& options) {
  const NoGradGuard no_grad;
  const EvalGuard eval(*this);
  const Device device = token_embedding.weight.device();
  std::vector<Text> texts;
  for (const std::vector<int64_t>& prompt : prompts) {
    const auto number = static_cast<int64_t>(texts.size());
    texts.push_back(
        {TokenSampler("Decoder.generate", prompt, number, count, options), new_caches()});
  }
  // Each prompt by itself, at once.
  for (Text& text : texts) {
    if (text.sampler.done()) continue;
    const std::vector<int64_t>& prompt = text.sampler.text();
    const Shape shape{1, static_cast<int64_t>(prompt.size())};
    text.sampler.append(
        next_logits(tensor_of(prompt, shape, device), {&text.caches}).to_vector<double>());
  }
  // Then a token of all texts at a time.
  while (true) {
    std::vector<Text*> open;
    for (Text& text : texts) {
      if (!text.sampler.done()) open.push_back(&text);
    }
    if (open.empty()) break;
    std::vector<int64_t> newest;
    std::vector<std::vector<KeyValueCache>*> caches;
    for (Text* const text : open) {
      newest.push_back(text->sampler.text().back());
      caches.push_back(&text->caches);
    }
    const auto rows = static_cast<int64_t>(open.size());
    const Tensor logits = next_logits(tensor_of(newest, {rows, 1}, device), caches);
    const std::vector<double> all = logits.to_vector<double>();
    const auto vocab = static_cast<std::ptrdiff_t>(all.size() / open.size());
    for (size_t i = 0; i < open.size(); ++i) {
      const auto row = all.begin() + static_cast<std::ptrdiff_t>(i) * vocab;
      open[i]->sampler.append({row, row + vocab});
    }
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
