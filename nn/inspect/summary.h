#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "../module.h"

namespace sash::nn {

/// A module of a model. All counts but `calls` include the modules below it.
struct SummaryRow {
  std::string name;  ///< the full name, "layers.0.norm1"; "" for the model
  std::string type;  ///< what `describe()` says: "Linear(4 -> 16)"
  int64_t depth = 0;
  int64_t calls = 0;                    ///< made of it
  std::vector<Shape> inputs{};          ///< tensors of its first call
  std::optional<Shape> output{};        ///< of its first call; none if it was not called
  std::optional<DType> output_dtype{};  ///< of that
  int64_t output_bytes = 0;             ///< of all its own calls
  int64_t parameters = 0;               ///< elements, each parameter once
  int64_t trainable = 0;                ///< of them, those that require grad
  int64_t parameter_bytes = 0;
  double flops = 0;  ///< additions and multiplications of products: `operation_count`
  /// Of the scores of attention, the share that lies in blocks which its mask lists; none without
  /// attention.
  std::optional<double> mask_share{};
};

/// What a forward pass through a model is made of.
struct Summary {
  std::vector<SummaryRow> rows{};  ///< the model first, parents before their children
  int64_t buffer_bytes = 0;
  /// What the device holds more after a recorded forward pass than before it: the result, and all
  /// that the backward pass will need.
  int64_t kept_bytes = 0;

  const SummaryRow& model() const { return rows.front(); }
};

/// Runs `model(input)` twice and says what it did, module by module:
///
///     std::cout << nn::summary(model, randn({1, 3, 32, 32}));
///
/// Counts are those of evaluation mode. Modules that their parents fuse with others run by
/// themselves the first time; `kept_bytes` is measured the second time, fused, and needs that no
/// other thread allocates meanwhile. Modes, random state and gradients stay as they are.
/// `ValueError` while a `Profiler` runs; whatever the model throws.
SASH_API Summary summary(Module& model, const Tensor& input);
/// The same of a model with several inputs: `summary(model, [&] { return model(source, target); })`
SASH_API Summary summary(Module& model, const std::function<Tensor()>& forward);

/// A table of the rows, and the sums below it.
SASH_API std::string to_string(const Summary& summary);
SASH_API std::ostream& operator<<(std::ostream& out, const Summary& summary);

}  // namespace sash::nn
