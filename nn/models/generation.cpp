#include "generation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "../../core/philox.h"
#include "../check.h"

namespace sash::nn {
namespace {

void check_options(const char* op, const GenerateOptions& options) {
  check_not_negative(op, "a temperature", options.temperature);
  check_not_negative(op, "top_k", options.top_k);
  check_probability(op, "top_p", options.top_p);
  check_probability(op, "min_p", options.min_p);
  if (!(options.repetition_penalty > 0)) {
    throw ValueError(op, "a repetition_penalty above 0", to_text(options.repetition_penalty));
  }
  check_positive(op, "stride", options.stride);
  check_positive(op, "number of beams", options.beams);
}

constexpr const char* kOp = "TokenSampler";

// Tokens that may be drawn, and their weights, e^(logit - largest).
struct Candidates {
  std::vector<size_t> tokens;
  std::vector<double> weights;  // of every token

  // The first of two is likelier, or as likely and lower.
  bool before(size_t a, size_t b) const {
    return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
  }

  void keep_top_k(size_t k) {
    if (k >= tokens.size()) return;
    const auto order = [this](size_t a, size_t b) { return before(a, b); };
    std::nth_element(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(k), tokens.end(),
                     order);
    tokens.resize(k);
  }

  // Takes the likeliest from a heap, which sorts no more than it must.
  void keep_top_p(double p) {
    const auto later = [this](size_t a, size_t b) { return before(b, a); };
    double left = p * total();
    std::make_heap(tokens.begin(), tokens.end(), later);
    auto end = tokens.end();
    do {
      std::pop_heap(tokens.begin(), end, later);
      left -= weights[*--end];
    } while (left > 0 && end != tokens.begin());
    tokens.erase(tokens.begin(), end);
  }

  double total() const {
    return std::accumulate(tokens.begin(), tokens.end(), 0.0,
                           [this](double sum, size_t token) { return sum + weights[token]; });
  }

  // The token at `uniform` in [0, 1) of the total.
  size_t draw(double uniform) {
    std::sort(tokens.begin(), tokens.end());
    double left = uniform * total();
    for (const size_t token : tokens) {
      left -= weights[token];
      if (left < 0) return token;
    }
    return tokens.back();  // rounding
  }
};

}  // namespace

void check_prompt(const char* op, const std::vector<int64_t>& prompt, int64_t vocab) {
  for (const int64_t token : prompt) {
    if (token >= 0 && token < vocab) continue;
    throw IndexError(op, "tokens in [0, " + std::to_string(vocab) + ")", std::to_string(token));
  }
}

void penalize_repetition(std::vector<double>& logits, const std::vector<int64_t>& text,
                         double penalty) {
  if (penalty == 1) return;
  check_prompt(kOp, text, static_cast<int64_t>(logits.size()));
  std::vector<int64_t> seen = text;
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (const int64_t token : seen) {
    double& logit = logits[static_cast<size_t>(token)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

void check_logits(std::span<const double> logits) {
  if (logits.empty()) throw ValueError(kOp, "logits of at least one token", "none");
  if (std::any_of(logits.begin(), logits.end(), [](double x) { return std::isnan(x); })) {
    throw ValueError(kOp, "logits that are numbers", "NaN");
  }
  if (*std::max_element(logits.begin(), logits.end()) == -std::numeric_limits<double>::infinity()) {
    throw ValueError(kOp, "a logit above -inf", "none");
  }
}

TokenSampler::TokenSampler(const char* op, const std::vector<int64_t>& prompt, int64_t number,
                           int64_t count, const GenerateOptions& options)
    : options_(options),
      text_(prompt),
      prompt_length_(static_cast<int64_t>(prompt.size())),
      number_(number),
      count_(count),
      done_(count == 0) {
  if (prompt.empty()) throw ValueError(op, "a prompt of at least one token", "none");
  check_not_negative(op, "a count", count);
  check_options(op, options);
}

std::vector<int64_t> TokenSampler::new_tokens() const {
  return {text_.begin() + prompt_length_, text_.end()};
}

void TokenSampler::append(std::vector<double> logits) { push(choose(logits)); }

bool TokenSampler::takes_likeliest() const {
  return options_.temperature == 0 && options_.repetition_penalty == 1;
}

void TokenSampler::append_likeliest(int64_t token) {
  if (token < 0)
    throw ValueError(kOp, "logits without NaN, at least one above -inf", "NaN, or only -inf");
  push(token);
}

void TokenSampler::push(int64_t token) {
  text_.push_back(token);
  const auto& stops = options_.stop_tokens;
  done_ = static_cast<int64_t>(text_.size()) - prompt_length_ == count_ ||
          std::find(stops.begin(), stops.end(), token) != stops.end();
  if (options_.on_token && !options_.on_token(token, number_)) done_ = true;
}

int64_t TokenSampler::choose(std::vector<double>& logits) const {
  check_logits(logits);
  penalize_repetition(logits, text_, options_.repetition_penalty);
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options_.temperature == 0) return likeliest - logits.begin();
  const double largest = *likeliest;
  Candidates left{std::vector<size_t>(logits.size()), std::move(logits)};
  std::iota(left.tokens.begin(), left.tokens.end(), size_t{0});
  for (double& x : left.weights) {
    x = x == largest ? 1 : std::exp((x - largest) / options_.temperature);  // also of infinities
  }
  if (options_.top_k > 0) left.keep_top_k(static_cast<size_t>(options_.top_k));
  if (options_.top_p < 1) left.keep_top_p(options_.top_p);
  if (options_.min_p > 0) {
    std::erase_if(left.tokens, [&](size_t token) { return left.weights[token] < options_.min_p; });
  }
  const auto step = static_cast<uint64_t>(text_.size()) - static_cast<uint64_t>(prompt_length_);
  const uint64_t draw = static_cast<uint64_t>(number_) << 32 | step;
  return static_cast<int64_t>(
      left.draw(uniform_from_bits<double>(philox(options_.seed, draw).lane[0])));
}

}  // namespace sash::nn
