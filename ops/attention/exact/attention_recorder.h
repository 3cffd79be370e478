#pragma once

#include <vector>

#include "attention.h"

namespace sash {

/// While it lives, keeps the weights of this thread's calls of `attention`, whatever module makes
/// them, to look at:
///
///     AttentionRecorder recorder;
///     model(tokens);
///     optim::plot::heat_map(recorder.weights()[layer].select(0, 0).select(0, head));
///
/// Kinds of attention that have no such weights, such as `linear_attention`, make no entry. For
/// short inputs: a call's weights take S_q x S_k memory.
class SASH_API AttentionRecorder {
 public:
  AttentionRecorder();
  ~AttentionRecorder();
  AttentionRecorder(const AttentionRecorder&) = delete;
  AttentionRecorder& operator=(const AttentionRecorder&) = delete;

  /// [B, H, S_q, S_k] of each call, without dropout and gradients; an outer recorder gets none
  /// meanwhile.
  const std::vector<Tensor>& weights() const { return weights_; }

  /// Whether this thread has one.
  static bool active();
  /// What `attention` tells its thread's recorder, if there is one.
  static void notify(const Tensor& q, const Tensor& k, const AttentionOptions& options);

 private:
  std::vector<Tensor> weights_;
  AttentionRecorder* outer_;
};

}  // namespace sash
