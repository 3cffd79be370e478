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
  std::string type;  ///< the result of `describe()`: "Linear(4 -> 16)"
  int64_t depth = 0;
  int64_t calls = 0;                    ///< how often it was called
  std::vector<Shape> inputs{};          ///< tensors of its first call
  std::optional<Shape> output{};        ///< of its first call; none if it was not called
  std::optional<DType> output_dtype{};  ///< of this output
  int64_t output_bytes = 0;             ///< of all its calls, without the modules below
  int64_t parameters = 0;               ///< elements, each parameter once
  int64_t trainable = 0;                ///< elements that require grad
  int64_t parameter_bytes = 0;
  double flops = 0;  ///< additions and multiplications of products: `operation_count`
  /// The share of attention's scores that lie in blocks which its mask lists; none without
  /// attention.
  std::optional<double> mask_share{};
};

/// The modules of a forward pass through a model.
struct Summary {
  std::vector<SummaryRow> rows{};  ///< the model first, parents before their children
  int64_t buffer_bytes = 0;
  /// The bytes that a recorded forward pass leaves in use: the result, and all that the backward
  /// pass needs.
  int64_t kept_bytes = 0;

  const SummaryRow& model() const { return rows.front(); }
};

/// Runs `model(input)` twice and reports each module:
///
///     std::cout << nn::summary(model, randn({1, 3, 32, 32}));
///
/// Counts are those of evaluation mode. In the first run, modules that their parents otherwise fuse
/// run one by one. The second run is fused and measures `kept_bytes`; no other thread may allocate
/// during it. Modes, random state and gradients stay unchanged. `ValueError` while an
/// `optim::Profiler` runs; throws what the model throws.
SASH_API Summary summary(Module& model, const Tensor& input);
/// For several inputs: `summary(model, [&] { return model(source, target); })`
SASH_API Summary summary(Module& model, const std::function<Tensor()>& forward);

/// A table of the rows, and the sums below it.
SASH_API std::string to_string(const Summary& summary);
SASH_API std::ostream& operator<<(std::ostream& out, const Summary& summary);

}  // namespace sash::nn
