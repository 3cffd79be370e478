#pragma once

#include <memory>
#include <vector>

#include "mask_part.h"

namespace sash {

/// An expression whose parts are bound to lengths; answers as `MaskRule` does.
class BoundMask {
 public:
  BoundMask(const MaskTerm& term, const MaskShape& shape);

  /// Ascending ranges that hold every key the queries see; may be conservative.
  KeyRanges key_ranges(MaskHead head, IndexRange queries) const;
  Coverage coverage(MaskHead head, IndexRange queries, IndexRange keys) const;
  uint64_t row_bits(MaskHead head, int64_t query, int64_t key) const;

 private:
  // Postfix order: an operator takes the last two results.
  struct Step {
    MaskTerm::Kind kind;
    std::unique_ptr<MaskRule> rule;  // null for an operator
  };
  void add(const MaskTerm& term, const MaskShape& shape);

  std::vector<Step> steps_;
};

}  // namespace sash
