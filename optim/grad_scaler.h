#pragma once

#include <cstdint>
#include <vector>

#include "optimizer.h"

namespace sash::optim {

/// PyTorch's defaults.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
};

/// Multiplies losses by a factor so that gradients do not vanish in float16 (Micikevicius et al.,
/// "Mixed precision training", 2018), and adapts the factor:
///
///     scaler.scale(loss).backward();
///     scaler.step(optimizer);
///     scaler.update();
///
/// The optimizer divides the gradients by the scale while it reads them, and then clips them
/// (`max_grad_norm`). If one is NaN or infinite, the step changes nothing and does not count.
/// `update` multiplies the scale by `backoff_factor` after such a step, and by `growth_factor`
/// after `growth_interval` good steps in a row, unless the result is infinite. All of this happens
/// on the device; the host does not wait. bfloat16 has float32's range and needs no scaler.
class SASH_API GradScaler {
 public:
  /// `ValueError` unless init_scale and growth_interval are positive, growth_factor is above 1, and
  /// backoff_factor lies in (0, 1).
  explicit GradScaler(const GradScalerOptions& options = {});

  /// loss times the scale (recorded).
  Tensor scale(const Tensor& loss);
  /// A step of `optimizer` on gradients of a scaled loss. `ValueError` for a second step of the
  /// same optimizer before `update`.
  void step(Optimizer& optimizer);
  /// Sets the scale for the next step. Call it once, after the steps of all optimizers.
  /// `ValueError` if there was no step.
  void update();
  /// The scale; waits for the device.
  double get_scale() const { return scale_.item<double>(); }

  /// `scale` and `growth_tracker`, the good steps since the scale last changed: float64 scalars.
  StateDict state_dict() const;
  /// `ValueError` for other keys or shapes, a scale that is not positive and finite, or
  /// a negative growth_tracker; nothing is loaded then.
  void load_state_dict(const StateDict& dict);
  void check_state_dict(const StateDict& dict) const;

 private:
  void move_to(Device device);

  GradScalerOptions options_;
  Tensor scale_, growth_tracker_;            // float64, on the device of the last loss
  Tensor bad_steps_;                         // since the last update
  std::vector<const Optimizer*> stepped_{};  // since then
  bool in_graph_ = false;  // whether a step or update was recorded: replays do not call them
};

}  // namespace sash::optim
