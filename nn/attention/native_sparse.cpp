#include "native_sparse.h"

#include "../../ops/attention/approximate/gated_sum.h"
#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/unary.h"
#include "../../ops/reduce/reduce.h"
#include "../../tensor/factories.h"
#include "../init.h"
#include "pooled_blocks.h"

namespace sash::nn {

NativeSparseBranches::NativeSparseBranches(const Heads& heads, const NativeSparseOptions& options,
                                           bool draw)
    : options_(options),
      gate(register_module<Linear>("gate", heads.dim, 3 * heads.heads,
                                   LinearOptions{.draw = draw})) {
  if (draw) init::zeros_(gate.bias);
  if (!options.learned) return;
  const auto weights = [&](const char* name, int64_t width) {
    return register_parameter(
        name, full({heads.kv_heads, options.block, width}, 1 / static_cast<double>(options.block)));
  };
  key_pool = weights("key_pool", heads.head_dim);
  value_pool = weights("value_pool", heads.v_head_dim);
}

Tensor NativeSparseBranches::pooled(const Tensor& x, KeyValueCache* cache, size_t slot,
                                    const Tensor& weight) const {
  const int64_t block = options_.block;
  return pooled_blocks(x, block, cache, slot, [&](const Tensor& some) {
    if (!weight.defined()) return block_means(some, block);
    const Shape& s = some.shape();
    const Tensor blocks = some.reshape({s[0], s[1], s[2] / block, block, s[3]});
    return sum(blocks * weight.unsqueeze(1), {3}).to(x.dtype());
  });
}

Tensor NativeSparseBranches::forward(const Tensor& x, const Tensor& q, const Tensor& k,
                                     const Tensor& v, const AttentionOptions& options,
                                     KeyValueCache* cache) {
  const Tensor keys = pooled(k, cache, 0, key_pool), values = pooled(v, cache, 1, value_pool);
  const auto under = [&](const AttentionMask& mask) {
    return AttentionOptions{.mask = mask, .scale = options.scale, .dropout = options.dropout};
  };
  const auto [compressed, lse] = attention_with_lse(
      q, keys, values, under(ended_blocks(q.size(2), k.size(2), options_.block, q.device())));
  const Tensor index = select_blocks(q, k,
                                     {.block = options_.block,
                                      .count = options_.top_k,
                                      .score = BlockScore::probabilities,
                                      .first = options_.first,
                                      .neighbours = options_.neighbours,
                                      .scale = options.scale,
                                      .pooled_keys = keys,
                                      .lse = lse});
  const AttentionMask chosen = AttentionMask::selected(index, options_.block);
  const Tensor branches[] = {
      compressed, attention(q, k, v, under(AttentionMask::causal() & chosen)),
      attention(q, k, v, under(AttentionMask::causal_window(options_.window)))};
  const Tensor gates = sigmoid(gate(x)).view({x.size(0), x.size(1), 3, q.size(1)});
  return gated_sum(gates.permute({2, 0, 3, 1}).to(compressed.dtype()), branches);
}

}  // namespace sash::nn
