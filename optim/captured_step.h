#pragma once

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "../core/backend/device.h"
#include "../tensor/tensor.h"

namespace sash::optim {

struct CapturedStepOptions {
  std::optional<Device> device{};  ///< where the step runs; `default_device()` if not set
  bool capture = true;             ///< false: every call runs eagerly
};

/// A training step that is recorded once, as a CUDA graph, and then run by a single launch:
///
///     optim::CapturedStep step([&](const std::vector<Tensor>& batch) {
///       optimizer.zero_grad();
///       const Tensor loss = cross_entropy(model(batch[0]), batch[1]);
///       loss.backward();
///       optim::clip_grad_norm_(model.parameters(), 1.0);
///       optimizer.step();
///       return loss;
///     });
///     for (...) {
///       optimizer.set_lr(schedule(i));
///       const Tensor loss = step({tokens, targets});
///     }
///
/// Results have the same bits as direct calls of the function, and random numbers, learning rate,
/// gradients and step counts change in the same way. A step may be any part of training: several
/// backward passes that accumulate, `checkpoint`, or only the forward and backward pass, with
/// another step for the update.
///
/// The first call with inputs of some shapes and dtypes runs eagerly, so that nothing is set up
/// during a recording; the second records. Calls that cannot be recorded run eagerly (`reason`), as
/// do all calls on the CPU. If a recording fails, it is undone and tried once more.
///
/// A replay does not run the function. So code on the host, such as counting, is not repeated, and
/// values that the function read on the host stay the same: a module's `train` mode, a dropout
/// probability, `weight_decay`. Call `reset` after changing such a value. Tensors that the function
/// uses must stay in place. After moved parameters (`Module::to`), a loaded optimizer state or a
/// new seed, the step is recorded again. The function must not write to its inputs. All members of
/// a step that was moved from throw `ValueError`.
class SASH_API CapturedStep {
 public:
  using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

  /// `fn(inputs)` returns the loss, or a vector of results with the loss first. `ValueError` if it
  /// is empty.
  explicit CapturedStep(Function fn, const CapturedStepOptions& options = {});
  explicit CapturedStep(std::function<Tensor(const std::vector<Tensor>& inputs)> fn,
                        const CapturedStepOptions& options = {});
  ~CapturedStep();
  CapturedStep(CapturedStep&&) noexcept;
  CapturedStep& operator=(CapturedStep&&) noexcept;

  /// Runs the step, and returns its first result, detached. The function sees the inputs on the
  /// step's device, contiguous. Throws what the function throws.
  Tensor operator()(const std::vector<Tensor>& inputs);
  /// All results of the last call, detached. Later calls do not change them.
  const std::vector<Tensor>& results() const;

  /// Why the last call ran eagerly; empty if it was recorded or replayed.
  const std::string& reason() const;
  /// The number of graphs recorded so far. A graph depends on the shapes and, if it adds to
  /// gradients, on which gradients exist when it starts.
  int64_t captures() const;
  /// Drops all graphs: the next call runs eagerly.
  void reset();

 private:
  struct State;
  Owned<State> state_;
};

}  // namespace sash::optim
