#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "../../core/shape.h"

/// How an equation of `einsum` is computed for operands of given shapes.
namespace sash::detail {

struct EinsumPlan {
  /// The first operations on an operand.
  struct Start {
    struct Diagonal {
      int first, second;  ///< axes that become one axis, at the place of `first`
    };
    std::vector<Diagonal> diagonals;
    Dims sums;  ///< axes that neither another operand nor the result has
  };
  /// The operands at two places become one, at the end of the list. Permuted, the left one has the
  /// axes [both, left, inner] and the right one [both, inner, right]; inner axes are summed over.
  struct Step {
    size_t left, right;
    Dims left_order, right_order;
    int both, left_only, right_only;
  };

  std::vector<Start> starts;
  std::vector<Step> steps;
  Dims result_order;
};

/// Returns the plan. It is made at the first call and kept. Throws as `einsum` does.
std::shared_ptr<const EinsumPlan> einsum_plan(const std::string& equation,
                                              const std::vector<Shape>& shapes);

}  // namespace sash::detail
