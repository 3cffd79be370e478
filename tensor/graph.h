#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "../core/backend/device.h"
#include "tensor.h"

namespace sash {

namespace detail {
struct GraphState;
}

/// The work that this thread queues on a device, recorded once and run any number of times (a CUDA
/// graph: one launch for a whole training step). `optim::CapturedStep` is built on it.
///
///     Graph graph(device);  // from here on work is recorded, and does not run
///     ...                   // forward, backward, optimizer.step()
///     graph.end();
///     graph.replay();       // runs all of it
///
/// - Memory that was allocated while recording belongs to the graph. Tensors made then hold the
///   results of the last replay, and stay valid when the graph is gone.
/// - Each replay draws the next numbers of the generator that the recorded call used: the device's,
///   a `GeneratorGuard`'s, or a `Generator` from before the recording. A replay reserves all its
///   numbers at once: threads that draw at the same time never get the same numbers. A graph that
///   drew under a guard fits under this guard only; a graph that drew without a guard, without one.
/// - A replay leaves the gradients of leaves as the recorded call did: defined or undefined, summed
///   or new.
/// - Code on the host is not repeated. Calls that need the host throw during the recording: copies
///   from and to the host (`item`), `manual_seed`, `Optimizer::set_lr`, draws of a new `Generator`.
/// - Other threads may use the device while it is recorded. A graph is for one thread at a time.
class SASH_API Graph {
 public:
  /// Starts recording. `NotImplemented` on the CPU; `ValueError` if this thread is recording
  /// already.
  explicit Graph(Device device);
  /// An unfinished recording is undone: random numbers and gradients are as before it.
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Ends the recording; random numbers and gradients are then as before it. Throws what made the
  /// backend give up.
  void end();

  /// Whether leaves have moved since (`Module::to`), or an optimizer has loaded another state.
  bool outdated() const;
  /// Whether a replay would do what a call would: not outdated, seeds and the guard are the same,
  /// generators exist, and gradients that the graph reads or adds to are undefined, or where they
  /// were.
  bool fits() const;
  /// Queues the recorded work on the current stream. `ValueError` unless it `fits`.
  void replay();

  /// Whether this thread is recording a graph.
  static bool recording();

 private:
  void undo() noexcept;
  Owned<detail::GraphState> state_;
};

/// Calls of the library while a graph is recorded. Without a recording, each does nothing.
namespace detail {

/// Call before the gradient of a leaf is replaced, or if `reads`, read or added to.
SASH_API void note_gradient(TensorImpl& leaf, bool reads);
/// `ValueError` of `op`: "expected `expected` while a graph is recorded, got `got`".
SASH_API void refuse_in_graph(std::string_view op, const char* expected, const char* got);
/// Each replay of the graph will call `before` and `after`: effects on the host that an eager call
/// also has.
SASH_API void on_replay(std::function<void()> before, std::function<void()> after);
/// Keeps the memory of `x` for replays: recorded work reads `x`, and its owner may replace it.
SASH_API void keep_for_replays(const Tensor& x);
/// Call when tensors that graphs may use are replaced: no graph that exists now will fit.
SASH_API void outdate_graphs();

/// What this thread queues on `device` while the object lives becomes a branch of the graph: a
/// replay may run it beside what is queued later.
class SASH_API GraphBranch {
 public:
  explicit GraphBranch(Device device);
  /// Keeps the tensors that the branch reads or makes until `join_branches`. Before that, nothing
  /// may write to tensors that the branch reads, or use tensors that it makes.
  void keep(const Tensor& x);
  void end();
  ~GraphBranch();
  GraphBranch(const GraphBranch&) = delete;
  GraphBranch& operator=(const GraphBranch&) = delete;

 private:
  GraphState* graph_;  ///< null if none is recorded on the device
  std::vector<Tensor> kept_;
};

/// Work that is queued from now on runs after all branches.
SASH_API void join_branches();

}  // namespace detail
}  // namespace sash
