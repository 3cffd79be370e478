#pragma once

#include <optional>

#include "../module.h"

namespace sash::nn {

struct EmbeddingOptions {
  /// The row of padding: zeros at first, without a gradient. Negative: from the end.
  std::optional<int64_t> padding_idx{};
  /// False: the weight is undefined until it is loaded.
  bool draw = true;
};

/// y = weight[index]: int64 indices of any shape [...] give [..., dim].
///
/// Parameter: `weight` [count, dim], N(0, 1) at first.
class SASH_API Embedding : public Module {
 public:
  using Options = EmbeddingOptions;

  /// `ValueError` unless both extents are positive, `IndexError` for a `padding_idx` outside
  /// [-count, count).
  Embedding(int64_t count, int64_t dim, const EmbeddingOptions& options = {});

  /// `DTypeError` unless index is int64; `IndexError` for one outside [0, count).
  Tensor forward(const Tensor& index) override;
  /// The rows [first, first + count), such as those of positions, without a copy unless there are
  /// hooks. `IndexError` for rows outside the weight.
  Tensor rows(int64_t first, int64_t count);
  std::string describe() const override;

  Tensor weight;

 private:
  std::optional<int64_t> padding_idx_;
};

}  // namespace sash::nn
