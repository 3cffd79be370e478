#include "attention_recorder.h"

#include "../../tensor/autograd/grad_mode.h"

namespace sash {
namespace {
thread_local AttentionRecorder* active = nullptr;
}  // namespace

AttentionRecorder::AttentionRecorder() : outer_(active) { active = this; }

AttentionRecorder::~AttentionRecorder() { active = outer_; }

void AttentionRecorder::notify(const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  if (!active) return;
  const NoGradGuard no_grad;
  AttentionOptions without_dropout = options;
  without_dropout.dropout = 0;
  active->weights_.push_back(attention_probabilities(q, k, without_dropout));
}

}  // namespace sash
