#include "reduction.h"

#include "../reduce/reduce.h"

namespace sash {

Tensor reduced(const Tensor& terms, Reduction reduction) {
  if (reduction == Reduction::none) return terms;
  return reduction == Reduction::mean ? mean(terms) : sum(terms);
}

}  // namespace sash
