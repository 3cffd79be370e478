#include "longformer_attention.h"

#include <mutex>

#include "../../ops/attention/exact/packed_heads.h"
#include "../../ops/elementwise/binary.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"

namespace sash::nn {
namespace {

constexpr const char* kLongformer = "LongformerAttention";

AttentionMask pattern_mask(const LongformerOptions& pattern, int64_t heads) {
  const std::vector<int64_t>& dilations = pattern.dilations;
  const auto count = static_cast<int64_t>(dilations.size());
  if (count != 0 && count != heads) {
    throw ValueError(kLongformer, "a dilation for each of " + std::to_string(heads) + " heads",
                     std::to_string(count));
  }
  const int64_t w = pattern.window;
  const AttentionMask window = dilations.empty() ? AttentionMask::symmetric_window(w)
                                                 : AttentionMask::dilated_window(w, w, dilations);
  return pattern.global.empty() ? window : window | AttentionMask::global(pattern.global);
}

// Queries that are true see all keys, the others none.
AttentionMask only_rows(const std::vector<bool>& chosen, Device device) {
  const auto length = static_cast<int32_t>(chosen.size());
  std::vector<int32_t> past;
  for (const bool row : chosen) past.push_back(row ? length : 0);
  const TensorOptions options{.dtype = DType::int32, .device = device};
  return AttentionMask::row_ranges(zeros({length}, options), tensor(past, {length}, options));
}

}  // namespace

LongformerAttention::LongformerAttention(int64_t dim, int64_t heads,
                                         const LongformerOptions& pattern,
                                         const MultiheadAttentionOptions& options)
    : MultiheadAttention(dim, heads, options, pattern_mask(pattern, heads)),
      global_tokens_(pattern.global) {
  if (!pattern.global_projections) return;
  if (!in_proj_weight.defined()) {
    throw ValueError(kLongformer, "packed projections for global_projections",
                     "separate or missing ones");
  }
  query_global = &global_projection("query_global", 0, heads);
  key_global = &global_projection("key_global", heads, kv_heads());
  value_global = &global_projection("value_global", heads + kv_heads(), kv_heads());
}

Linear& LongformerAttention::global_projection(const char* name, int64_t first_head,
                                               int64_t count) {
  const NoGradGuard no_grad;
  const int64_t first = first_head * head_dim(), out = count * head_dim();
  Linear& projection =
      register_module<Linear>(name, dim(), out, LinearOptions{.bias = in_proj_bias.defined()});
  projection.weight.copy_(in_proj_weight.narrow(0, first, out));
  if (projection.bias.defined()) projection.bias.copy_(in_proj_bias.narrow(0, first, out));
  return projection;
}

Tensor LongformerAttention::forward(const Tensor& x, const AttentionMask& mask) {
  if (!query_global) return MultiheadAttention::forward(x, mask);
  check_input("x", x);
  const auto [q, k, v] = project(x);
  const Tensor q_global = split_heads((*query_global)(x), heads());
  const Tensor k_global = split_heads((*key_global)(x), kv_heads());
  const Tensor v_global = split_heads((*value_global)(x), kv_heads());
  const AttentionMask visible = this->mask() & mask;
  const Rows only = rows(x.size(1), x.device());
  // Each row is zero in one of the two results.
  return out_proj(attend(q, k, v, visible & only.local) +
                  attend(q_global, k_global, v_global, visible & only.global));
}

Tensor LongformerAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionMask& mask) {
  if (!query_global) return MultiheadAttention::forward(q, k, v, mask);
  if (q.is_same(k) && q.is_same(v)) return forward(q, mask);
  throw ValueError(kLongformer, "self-attention, as global projections need",
                   "other keys or values than queries");
}

AttentionWithWeights LongformerAttention::forward_with_weights(const Tensor& q, const Tensor& k,
                                                               const Tensor& v,
                                                               const AttentionMask& mask,
                                                               bool average_heads) {
  if (!query_global) {
    return MultiheadAttention::forward_with_weights(q, k, v, mask, average_heads);
  }
  throw NotImplemented(kLongformer, "it returns no weights with global projections");
}

Tensor LongformerAttention::forward(const Tensor& x, KeyValueCache& cache) {
  if (!query_global) return MultiheadAttention::forward(x, cache);
  throw NotImplemented(kLongformer,
                       "it takes no cache with global projections, which see later tokens");
}

LongformerAttention::Rows LongformerAttention::rows(int64_t length, Device device) {
  static constinit std::mutex mutex;  // threads may share a module
  {
    const std::lock_guard lock(mutex);
    if (rows_.length == length && rows_.device == device) return rows_;
  }
  std::vector<bool> global(static_cast<size_t>(length), false);
  for (const int64_t token : global_tokens_) {
    if (token < length) global[static_cast<size_t>(token)] = true;
  }
  std::vector<bool> local = global;
  local.flip();
  const Rows made{length, device, only_rows(local, device), only_rows(global, device)};
  Rows before = made;  // destroyed after the lock
  const std::lock_guard lock(mutex);
  std::swap(rows_, before);
  return made;
}

}  // namespace sash::nn
