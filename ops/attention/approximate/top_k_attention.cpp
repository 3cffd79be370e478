#include "top_k_attention.h"

#include <algorithm>
#include <limits>

#include "../../elementwise/dropout.h"
#include "../../index/topk.h"
#include "../../linalg/matmul.h"
#include "../../norm/softmax.h"
#include "../../op.h"
#include "../../shape/concat.h"
#include "../exact/attention_call.h"
#include "../exact/head_layout.h"
#include "../mask/simple_mask.h"
#include "sparse_products.h"

namespace sash {
namespace {

constexpr const char* kTopK = "top_k_attention";
constexpr double kLowest = -std::numeric_limits<double>::infinity();
// Scores made at a time.
constexpr int64_t kScores = int64_t{1} << 24;

AttentionCall checked_call(const Tensor& q, const Tensor& k, const Tensor& v,
                           const TopKAttentionOptions& options) {
  return {AttentionTensors{q, k, v, {}, {}},
          {.mask = options.mask, .scale = options.scale, .dropout = options.dropout}};
}

void check_count(int64_t count) {
  if (count < 1) throw ValueError(kTopK, "a top_k of at least 1", std::to_string(count));
}

// Which keys are hidden from queries, a few rows at a time.
class HiddenRows {
 public:
  HiddenRows(const AttentionCall& call, Device device) : shape_(call.shape), device_(device) {
    const std::optional<SimpleMask> simple = simple_mask(call.mask);
    if (!simple) {
      hidden_ = logical_not(call.mask.to_dense(shape_, device));
      return;
    }
    keys_ = arange(0, shape_.keys, 1, {.device = device});
    causal_ = simple->causal;
    if (!simple->key_lengths.defined()) return;
    check_shape("attention_mask", simple->key_lengths, {shape_.batch});
    lengths_ = simple->key_lengths.view({shape_.batch, 1, 1, 1});
  }

  Tensor hide(Tensor scores, int64_t first) const {
    const int64_t rows = scores.size(2);
    const auto apply = [&](const Tensor& hidden) { scores = masked_fill(scores, hidden, kLowest); };
    if (hidden_.defined()) apply(hidden_.narrow(2, first, rows));
    if (causal_) {
      const int64_t position = first + shape_.offset();
      apply(gt(keys_, arange(position, position + rows, 1, {.device = device_}).unsqueeze(1)));
    }
    if (lengths_.defined()) apply(ge(keys_, lengths_));
    return scores;
  }

 private:
  MaskShape shape_;
  Device device_;
  Tensor hidden_, keys_, lengths_;
  bool causal_ = false;
};

}  // namespace

Tensor top_keys(const Tensor& q, const Tensor& k, int64_t count,
                const TopKAttentionOptions& options) {
  const NoGradGuard no_grad;
  check_count(count);
  const AttentionCall call = checked_call(q, k, k, options);
  const int64_t batch = q.size(0), heads = q.size(1), queries = q.size(2), keys = k.size(2);
  const int64_t kept = std::min(count, keys);
  const HiddenRows mask(call, q.device());
  const int64_t rows = std::max<int64_t>(1, kScores / std::max<int64_t>(1, batch * heads * keys));
  const Tensor columns = k.unsqueeze(2).mT();
  std::vector<Tensor> chosen;
  for (int64_t first = 0; first < queries && q.numel() > 0; first += rows) {
    const int64_t n = std::min(rows, queries - first);
    const Tensor some = detail::grouped_heads(q.narrow(2, first, n) * call.scale, k.size(1));
    const Tensor scores = mask.hide(matmul(some, columns).view({batch, heads, n, keys}), first);
    const Chosen found = topk(scores, kept);
    chosen.push_back(masked_fill(found.indices, eq(found.values, kLowest), -1));
  }
  if (!chosen.empty()) return cat(chosen, 2);
  return zeros({batch, heads, queries, kept}, {.dtype = DType::int64, .device = q.device()});
}

Tensor top_k_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t top_k,
                       const TopKAttentionOptions& options) {
  if (Autocast cast("top_k_attention"); cast) {
    return top_k_attention(cast(q), cast(k), cast(v), top_k, options);
  }
  check_count(top_k);
  checked_call(q, k, v, options);
  if (top_k >= k.size(2)) {
    return attention(q, k, v,
                     {.mask = options.mask, .scale = options.scale, .dropout = options.dropout});
  }
  return top_k_attention(q, k, v, top_keys(q, k, top_k, options), options);
}

Tensor top_k_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& keys,
                       const TopKAttentionOptions& options) {
  if (Autocast cast("top_k_attention"); cast) {
    return top_k_attention(cast(q), cast(k), cast(v), keys, options);
  }
  const AttentionCall call = checked_call(q, k, v, options);
  const Tensor scores = sparse_dot_product(q * call.scale, k, keys);
  const Tensor weights = softmax(masked_fill(scores, lt(keys, 0), kLowest));
  return sparse_weighted_average(dropout(weights, call.dropout), v, keys);
}

}  // namespace sash
