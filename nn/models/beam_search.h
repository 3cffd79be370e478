#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../../tensor/tensor.h"
#include "generation.h"

namespace sash::nn {

/// What a beam search asks of a model. All texts have one length, and all but the first call extend
/// texts of the call before by a token.
struct BeamModel {
  using Texts = std::vector<std::vector<int64_t>>;

  /// Logits [texts, vocab] of the token after each text.
  std::function<Tensor(const Texts& texts)> next;
  /// Text i of the next call extends text `from[i]` of the last call.
  std::function<void(const std::vector<int64_t>& from)> reorder;
};

/// Tokens int64 [texts, n] of texts of one length: the last of each, or all.
Tensor newest_tokens(const BeamModel::Texts& texts, bool all, Device device);

/// The new tokens of the best text after `prompt`, as `GenerateOptions::beams` says. Checks the
/// options that apply to beams alone.
std::vector<int64_t> beam_search(const std::string& op, const std::vector<int64_t>& prompt,
                                 int64_t count, const GenerateOptions& options,
                                 const BeamModel& model);

}  // namespace sash::nn
