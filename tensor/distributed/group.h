#pragma once

#include <memory>
#include <vector>

#include "../../core/distributed/engine.h"
#include "../tensor.h"

/// Training with several processes, each with a card or with CPU cores of its own. A launcher
/// (torchrun, mpirun, srun, `sash launch`) starts the same program several times; each process is a
/// rank. docs/several_gpus.md is the guide.
namespace sash::distributed {

/// Ranks that work together. All ranks of a group make the same calls in the same order, with
/// tensors of the same shapes, dtypes and kind of device: a call waits for the others for ever
/// otherwise. In a group of one rank every call is trivial, so the same program runs alone.
///
/// Tensors are contiguous. On CUDA a call queues work on the current stream, and may be part of a
/// captured step; NCCL does it. On the CPU MPI does, and the call returns when the work is done.
/// For the same number of ranks results have the same bits in each run. The CPU adds in the order
/// of ranks.
///
/// Nothing is recorded on the tape. Errors of every call: `ValueError` for an undefined tensor, one
/// that is not contiguous, and a rank out of range; `DTypeError` for the sum of booleans or the
/// mean of integers; `AutogradError` for writing to a tensor that requires grad, unless a
/// `NoGradGuard` is on; `NotImplemented` that says what is missing: NCCL, MPI, or the launcher that
/// starts MPI.
///
/// A copy is the same group.
class SASH_API Group {
 public:
  /// This process alone.
  Group();

  int rank() const;  ///< number of this process in the group, from 0
  int size() const;  ///< ranks of the group

  /// Replaces the elements of x by the sum (mean, minimum, maximum) over the ranks.
  void all_reduce(const Tensor& x, ReduceOp reduction = ReduceOp::sum) const;
  /// The same for several tensors of one device, as one operation.
  void all_reduce(const std::vector<Tensor>& all, ReduceOp reduction = ReduceOp::sum) const;
  /// The same for a number, by a float64 tensor on the device of the group's first collective. If
  /// there was none: on the default device, or a card if the CPU has no MPI.
  double all_reduce(double value, ReduceOp reduction = ReduceOp::sum) const;

  /// x [size * n, ...] -> [n, ...]: rows [rank * n, (rank + 1) * n) of the sum over the ranks.
  /// `ShapeError` if the first axis is no multiple of the size.
  Tensor reduce_scatter(const Tensor& x, ReduceOp reduction = ReduceOp::sum) const;
  /// x [n, ...] -> [size * n, ...]: the tensors of all ranks, one behind another.
  Tensor all_gather(const Tensor& x) const;

  /// In place, for tensors whose elements are `size` equal parts, one of each rank. After
  /// `reduce_scatter_` the part of this rank is reduced, and the other parts are undefined.
  /// `all_gather_` fills the other parts. `ShapeError` if the size does not divide the elements.
  void reduce_scatter_(const std::vector<Tensor>& all, ReduceOp reduction = ReduceOp::sum) const;
  void all_gather_(const std::vector<Tensor>& all) const;

  /// Replaces the elements of x by those of rank `root`.
  void broadcast(const Tensor& x, int root = 0) const;
  void broadcast(const std::vector<Tensor>& all, int root = 0) const;

  /// A tensor for a rank, or of one.
  struct Parcel {
    int rank;
    Tensor tensor;
  };
  /// Sends and receives at once; elements of received tensors are replaced. Each tensor that a rank
  /// sends to another one, the other one receives in the same call.
  void exchange(const std::vector<Parcel>& sent, const std::vector<Parcel>& received) const;
  void send(const Tensor& x, int to) const { exchange({{to, x}}, {}); }
  void receive(const Tensor& x, int from) const { exchange({}, {{from, x}}); }

  /// Returns once all ranks have called it and their earlier work on that device is done.
  void barrier() const;

  /// The group of the ranks that pass the same color, in the order of their ranks here. All ranks
  /// call it; the new groups work on that device. A grid of 2 x 4 from 8 ranks:
  ///
  ///     Group data = world.split(world.rank() % 4), sequence = world.split(world.rank() / 4);
  ///
  /// `ValueError` for a negative color.
  Group split(int color) const;

 private:
  friend SASH_API Group world();
  struct State;
  explicit Group(std::shared_ptr<State> state) : state_(std::move(state)) {}
  template <class Call>
  void call(const char* op, const std::vector<Tensor>& all, Call run, bool collective = true) const;

  std::shared_ptr<State> state_;
};

/// The group of all ranks of the job, or of this process alone if no launcher started it. The first
/// call connects the ranks: `IoError` if some are missing after 60 s, `ValueError` for variables
/// that no launcher sets so.
///
/// From then on all ranks end together: if one ends with an exception that nobody catches or with a
/// status other than 0, is killed, or is silent for 8 s (SASH_TIMEOUT), the others print one line
/// that names the rank, and end with status 1.
///
/// The device "cuda" is the card of the process's LOCAL_RANK.
SASH_API Group world();

}  // namespace sash::distributed
