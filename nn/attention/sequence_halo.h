#pragma once

#include <memory>
#include <span>
#include <vector>

#include "../../core/range.h"
#include "../../ops/attention/exact/attention.h"
#include "../../tensor/distributed/group.h"
#include "../../tensor/distributed/side_stream.h"

/// What ranks exchange so that attention over split sequences is right.
namespace sash::nn {

/// What the ranks see of a sequence that is split along an axis: each its stretch of `length`
/// elements, `before` elements in front of it, `after` behind it, and the first `first` elements of
/// the sequence.
struct Halo {
  distributed::Group group;
  int axis;
  int64_t length, before, after, first;

  IndexRange own(int rank) const { return {rank * length, (rank + 1) * length}; }
  /// What `rank` sees of other stretches, in ascending order, without overlaps.
  std::vector<IndexRange> needed(int rank) const;
};

/// For each tensor, its needed ranges, from the ranks that own them. One exchange; not recorded.
std::vector<std::vector<Tensor>> fetch(const Halo& halo, std::span<const Tensor> own);

/// A part of a stretch, and a term of its sum.
struct HaloTerm {
  IndexRange place;
  Tensor value;
};
/// The transpose of `fetch`: gives the needed ranges back to their owners. Returns for each tensor,
/// of the shape of `like`, the terms that other ranks have for this stretch, in the order of ranks.
/// One exchange; not recorded.
std::vector<std::vector<HaloTerm>> give(const Halo& halo, std::span<const Tensor> like,
                                        std::span<const std::vector<Tensor>> needed);

/// What this rank sees of the sequence whose stretch is x. Differentiable any number of times.
Tensor with_halo(const Tensor& x, const Halo& halo);

/// Cuts x along axis `from` into a part for each rank, and joins the parts that arrive along `to`.
/// With the axes swapped it is its inverse, and its transpose. Differentiable any number of times.
Tensor all_to_all(const Tensor& x, int from, int to, const distributed::Group& group);

/// Attention under a window of `before` keys in front of a query and `after` behind it, for the
/// stretch of this rank. The own keys take one call, which runs while the halo is on its way. The
/// queries that see keys of other ranks take another call for these, and the results are merged by
/// their log-sum-exps. The options' mask is not read; no dropout, biases or sink logits.
Tensor window_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Halo& halo,
                        const AttentionOptions& options,
                        const std::shared_ptr<distributed::SideStream>& side);

}  // namespace sash::nn
