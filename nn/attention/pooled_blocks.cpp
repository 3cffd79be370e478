#include "pooled_blocks.h"

#include "../../ops/elementwise/compare.h"
#include "../../ops/reduce/reduce.h"
#include "../../ops/shape/rearrange.h"
#include "../../tensor/factories.h"

namespace sash::nn {

AttentionMask selected_blocks(const Tensor& index, int64_t block, const Tensor& q,
                              const Tensor& k) {
  const NoGradGuard no_grad;
  const Tensor blocks = arange((k.size(2) + block - 1) / block, {.device = k.device()});
  const Tensor chosen = any(eq(index.to(DType::int64).unsqueeze(-1), blocks), {3});
  const Tensor keys = repeat_interleave(chosen, block, 3).narrow(3, 0, k.size(2));
  return AttentionMask(repeat_interleave(keys, q.size(1) / index.size(1), 1));
}

}  // namespace sash::nn
