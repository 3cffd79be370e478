#include "beam_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "../../core/error.h"
#include "../../tensor/factories.h"

namespace sash::nn {
namespace {

struct Beam {
  std::vector<int64_t> text;
  double score = 0;  // sum of the log probabilities of the new tokens
  int64_t from = 0;  // the text of the last step that it extends
};

// Of equal scores, the beam that was found first stays first.
bool is_better(const Beam& a, const Beam& b) { return a.score > b.score; }

void keep_best(std::vector<Beam>& beams, size_t count) {
  std::stable_sort(beams.begin(), beams.end(), is_better);
  if (beams.size() > count) beams.resize(count);
}

// The likeliest `count` tokens after a text, or fewer if others are impossible.
std::vector<Beam> extensions(const Beam& beam, int64_t from, std::vector<double> logits,
                             size_t count, const GenerateOptions& options) {
  penalize_repetition(logits, beam.text, options.repetition_penalty);
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double x : logits) sum += std::exp(x - largest);
  std::vector<size_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), size_t{0});
  count = std::min(count, tokens.size());
  std::partial_sort(
      tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count), tokens.end(),
      [&](size_t a, size_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  std::vector<Beam> all;
  for (size_t i = 0; i < count && std::isfinite(logits[tokens[i]]); ++i) {
    all.push_back({beam.text, beam.score + logits[tokens[i]] - largest - std::log(sum), from});
    all.back().text.push_back(static_cast<int64_t>(tokens[i]));
  }
  return all;
}

}  // namespace

Tensor newest_tokens(const BeamModel::Texts& texts, bool all, Device device) {
  std::vector<int64_t> tokens;
  for (const std::vector<int64_t>& text : texts) {
    tokens.insert(tokens.end(), all ? text.begin() : text.end() - 1, text.end());
  }
  const auto rows = static_cast<int64_t>(texts.size());
  return tensor(tokens, {rows, static_cast<int64_t>(tokens.size()) / rows}, {.device = device});
}

std::vector<int64_t> beam_search(const std::string& op, const std::vector<int64_t>& prompt,
                                 int64_t count, const GenerateOptions& options,
                                 const BeamModel& model) {
  if (options.top_k > 0 || options.top_p < 1 || options.min_p > 0 || options.on_token) {
    throw ValueError(op, "no top_k, top_p, min_p and on_token with beams", "one of them");
  }
  const auto width = static_cast<size_t>(options.beams);
  const auto start = static_cast<std::ptrdiff_t>(prompt.size());
  const auto ended = [&](const Beam& beam) {
    const auto& stops = options.stop_tokens;
    return std::find(stops.begin(), stops.end(), beam.text.back()) != stops.end();
  };
  // What beams of different lengths are compared by.
  const auto scored = [&](Beam beam) {
    const auto length = static_cast<double>(beam.text.size()) - static_cast<double>(start);
    beam.score /= std::pow(length, options.length_penalty);
    return beam;
  };
  std::vector<Beam> open{{prompt}}, complete;
  for (int64_t step = 0; step < count; ++step) {
    BeamModel::Texts texts;
    for (const Beam& beam : open) texts.push_back(beam.text);
    const std::vector<double> logits = model.next(texts).to_vector<double>();
    const auto vocab = static_cast<std::ptrdiff_t>(logits.size() / texts.size());
    std::vector<Beam> found;
    for (size_t i = 0; i < open.size(); ++i) {
      const auto row = logits.begin() + static_cast<std::ptrdiff_t>(i) * vocab;
      check_logits(std::span<const double>(row, row + vocab));
      for (Beam& beam : extensions(open[i], static_cast<int64_t>(i), {row, row + vocab},
                                   width + options.stop_tokens.size(), options)) {
        found.push_back(std::move(beam));
      }
    }
    std::stable_sort(found.begin(), found.end(), is_better);
    open.clear();
    for (size_t rank = 0; rank < found.size() && open.size() < width; ++rank) {
      if (!ended(found[rank])) {
        open.push_back(std::move(found[rank]));
      } else if (rank < width) {
        complete.push_back(scored(std::move(found[rank])));
      }
    }
    keep_best(complete, width);
    if (open.empty()) break;
    if (complete.size() == width && !is_better(scored(open[0]), complete.back())) break;
    std::vector<int64_t> from;
    for (const Beam& beam : open) from.push_back(beam.from);
    model.reorder(from);
  }
  if (count == 0) return {};
  for (const Beam& beam : open) complete.push_back(scored(beam));
  keep_best(complete, 1);
  return {complete[0].text.begin() + start, complete[0].text.end()};
}

}  // namespace sash::nn
