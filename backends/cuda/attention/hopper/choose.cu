#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "../../hopper/tensor_map.h"
#include "../../shape/readable.h"
#include "../common/diagonals.cuh"
#include "../common/kept.cuh"
#include "../common/limits.h"
#include "../families.h"
#include "call.cuh"

namespace sash::cuda {
namespace {

/// How a backward pass is formed: dq, then dk and dv, with seven products, or in one pass with
/// five.
enum class Passes { two, fused, staged };

constexpr int64_t kWideRow = 14;    ///< mean blocks of keys from which one pass is faster
constexpr int64_t kShortDense = 8;  ///< blocks up to which a dense call of width 64 is short
constexpr int64_t kManySteps = 32;  ///< steps of a tile from which a dense call takes one pass

// When dk and dv are formed in parts: see `query_splits`.
constexpr int64_t kTilesOfHead = 96;  ///< tiles of keys that a key head should have
constexpr int64_t kPartBlocks = 32;   ///< blocks of queries of a part, at least
constexpr int64_t kPartRatio = 16;    ///< the same for each block of keys

int64_t rows_of(const kernels::BlockMap& map) { return map.batches * map.heads * map.query_blocks; }

/// Whether most blocks are listed.
bool is_dense(const kernels::BlockMap& map) {
  return 4 * map.by_query.entries > 3 * rows_of(map) * map.key_blocks;
}

/// Whether a head has few blocks.
bool is_short(const kernels::BlockMap& map) {
  return map.query_blocks <= 16 && map.key_blocks <= 16;
}

/// Whether rows are even, and list a part of the keys.
bool is_window(const kernels::BlockMap& map) {
  return !is_dense(map) && !hopper::is_uneven(map.by_query, rows_of(map));
}

/// How many heads run at a time in one pass. If neighbouring tiles of a head start together, each
/// waits for the tile before it. If a larger number of heads run at a time, neighbouring tiles
/// start farther apart. But the q, g and sums of these heads should stay in the L2 cache. Tiles of
/// windows start apart anyway.
int heads_together(const kernels::BlockMap& map, int heads, int64_t head_bytes) {
  constexpr int64_t kCached = 32 << 20;
  const int64_t least = is_window(map) ? 4 : 8;
  return hopper::even_share(heads, std::max(least, kCached / head_bytes));
}

/// Whether the staged pass is to be taken wherever it can be: SASH_ATTENTION_PASSES=staged, for
/// tests, whose rows are short.
bool wants_staged() {
  const char* name = std::getenv("SASH_ATTENTION_PASSES");
  if (name && std::string_view(name) != "staged") {
    throw ValueError("attention", "SASH_ATTENTION_PASSES of staged", name);
  }
  return name != nullptr;
}

/// A key head with few keys has few tiles of keys, each with many queries, and most
/// multiprocessors would idle. Then each query head, and each of so many ranges of its queries, has
/// tiles of its own, whose parts of dk and dv are added afterwards. 0 without parts. A part has
/// many more queries than keys, so that little of the memory traffic is of parts. The number of
/// heads must not choose: a head has the same bits in any batch.
template <class T>
int query_splits(const AttentionDims<T>& p) {
  const int64_t readers = p.heads / p.key_heads, tiles = (p.map.key_blocks + 1) / 2;
  const int64_t most = p.map.query_blocks / std::max(kPartBlocks, kPartRatio * p.map.key_blocks);
  if (most == 0 || tiles >= kTilesOfHead) return 0;
  const int64_t splits = std::clamp<int64_t>(kTilesOfHead / (tiles * readers), 1, most);
  return readers * splits > 1 ? static_cast<int>(splits) : 0;
}

/// The fastest way by measurement: one pass for wide rows, and for short calls of heads of 64,
/// where starts and ends of tiles count. All tiles of a dense call wait for the same turns, which
/// costs little if each has many steps. Only the one pass gets dropout's bits. The number of heads
/// must not choose: a head has the same bits in any batch.
template <class T>
Passes passes_of(const AttentionDims<T>& p, int width, int splits) {
  const kernels::BlockList& list = p.map.by_query;
  if (!list.contiguous || p.bounds.ranges) return Passes::two;
  if (width != 64 && width != 128) return Passes::two;
  if (!p.plain) {
    if (!keeps_tiles(p, width)) return Passes::two;
    const bool wide = list.entries >= kWideRow * rows_of(p.map);
    return width == 64 && (is_short(p.map) || is_window(p.map) || !wide) && !wants_staged()
               ? Passes::fused
               : Passes::staged;
  }
  if (wants_staged()) return Passes::staged;
  if (splits > 0) return Passes::two;
  const int64_t queries = p.map.query_blocks, keys = p.map.key_blocks;
  if (2 * queries < keys) return Passes::two;
  if (is_dense(p.map)) {
    if (width == 64 && std::max(queries, keys) <= kShortDense) return Passes::fused;
    return queries * width >= kManySteps * 128 ? Passes::staged : Passes::two;
  }
  if (width == 64 && is_short(p.map)) return Passes::fused;
  if (list.entries < kWideRow * rows_of(p.map)) return Passes::two;
  return width == 128 || !is_window(p.map) ? Passes::staged : Passes::fused;
}

/// The tensor map of bit tiles, a row for each.
template <class T>
CUtensorMap map_of_tiles(const AttentionDims<T>& p, const KeptTile* tiles) {
  return tensor_map(reinterpret_cast<const float*>(tiles),
                    kept_bytes(p) / int64_t{sizeof(KeptTile)}, sizeof(KeptTile) / sizeof(float));
}

/// dk and dv, after dq, for a call that has all but its parts.
template <class T, hopper::Kind kind>
void run_keys(const KernelContext& context, hopper::Backward<T> call, int width) {
  if (call.splits == 0) return hopper::backward_keys<T, kind>(context, call, width);
  const AttentionDims<T>& p = call.dims;
  const int64_t blocks = int64_t{p.batches} * p.heads * call.splits * p.map.key_blocks;
  const int64_t bytes = blocks * 64 * width * int64_t{sizeof(float)};
  const Workspace dk(context, bytes), dv(context, bytes);
  call.dk_parts = dk.ptr<float4>();
  call.dv_parts = dv.ptr<float4>();
  hopper::backward_keys<T, kind>(context, call, width);
  hopper::add_parts(context, call, width);
}

/// dq, dk and dv in one pass, for a call that has all but its turns and what dropout keeps.
template <class T>
void run_one_pass(const KernelContext& context, hopper::Fused<T> call, Passes passes, int width,
                  const TensorView* kept) {
  using namespace hopper;
  const AttentionDims<T>& p = call.dims;
  const int64_t heads = int64_t{p.batches} * p.heads, blocks = heads * p.map.query_blocks;
  const Workspace counts(context, (1 + blocks * width / 64) * int64_t{sizeof(int)});
  const Workspace tiles_of_rows(context, rows_of(p.map) * int64_t{sizeof(int2)});
  const int64_t sums_bytes = blocks * 64 * width * int64_t{sizeof(float)};
  const Workspace sums(context, sums_bytes);
  call.turns = {.done = counts.ptr<int>() + 1,
                .tiles = tiles_of_rows.ptr<int2>(),
                .sums = sums.ptr<float4>()};
  // Tiles of the first keys come first: under a causal mask these are the longest.
  const int key_heads = p.batches * p.key_heads;
  const int64_t head_bytes = 2 * sums_bytes / key_heads;  // q and g are half as wide as the sums
  call.order = ascending_order(p.batches, p.key_heads, p.map.key_blocks, 2,
                               heads_together(p.map, key_heads, head_bytes));
  call.order.counter = counts.ptr<int>();
  row_stats(context, call, width);
  std::optional<KeptTiles<T>> bits;
  if (!p.plain) {
    bits.emplace(context, p, kept, AttentionPass::backward, false, true);
    call.kept = bits->by_key();
  }
  if (passes == Passes::fused) {
    return p.plain ? backward_fused<T, Kind::plain>(context, call)
                   : backward_fused<T, Kind::dropout>(context, call);
  }
  p.plain ? backward_staged<T, Kind::plain>(context, call, width)
          : backward_staged<T, Kind::dropout>(context, call, width);
  write_queries(context, call, width);
}

}  // namespace

bool attention_hopper_runs(Device device) {
  return has_hopper_code(device) &&
         shared_memory_limit(device) >= static_cast<int>(hopper::kSharedBytes);
}

bool attention_hopper_takes(const AttentionInputs& inputs) {
  const auto& [q, k, v] = inputs;
  const auto fits = [](View x) {
    return fits_tensor_map(x) && x.shape[3] % 8 == 0 && x.shape[3] <= 256;
  };
  return fits(q) && fits(k) && fits(v);
}

void attention_hopper_forward(KernelContext& context, const AttentionInputs& inputs,
                              const AttentionParams& params, View out, View lse) {
  using namespace hopper;
  const auto& [q, k, v] = inputs;
  const BoundsSummary summary(context, inputs, params);
  dispatch_device_halves(q.dtype, "attention", [&]<class T>(TypeTag<T>) {
    const AttentionDims<T> dims(inputs, params, summary.bounds());
    const int width = tile_width(std::max(q.shape[3], v.shape[3]), !dims.plain);
    const int slab = slab_of(width);
    Forward<T> call{.dims = dims,
                    .q = tensor_map(q, slab),
                    .k = tensor_map(k, slab),
                    .v = tensor_map(v, slab),
                    .out = rows_of<T>(out),
                    .lse = lse.ptr<float>(),
                    .kept = {},
                    .order = {}};
    if (keeps_tiles(dims, width)) {
      const KeptTiles<T> bits(context, dims, params.kept, AttentionPass::forward, true, false);
      call.kept = map_of_tiles(dims, bits.by_query());
      return forward<T, Kind::dropout>(context, call, width);
    }
    dims.plain ? forward<T, Kind::plain>(context, call, width)
               : forward<T, Kind::general>(context, call, width);
  });
}

void attention_hopper_backward(KernelContext& context, const AttentionInputs& inputs,
                               const AttentionParams& params, const AttentionGradients& gradients) {
  using namespace hopper;
  const auto& [q, k, v] = inputs;
  const Readable g(context, gradients.g, fits_tensor_map(gradients.g));
  const BoundsSummary summary(context, inputs, params, true);
  dispatch_device_halves(q.dtype, "attention", [&]<class T>(TypeTag<T>) {
    const AttentionDims<T> p(inputs, params, summary.bounds());
    const int width = tile_width(std::max(q.shape[3], v.shape[3]), !p.plain);
    const int slab = slab_of(width);
    Backward<T> call{
        .dims = p,
        .q = tensor_map(q, slab),
        .k = tensor_map(k, slab),
        .v = tensor_map(v, slab),
        .g = tensor_map(g.view(), slab),
        .out = rows_of<const T>(gradients.out),
        .lse = gradients.lse.ptr<const float>(),
        .g_lse = gradients.g_lse ? gradients.g_lse->ptr<const float>() : nullptr,
        .dq = rows_of<T>(gradients.dq),
        .dk = rows_of<T>(gradients.dk),
        .dv = rows_of<T>(gradients.dv),
        .dbias = gradients.dbias ? gradients.dbias->ptr<float>() : nullptr,
        .stats = nullptr,
        .stats_map = {},
        .diagonals = nullptr,
        .splits = query_splits(p),
        .dk_parts = nullptr,
        .dv_parts = nullptr,
        .order = {},
    };
    const int64_t blocks = int64_t{p.batches} * p.heads * p.map.query_blocks;
    const Workspace stats(context, blocks * int64_t{sizeof(BlockStats)});
    call.stats = stats.ptr<BlockStats>();
    call.stats_map = tensor_map(stats.ptr<float>(), blocks, sizeof(BlockStats) / sizeof(float));
    if (const Passes passes = passes_of(p, width, call.splits); passes != Passes::two) {
      return run_one_pass<T>(context, {call, rows_of<const T>(g.view()), {}, nullptr}, passes,
                             width, params.kept);
    }
    if (p.plain) {
      backward_queries<T, Kind::plain>(context, call, width);
      return run_keys<T, Kind::plain>(context, call, width);
    }
    std::optional<Workspace> diagonals;
    if (gradients.drelative) {
      const int64_t columns = gradients.drelative->shape[2];
      diagonals.emplace(context, blocks * columns * int64_t{sizeof(float)});
      call.diagonals = diagonals->ptr<float>();
    }
    backward_queries<T, Kind::general>(context, call, width);
    if (diagonals) sum_diagonals(context, call.diagonals, p.map.query_blocks, *gradients.drelative);
    diagonals.reset();
    run_keys<T, Kind::general>(context, call, width);
  });
}

}  // namespace sash::cuda
