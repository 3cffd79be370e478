#pragma once

#include <cstdint>

#include "../../ops/attention/exact/attention.h"
#include "../../tensor/distributed/group.h"

namespace sash::nn {

/// Splits sequences over the ranks of a group: rank r has tokens [r S, (r + 1) S), its stretch, of
/// a sequence of size * S tokens. Layers that treat each token alone (linear layers, norms, MLPs)
/// run on the stretch as they are. Attention needs keys and values of other ranks, the halo:
///
///     nn::SequenceParallel split(group, tokens.size(1));
///     const Tensor x = embedding(tokens) + positions(arange(split.length()) + split.offset());
///     const Tensor y = split.attention(q, k, v, {.mask = AttentionMask::causal_window(1024)});
///
/// All calls are collectives, forward and backward. Gradients of the halo travel back to the ranks
/// that own it, in an order that depends on the ranks alone. A loss that is the mean over a
/// stretch, and `optim::DataParallel` over the same group, give the gradient of the mean over the
/// sequence.
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
  /// What this rank sees of a sequence whose stretch is x, of S elements along `axis`: `before`
  /// elements in front of the stretch, the stretch, `after` elements behind it, as many as there
  /// are, and the first `first` elements of the sequence, each element once and in order. Parts may
  /// come from several ranks. Differentiable, any number of times. `ShapeError` unless the axis has
  /// S elements, `ValueError` for a negative count.
  Tensor halo(const Tensor& x, int axis, int64_t before, int64_t after, int64_t first = 0) const;

  /// The labels of a language model whose tokens are x: element i along `axis` is element i + 1 of
  /// the sequence. The last rank's last label is `last`, which losses ignore.
  Tensor next_tokens(const Tensor& x, int axis, int64_t last = -100) const;

  /// `sash::attention` over the whole sequence, for the queries of this stretch: q [B, H, S, D], k
  /// [B, H_kv, S, D] and v [B, H_kv, S, D_v] give [B, H, S, D_v]. The mask is that of the sequence.
  ///
  /// A window takes its width as halo, `AttentionMask::causal()` all keys before, and sinks the
  /// first keys. `NotImplemented` for other masks, for a bias, and for a relative bias or ALiBi
  /// with sinks. Each rank draws its own dropout.
  Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                   const AttentionOptions& options = {}) const;

 private:
  struct Plan;
  Plan plan_for(const AttentionOptions& options) const;

  distributed::Group group_;
  int64_t length_;
};

}  // namespace sash::nn
