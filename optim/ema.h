#pragma once

#include <cstdint>
#include <vector>

#include "../tensor/io/state_dict.h"
#include "../tensor/tensor.h"

namespace sash::optim {

/// Exponential moving averages of parameters, which often generalise better than the parameters:
///
///     optim::EMA ema(model.parameters(), 0.999);
///     optimizer.step(), ema.update();                       // every step
///     ema.apply(); evaluate(model); ema.restore();
///
/// Averages of halves are float32. They follow parameters that are moved or cast. `regrow_blocks`
/// moves blocks of the averages too.
class SASH_API EMA {
 public:
  /// Starts with the present parameters. `ValueError` for no parameters, an undefined parameter, or
  /// a decay not in [0, 1]; `DTypeError` for a parameter that is not floating.
  explicit EMA(std::vector<Tensor> parameters, double decay = 0.999);

  /// average = decay average + (1 - decay) parameter. `ValueError` between `apply` and `restore`.
  void update();
  /// Replaces the parameters by the averages; `ValueError` the second time.
  void apply();
  /// Restores the parameters; `ValueError` unless averages were applied.
  void restore();
  /// Restarts the averages of some rows of a parameter, its indices `rows` along the first axis,
  /// from the present elements. `ValueError` if the parameter has no average, or between `apply`
  /// and `restore`; `IndexError` for a row outside the parameter.
  void reset(const Tensor& parameter, const std::vector<int64_t>& rows);

  const std::vector<Tensor>& averages() const { return averages_; }
  /// The averages as "0", "1", ..., sharing memory.
  StateDict state_dict() const;
  /// `ValueError` listing keys that are missing or unexpected and shapes that differ; nothing is
  /// loaded then.
  void load_state_dict(const StateDict& dict);

 private:
  void follow();

  std::vector<Tensor> parameters_, averages_, kept_;
  double decay_;
};

}  // namespace sash::optim
