#pragma once

#include "../../runtime/backend.h"
#include "attention_dims.cuh"

/// What dropout keeps of a call's probabilities, drawn once a pass, before the kernels that read it
/// as bits.
namespace sash::cuda {

/// Whether a call is short: tiles of a head then take few turns, and memory for each pair is small.
/// Whatever chooses a kernel may not depend on how many heads there are, so that a head has the
/// same bits in any batch.
inline bool is_short(const kernels::BlockMap& map) {
  return map.query_blocks <= 16 && map.key_blocks <= 16;
}

/// Whether dropout is a call's only option, and what it keeps may be drawn beforehand, for heads of
/// `features`.
template <class T>
bool keeps_tiles(const AttentionDims<T>& p, int64_t features) {
  return p.dropout && p.kept > 0 && !p.options && p.exponent > 0 && p.keys % 4 == 0 &&
         features <= 128 && is_short(p.map);
}

/// The bit tiles: one [64] for each block of scores that lies between the first and the last that a
/// query block lists. In each order [B, H, query blocks, key blocks][64], or null if not wanted.
struct KeptCall {
  uint64_t* by_query;  ///< rows are queries
  uint64_t* by_key;    ///< rows are keys
};

/// The bytes of one order.
template <class T>
int64_t kept_bytes(const AttentionDims<T>& p) {
  return int64_t{p.batches} * p.heads * p.map.query_blocks * p.map.key_blocks *
         kernels::kBlockKeys * static_cast<int64_t>(sizeof(uint64_t));
}

template <class T>
void kept_tiles(const KernelContext& context, const AttentionDims<T>& dims, const KeptCall& call);

}  // namespace sash::cuda
