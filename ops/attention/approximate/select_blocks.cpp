#include "select_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../../elementwise/compare.h"
#include "../../kernels/select_blocks.h"
#include "../../op.h"
#include "../../shape/concat.h"
#include "../exact/attention_call.h"
#include "../exact/head_layout.h"

namespace sash {

namespace kernels {
constinit decltype(select_blocks) select_blocks{"select_blocks"};
}  // namespace kernels

namespace {

constexpr const char* kSelect = "select_blocks";

// How many pieces of `size` cover `count`.
int64_t pieces(int64_t count, int64_t size) { return count / size + (count % size != 0); }

void check_size(const char* op, const std::string& what, int64_t value) {
  if (value < 1) throw ValueError(op, what + " of at least 1", std::to_string(value));
}

void check_options(const SelectBlocksOptions& options, DType dtype) {
  check_size(kSelect, "a block", options.block);
  check_size(kSelect, "a count", options.count);
  check_size(kSelect, "a number of queries per row", options.queries_per_row);
  check_not_negative(kSelect, "a number of first blocks", options.first);
  check_not_negative(kSelect, "a number of neighbours", options.neighbours);
  const DType accumulator = dtype == DType::float64 ? dtype : DType::float32;
  check_scale_and_softcap(kSelect, options.scale.value_or(1), 0, accumulator);
  const int64_t own = options.own ? pieces(options.queries_per_row - 1, options.block) + 1 : 0;
  int64_t left = options.count;  // differences do not overflow
  for (const int64_t forced : {own, options.first, options.neighbours}) {
    left = forced > left ? -1 : left - forced;
    if (left >= 0) continue;
    throw ValueError(kSelect,
                     "a count for " + std::to_string(options.first) + " first, " +
                         std::to_string(own) + " own and " + std::to_string(options.neighbours) +
                         " neighbouring blocks",
                     std::to_string(options.count));
  }
}

// The blocks that have a key in `pooled`. Throws unless these are all, or `complete` ones.
int64_t scored_blocks(const Tensor& k, const Tensor& pooled, int64_t blocks, int64_t complete) {
  check_compatible(kSelect, k, pooled);
  check_rank(kSelect, pooled, 4);
  const Shape& shape = pooled.shape();
  const Shape expected{k.size(0), k.size(1), shape[2] == complete ? complete : blocks, k.size(3)};
  if (shape == expected) return shape[2];
  throw ShapeError(kSelect, "pooled keys of shape " + to_string(expected), to_string(shape));
}

// The log of the sums of the softmax, which are those of attention to the pooled keys.
Tensor log_sums(const Tensor& q, const Tensor& pooled, const kernels::BlockRules& rules,
                double scale) {
  AttentionMask mask;
  if (rules.causal) mask = ended_blocks(rules.queries, rules.keys, rules.block, q.device());
  const Tensor keys = pooled.narrow(2, 0, rules.causal ? rules.keys / rules.block : rules.scored);
  return attention_with_lse(q, keys, keys, {.mask = mask, .scale = scale}).lse;
}

}  // namespace

Tensor block_means(const Tensor& x, int64_t block) {
  constexpr const char* op = "block_means";
  check_floating(op, x);
  check_rank(op, x, 4);
  check_size(op, "a block", block);
  const int64_t full = x.size(2) / block, rest = x.size(2) - full * block;
  SmallVector<Tensor, 2> parts;
  if (full > 0 || rest == 0) {
    const Shape shape{x.size(0), x.size(1), full, block, x.size(3)};
    parts.push_back(mean(x.narrow(2, 0, full * block).reshape(shape), {3}));
  }
  if (rest > 0) parts.push_back(mean(x.narrow(2, full * block, rest), {2}, true));
  return parts.size() == 1 ? parts[0] : cat({parts[0], parts[1]}, 2);
}

Tensor block_probabilities(const Tensor& q, const Tensor& k, int64_t block,
                           const AttentionOptions& options) {
  constexpr const char* op = "block_probabilities";
  constexpr int64_t kMostValues = 512;  // features of a value, for kernels of all backends
  check_heads(op, q, k, k);
  check_size(op, "a block", block);
  const int64_t blocks = pieces(k.size(2), block);
  const Tensor own = floor_divide(arange(k.size(2), {.device = q.device()}), block).unsqueeze(1);
  std::vector<Tensor> parts{zeros({q.size(0), q.size(1), q.size(2), 0}, q.options())};
  for (int64_t first = 0; first < blocks; first += kMostValues) {
    const int64_t past = std::min(first + kMostValues, blocks);
    const Tensor values = eq(own, arange(first, past, 1, {.device = q.device()})).to(q.dtype());
    const Shape shape{k.size(0), k.size(1), k.size(2), past - first};
    parts.push_back(attention(q, k, values.expand(shape), options));
  }
  return cat(parts, 3);
}

AttentionMask ended_blocks(int64_t queries, int64_t keys, int64_t block, Device device) {
  constexpr const char* op = "ended_blocks";
  check_not_negative(op, "a number of queries", queries);
  check_not_negative(op, "a number of keys", keys);
  check_size(op, "a block", block);
  const NoGradGuard no_grad;
  const Tensor past = arange(keys - queries + 1, keys + 1, 1, {.device = device});
  const Tensor ended = floor_divide(clamp(past, 0), block).to(DType::int32);
  return AttentionMask::row_ranges(zeros_like(ended), ended);
}

Tensor select_blocks(const Tensor& q, const Tensor& k, const SelectBlocksOptions& options) {
  // Of operands that autocast left in two dtypes, as attention to the blocks will be.
  if (q.defined() && k.defined() && q.dtype() != k.dtype()) {
    if (Autocast cast("attention"); cast) {
      SelectBlocksOptions own = options;
      own.pooled_keys = cast(options.pooled_keys);
      return select_blocks(cast(q), cast(k), own);
    }
  }
  const NoGradGuard no_grad;
  const NoAutocastGuard no_autocast;
  check_heads(kSelect, q, k, k);
  check_options(options, q.dtype());
  const bool logits = options.score == BlockScore::logits;
  const int64_t queries = q.size(2), keys = k.size(2), blocks = pieces(keys, options.block);
  if (blocks > std::numeric_limits<int32_t>::max()) {
    throw ValueError(kSelect, "at most 2147483647 blocks", std::to_string(blocks));
  }
  const bool complete = options.causal && !logits;
  const bool ended_only = options.causal && (!logits || options.own);
  Tensor pooled = options.pooled_keys;
  kernels::BlockRules rules{.queries = queries,
                            .keys = keys,
                            .block = options.block,
                            .scored = blocks,
                            .queries_per_row = options.queries_per_row,
                            .first = options.first,
                            .neighbours = options.neighbours,
                            .own = options.own,
                            .causal = options.causal,
                            .complete = complete};
  if (pooled.defined()) {
    rules.scored = scored_blocks(k, pooled, blocks, ended_only ? keys / options.block : blocks);
  }
  if (options.lse.defined()) {
    if (logits) throw ValueError(kSelect, "no lse for logits", to_string(options.lse.shape()));
    check_same_device(kSelect, q, options.lse);
    check_dtype(kSelect, options.lse, q.dtype() == DType::float64 ? q.dtype() : DType::float32,
                "an lse");
    check_shape(kSelect, options.lse, {q.size(0), q.size(1), queries});
  }
  const int64_t heads = logits ? q.size(1) : k.size(1);
  const int64_t rows = pieces(queries, options.queries_per_row);
  const Tensor index =
      empty({q.size(0), heads, rows, options.count}, {.dtype = DType::int32, .device = q.device()});
  if (index.numel() == 0) return index;
  pooled = (pooled.defined() ? pooled : block_means(k, options.block)).contiguous();
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  const Tensor lse = logits                  ? Tensor()
                     : options.lse.defined() ? options.lse.contiguous()
                                             : log_sums(q, pooled, rules, scale);
  const Tensor unit = detail::with_unit_rows(q);
  run_kernel(kernels::select_blocks, unit, pooled, lse, rules, scale, index);
  return index;
}

}  // namespace sash
