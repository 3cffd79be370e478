#include "block_indexer.h"

#include <cmath>
#include <limits>

#include "../../ops/attention/approximate/select_blocks.h"
#include "../../ops/attention/exact/packed_heads.h"
#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/compare.h"
#include "../../ops/elementwise/unary.h"
#include "../../ops/elementwise/where.h"
#include "../../ops/index/topk.h"
#include "../../ops/linalg/matmul.h"
#include "../../ops/norm/softmax.h"
#include "../../ops/reduce/reduce.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../../tensor/run_kernel.h"
#include "../check.h"
#include "../init.h"

namespace sash::nn {
namespace {

constexpr const char* kIndexer = "BlockIndexer";

BlockIndexerOptions checked(int64_t dim, const BlockIndexerOptions& options) {
  check_positive(kIndexer, "dim", dim);
  check_positive(kIndexer, "block", options.block);
  check_positive(kIndexer, "top_k", options.top_k);
  check_positive(kIndexer, "number of heads", options.heads);
  check_positive(kIndexer, "head_dim", options.head_dim);
  return options;
}

// Shapes that differ could broadcast.
void check_heads_of(const Tensor& x, const Tensor& q, const Tensor& k) {
  const auto fits = [&](const Tensor& heads) {
    return heads.rank() == 4 && heads.size(0) == x.size(0) && heads.size(2) == x.size(1);
  };
  check_defined(kIndexer, q, "q");
  check_defined(kIndexer, k, "k");
  if (fits(q) && fits(k)) return;
  throw ShapeError(kIndexer, "q [B, H, S, D] and k [B, H_kv, S, D] with x [B, S, dim]",
                   to_string(x.shape()) + ", " + shapes_of(q, k));
}

// The block of each of S tokens less the number of each block, [S, blocks]: 0 for the own one,
// above 0 for ended ones.
Tensor blocks_before(int64_t length, int64_t block, Device device) {
  const Tensor own = floor_divide(arange(length, {.device = device}), block);
  return own.unsqueeze(1) - arange((length + block - 1) / block, {.device = device});
}

}  // namespace

BlockIndexer::BlockIndexer(int64_t dim, const BlockIndexerOptions& options)
    : options_(checked(dim, options)),
      q_proj(register_module<Linear>("q_proj", dim, options.heads * options.head_dim,
                                     LinearOptions{.bias = false})),
      k_proj(
          register_module<Linear>("k_proj", dim, options.head_dim, LinearOptions{.bias = false})),
      weights(register_module<Linear>("weights", dim, options.heads)) {
  init::ones_(weights.bias);
}

Tensor BlockIndexer::forward(const Tensor& x) {
  check_defined(kIndexer, x, "x");
  check_rank(kIndexer, x, 3);
  const Tensor input = x.detach();
  const Tensor q = split_heads(q_proj(input), options_.heads);
  const Tensor k = block_means(k_proj(input).unsqueeze(1), options_.block);
  const Tensor products = relu(matmul(q, k.mT()));
  const DType sums = products.dtype() == DType::float64 ? DType::float64 : DType::float32;
  const Tensor w = weights(input).to(sums) * (1 / std::sqrt(double(options_.head_dim)));
  const Tensor scores = sum(products.to(sums) * w.transpose(1, 2).unsqueeze(3), {1});
  return where(gt(blocks_before(x.size(1), options_.block, x.device()), 0), scores, -1e30);
}

Tensor BlockIndexer::select(const Tensor& x) {
  const NoGradGuard no_grad;
  constexpr double kOwn = std::numeric_limits<double>::infinity(), kNever = -1e30;
  const Tensor of_ended = (*this)(x);
  const Tensor before = blocks_before(x.size(1), options_.block, x.device());
  // A NaN would come before the own block.
  const Tensor numbers = where(eq(of_ended, of_ended), of_ended, kNever);
  const Tensor scores = where(eq(before, 0), kOwn, numbers);
  const auto [values, index] = topk(scores, std::min(options_.top_k, scores.size(2)));
  return where(gt(values, kNever), index, -1).to(DType::int32).unsqueeze(1);
}

Tensor BlockIndexer::loss(const Tensor& x, const Tensor& q, const Tensor& k,
                          std::optional<double> scale) {
  const Tensor scores = log_softmax((*this)(x));
  check_heads_of(x, q, k);
  const Tensor p = unrecorded([&] {
    const Tensor ended = gt(blocks_before(x.size(1), options_.block, x.device()), 0);
    const Tensor all = block_probabilities(q, k, options_.block,
                                           {.mask = AttentionMask::causal(), .scale = scale});
    const Tensor some = where(ended, mean(all.to(scores.dtype()), {1}), 0);
    return some / clamp(sum(some, {2}, true), 1e-30);
  });
  // p log p is 0 for p = 0.
  const Tensor terms = p * (log(clamp(p, 1e-30)) - where(gt(p, 0), scores, 0));
  return sum(terms) * (1 / double(x.size(0) * x.size(1)));
}

}  // namespace sash::nn
