#pragma once

#include <span>
#include <string>

#include "node.h"

namespace sash {

/// Anomaly mode: every recorded op, forward and backward, is checked for NaN it made itself (its
/// inputs had none), and notes the call stack it was recorded on. The first NaN throws
/// `AutogradError` that names the op and shows that stack. The old elements of an in-place op count
/// as an input. A NaN of the data, or of an op that was not recorded, throws nothing. Slow: it
/// copies every result to the host.
SASH_API bool anomaly_mode();
SASH_API void set_anomaly_mode(bool enabled);

/// Anomaly mode for a scope: it is on, for all threads, while there is a guard or it is set.
class SASH_API AnomalyGuard {
 public:
  AnomalyGuard();
  ~AnomalyGuard();
  AnomalyGuard(const AnomalyGuard&) = delete;
  AnomalyGuard& operator=(const AnomalyGuard&) = delete;
};

/// The first op since anomaly mode was switched on that made an infinity from inputs without one,
/// such as "exp" or "gradient of log"; empty if there was none. An infinity does not throw, because
/// masks have infinities.
SASH_API std::string first_infinity();

/// Whether any element is NaN; false for integers. Waits for the device.
SASH_API bool has_nan(const Tensor& tensor);

namespace detail {
/// Called by `record` in anomaly mode: notes the stack, and throws if an output has a NaN and no
/// input has.
SASH_API void note_recording(Node& node, Inputs inputs, std::span<const Tensor> outputs);
/// Called by `check_in_place` in anomaly mode: notes whether the old elements of `self` have a NaN.
SASH_API void note_old_elements(const Tensor& self);
/// `note_recording` for an op that wrote to `self` after `note_old_elements`.
SASH_API void note_recording_in_place(Node& node, Inputs inputs, const Tensor& self);
/// Called by the backward pass in anomaly mode, with the inputs and the results of `node`.
SASH_API void check_gradients(const Node& node, std::span<const Tensor> incoming,
                              std::span<const Tensor> gradients);
}  // namespace detail

}  // namespace sash
