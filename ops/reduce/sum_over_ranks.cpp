#include "sum_over_ranks.h"

#include "../op.h"

namespace sash {

Tensor sum_over_ranks(const Tensor& x, const distributed::Group& ranks) {
  check_defined("sum_over_ranks", x);
  Tensor y;
  {
    const NoGradGuard no_grad;
    y = x.detach().contiguous().clone();
    ranks.all_reduce(y);
  }
  return record("sum_over_ranks", {x}, y, [ranks](Backward&, const Tensor& g) {
    return Gradients{sum_over_ranks(g, ranks)};
  });
}

}  // namespace sash
