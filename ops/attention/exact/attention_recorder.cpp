#include "attention_recorder.h"

#include "../../../tensor/autograd/grad_mode.h"
#include "../../../tensor/autograd/recompute.h"

namespace sash {
namespace {
thread_local AttentionRecorder* newest = nullptr;
}  // namespace

AttentionRecorder::AttentionRecorder() : outer_(newest) { newest = this; }

AttentionRecorder::~AttentionRecorder() { newest = outer_; }

bool AttentionRecorder::active() { return newest != nullptr; }

void AttentionRecorder::notify(const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  if (!newest || recomputing()) return;
  const NoGradGuard no_grad;
  AttentionOptions without_dropout = options;
  without_dropout.dropout = 0;
  newest->weights_.push_back(attention_probabilities(q, k, without_dropout));
}

}  // namespace sash
