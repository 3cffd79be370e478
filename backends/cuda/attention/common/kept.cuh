#pragma once

#include <optional>

#include "../../runtime/backend.h"
#include "dims.cuh"
#include "kept.h"

/// Bit tiles of dropout: which probabilities of a call dropout does not drop. They are drawn once
/// for a pass, before the kernels that read them.
namespace sash::cuda {

/// Whether a call is short: a head then has few blocks, and a bit for each pair takes little
/// memory. The selection of a kernel must not depend on the number of heads, so that a head has the
/// same bits in every batch.
inline bool is_short(const kernels::BlockMap& map) {
  return map.query_blocks <= 16 && map.key_blocks <= 16;
}

/// Whether the kernels of a call with heads of `features` read bit tiles: dropout is the only
/// option, and the call is short.
template <class T>
bool keeps_tiles(const AttentionDims<T>& p, int64_t features) {
  return p.dropout && p.kept > 0 && !p.options && p.exponent > 0 && p.keys % 4 == 0 &&
         features <= 128 && is_short(p.map);
}

/// Bit tiles [B, H, query blocks, key blocks][64] in two orders; null for an order that is not
/// needed. Only the blocks between the first and the last block that a query block lists are
/// written.
struct KeptCall {
  uint64_t* by_query = nullptr;  ///< rows are queries
  uint64_t* by_key = nullptr;    ///< rows are keys
};

/// The size in bytes of the bit tiles in one order.
template <class T>
int64_t kept_bytes(const AttentionDims<T>& p) {
  return int64_t{p.batches} * p.heads * p.map.query_blocks * p.map.key_blocks *
         kernels::kBlockKeys * int64_t{sizeof(uint64_t)};
}

template <class T>
void kept_tiles(const KernelContext& context, const AttentionDims<T>& dims, const KeptCall& call);

/// The bit tiles that a pass reads. If `kept` is null, they are drawn into scratch memory, in the
/// orders that the pass asks for. Otherwise they are in `kept`, `by_query` first: the forward pass
/// draws them there, and the backward pass reads them.
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
