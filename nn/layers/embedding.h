#pragma once

#include "../module.h"

namespace sash::nn {

/// y = weight[index]: int64 indices of any shape [...] give [..., dim].
///
/// Parameter: `weight` [count, dim], N(0, 1) at first.
class SASH_API Embedding : public Module {
 public:
  /// `ValueError` unless both extents are positive.
  Embedding(int64_t count, int64_t dim);

  /// `DTypeError` unless index is int64; `IndexError` for one outside [0, count).
  Tensor forward(const Tensor& index) override;
  std::string describe() const override;

  Tensor weight;
};

}  // namespace sash::nn
