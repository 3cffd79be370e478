#pragma once

#include <optional>

#include "../../runtime/backend.h"
#include "dims.cuh"
#include "kept.h"

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
  uint64_t* by_query = nullptr;  ///< rows are queries
  uint64_t* by_key = nullptr;    ///< rows are keys
};

/// The bytes of one order.
template <class T>
int64_t kept_bytes(const AttentionDims<T>& p) {
  return int64_t{p.batches} * p.heads * p.map.query_blocks * p.map.key_blocks *
         kernels::kBlockKeys * int64_t{sizeof(uint64_t)};
}

template <class T>
void kept_tiles(const KernelContext& context, const AttentionDims<T>& dims, const KeptCall& call);

/// The tiles that a pass reads: drawn into scratch memory, in the orders that it wants, or kept for
/// the backward pass by the forward pass, by query first.
template <class T>
class KeptTiles {
 public:
  KeptTiles(const KernelContext& context, const AttentionDims<T>& dims, const TensorView* kept,
            AttentionPass pass, bool by_query, bool by_key) {
    const int64_t bytes = kept_bytes(dims);
    char* memory = kept ? kept->ptr<char>() : nullptr;
    if (!kept) {
      scratch_.emplace(context, (by_query + by_key) * bytes);
      memory = scratch_->template ptr<char>();
    }
    if (kept || by_query) tiles_.by_query = reinterpret_cast<uint64_t*>(memory);
    if (kept || by_key) {
      tiles_.by_key = reinterpret_cast<uint64_t*>(memory + (tiles_.by_query ? bytes : 0));
    }
    if (!kept || pass == AttentionPass::forward) kept_tiles(context, dims, tiles_);
  }

  const uint64_t* by_query() const { return tiles_.by_query; }
  const uint64_t* by_key() const { return tiles_.by_key; }

 private:
  std::optional<Workspace> scratch_;
  KeptCall tiles_{};
};

}  // namespace sash::cuda
