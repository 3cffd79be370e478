#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "../../core/backend/device.h"
#include "../../ops/attention/exact/attention.h"
#include "../../tensor/distributed/group.h"

namespace sash {

namespace distributed {
class SideStream;
}

namespace nn {

class Module;

/// Splits sequences over the ranks of a group: rank r has tokens [r S, (r + 1) S), its stretch, of
/// a sequence of size * S tokens. Layers that treat each token alone (linear layers, norms, MLPs)
/// run on the stretch as they are. Attention needs the other stretches too:
///
///     const nn::SequenceParallel split(group, tokens.size(1));
///     split.apply(model);  // its attention is over the whole sequence from now on
///     const Tensor loss = model.loss(tokens, split.next_tokens(tokens, 1), {}, {},
///                                    split.positions(tokens.size(0)));
///
/// or, in a module of your own, `split.attention(q, k, v, {.mask = ...})`.
///
/// All calls are collectives, forward and backward. Gradients travel back to the ranks that own the
/// keys, in an order that depends on the ranks alone. A loss that is the mean over a stretch, and
/// `optim::DataParallel` over the same group, give the gradient of the mean over the sequence.
class SASH_API SequenceParallel {
 public:
  /// `length` is S, the same on all ranks (`ValueError`) and at least 1.
  SequenceParallel(const distributed::Group& group, int64_t length);

  int64_t length() const { return length_; }
  /// Position of this rank's first token in the sequence.
  int64_t offset() const { return group_.rank() * length_; }
  /// Tokens of the sequence.
  int64_t total() const { return group_.size() * length_; }

  /// This rank's stretch of x along `axis`, of `total` elements. A view.
  Tensor stretch(const Tensor& x, int axis) const;
  /// int64 [batch, S] on `device`: the positions of this rank's tokens in the sequence.
  Tensor positions(int64_t batch, Device device = default_device()) const;
  /// The labels of a language model whose tokens are x: element i along `axis` is element i + 1 of
  /// the sequence. The last rank's last label is `last`, which losses ignore.
  Tensor next_tokens(const Tensor& x, int axis, int64_t last = -100) const;
  /// What this rank sees of a sequence whose stretch is x, of S elements along `axis`: `before`
  /// elements in front of the stretch, the stretch, `after` elements behind it, as many as there
  /// are, and the first `first` elements of the sequence, each element once and in order. Parts may
  /// come from several ranks. Differentiable, any number of times. `ShapeError` unless the axis has
  /// S elements, `ValueError` for a negative count.
  Tensor halo(const Tensor& x, int axis, int64_t before, int64_t after, int64_t first = 0) const;

  /// Makes the attention of the model's `MultiheadAttention`s and `BlockAttention`s that over the
  /// whole sequence (`attention` below, with their masks). The model's inputs are stretches from
  /// now on, and its positions are given by call. `NotImplemented` for an attention kind that is no
  /// mask.
  void apply(Module& model) const;

  /// `sash::attention` over the whole sequence, for the queries of this stretch: q [B, H, S, D], k
  /// [B, H_kv, S, D] and v [B, H_kv, S, D_v] give [B, H, S, D_v]. The mask is that of the sequence,
  /// and so are the lengths, texts and biases in the options.
  ///
  /// | mask | what travels |
  /// | --- | --- |
  /// | a window | the keys and values that it shows of other stretches, the halo, while the rank
  /// attends to its own | | a causal window with sinks | the same, and the first keys | | all
  /// others, `causal()` among them | all: each rank gets an equal part of the heads for the whole
  /// sequence (Jacobs et al., "DeepSpeed Ulysses", 2023) |
  ///
  /// To split heads, H must be a multiple of the ranks, and H_kv or the ranks of the other.
  /// Otherwise `causal()` takes all keys before the stretch as halo, and other masks are
  /// `NotImplemented`. Each rank draws its own dropout.
  Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                   const AttentionOptions& options = {}) const;

 private:
  struct Plan;
  std::optional<Plan> plan_for(const AttentionOptions& options) const;
  AttentionOptions own_heads(const AttentionOptions& options, int64_t heads) const;
  Tensor attention_with_halo(const Tensor& q, const Tensor& k, const Tensor& v,
                             const AttentionOptions& options, const Plan& plan) const;

  distributed::Group group_;
  int64_t length_;
  std::shared_ptr<std::shared_ptr<distributed::SideStream>>
      side_;  ///< of all copies; made by the first call
};

/// A module whose attention `SequenceParallel::apply` can make that over a split sequence.
class SASH_API SplitAttention {
 public:
  virtual ~SplitAttention() = default;
  /// Throws if it cannot.
  virtual void set_sequence(const SequenceParallel& sequence) { sequence_ = sequence; }

 protected:
  Tensor attend_over_sequence(const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttentionOptions& options) const {
    return sequence_ ? sequence_->attention(q, k, v, options) : attention(q, k, v, options);
  }
  /// `NotImplemented` of `op` if the sequence is split.
  void refuse_split(const char* op, const char* what) const;

 private:
  std::optional<SequenceParallel> sequence_{};
};

}  // namespace nn
}  // namespace sash
