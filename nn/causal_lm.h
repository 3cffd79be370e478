#pragma once

#include <cstdint>
#include <vector>

#include "embedding.h"
#include "transformer.h"

namespace sash::nn {

struct CausalLMOptions {
  int64_t vocab = 0;
  int64_t context = 0;  ///< most tokens the model can see at once
  int64_t dim = 128;
  int64_t heads = 4;
  int64_t layers = 4;
  int64_t feedforward = 0;  ///< 0 means 4 dim
  double dropout = 0;
  bool tie_weights = false;  ///< the head shares the weight of the token embedding
  /// What a position may attend to; combined with `causal()`, or it is no causal model.
  AttentionMask mask = AttentionMask::causal();
};

/// How `generate` chooses among the logits.
struct SamplingOptions {
  double temperature = 1;  ///< 0 takes the likeliest token
  int64_t top_k = 0;       ///< sample among the k likeliest; 0 means all
  uint64_t seed = 0;       ///< of its own generator; the training's is left alone
};

/// A decoder-only language model with learnt positions and pre-norm GELU layers (Radford et al.,
/// "Language models are unsupervised multitask learners", 2019).
///
/// Children: `token_embedding`, `position_embedding`, `dropout`, `layers`, `norm`, `head` (without
/// bias). Weights start as N(0, 0.02^2), those of the projections into the residual stream
/// N(0, 0.02^2 / (2 layers)); biases are 0.
class SASH_API CausalLM : public Module {
 public:
  /// `ValueError` unless the extents are positive, heads divides dim, and dropout lies in [0, 1].
  explicit CausalLM(const CausalLMOptions& options);

  /// Logits [B, T, vocab] of the token after each of tokens [B, T] int64. `ShapeError` for another
  /// rank or T > context, `DTypeError` unless int64, `IndexError` for a token outside the
  /// vocabulary.
  Tensor forward(const Tensor& tokens) override;

  /// `count` tokens after `prompt`, sampled one by one in evaluation mode without recording; each
  /// sees the last `context` tokens. `ValueError` for an empty prompt or a negative count,
  /// temperature or top_k; `IndexError` for a token outside the vocabulary.
  std::vector<int64_t> generate(const std::vector<int64_t>& prompt, int64_t count,
                                const SamplingOptions& options = {});

  int64_t vocab() const { return options_.vocab; }
  int64_t context() const { return options_.context; }

 private:
  void initialise();

  CausalLMOptions options_;

 public:
  Embedding& token_embedding;
  Embedding& position_embedding;
  Dropout& dropout;
  ModuleList<TransformerEncoderLayer>& layers;
  LayerNorm& norm;
  Linear& head;
};

}  // namespace sash::nn
