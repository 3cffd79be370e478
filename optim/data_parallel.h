#pragma once

#include <cstdint>
#include <memory>

#include "../nn/module.h"
#include "../tensor/distributed/group.h"
#include "optimizer.h"

namespace sash::optim {

struct DataParallelOptions {
  int64_t bucket_bytes = 25 << 20;  ///< gradients that are reduced as one operation
  bool allow_unused = false;  ///< permits parameters that a backward pass does not reach; this
                              ///< costs a wait in each pass
};

/// Trains one model on all ranks of a group, each with its own part of each batch:
///
///     const distributed::Group group = distributed::world();
///     optim::DataParallel parallel(model, group);
///     for (...) {
///       optimizer.zero_grad();
///       cross_entropy(model(tokens), targets).backward();  // of this rank's part of the batch
///       optimizer.step();
///     }
///
/// The constructor gives all ranks the parameters and buffers of rank 0. After each backward pass
/// `grad` is the mean of the ranks' gradients, in the gradients' dtype. Gradients are reduced in
/// buckets while the pass runs, on a stream of their own; in a captured step too. The first pass
/// finds the order in which gradients become complete, and reduces at its end. Results have the
/// same bits on all ranks and in each run. On the CPU with 2, 4, 8, ... ranks they are those of one
/// process that accumulates the ranks' losses, divided by their number, in the order of ranks.
///
/// In a group of one nothing happens. Destroying the object ends the reductions.
class SASH_API DataParallel {
 public:
  /// `ValueError` if the model has no parameter that requires grad, if parameters or buffers of a
  /// rank have other names, shapes or dtypes, or for `bucket_bytes` below 1.
  DataParallel(nn::Module& model, const distributed::Group& group,
               const DataParallelOptions& options = {});

  /// Whether backward passes reduce; true at first. To accumulate, reduce in the last pass only:
  /// the mean is then that of the accumulated gradients.
  void set_reduce(bool reduce);
  /// Shares the optimizer's state between the ranks (`Optimizer::shard`), and from now on leaves
  /// each rank its part of a gradient alone: the optimizer has it, and `grad` is undefined after a
  /// backward pass that reduces. Parameters that the optimizer does not have, and those that it
  /// does not split, are reduced as before. The optimizer must outlive this object, and must not be
  /// moved.
  void shard(Optimizer& optimizer);
  /// Replaces floating buffers, such as the statistics of `BatchNorm`, by their means over the
  /// ranks, and other buffers by rank 0's.
  void average_buffers();
  /// `ValueError` that names the parameters and buffers whose bits differ from rank 0's, and the
  /// ranks. It copies all to the host.
  void check_equal() const;

  const distributed::Group& group() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sash::optim
