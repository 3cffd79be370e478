// The blocks of keys that rows of queries attend to. A warp has a row; the lanes have neighbouring
// blocks, whose pooled keys the warps of a block of threads share.
#include "../../../ops/kernels/select_blocks.h"

#include <algorithm>

#include "../norm/rows.cuh"

namespace sash::cuda {
namespace {

using kernels::BlockRules;
using kernels::RowBlocks;

/// Bytes of shared memory for the lists of a block of threads. Longer lists lie in global memory.
constexpr int64_t kSharedLists = 24 << 10;

template <class T>
struct SelectCall {
  using A = compute_t<T>;
  BlockRules rules;
  const T* q;
  const T* pooled;
  const A* lse;  ///< null: scores are logits
  int32_t* index;
  A* scores;                                  ///< the lists' memory; null: shared
  int32_t* listed;                            ///< the same of their blocks
  int64_t batch_step, head_step, query_step;  ///< of q
  int64_t query_heads, key_heads, heads, rows, count, depth;
  int64_t row_blocks;  ///< blocks of threads for the rows of a head
  int room;            ///< entries of a list
  A scale;
};

/// The best blocks of a row: in descending order of scores, the lower block first of equal ones.
template <class A>
struct BestBlocks {
  A* scores;
  int32_t* blocks;
  int room;
  int taken = 0;

  /// Whether a block after those seen so far enters the list.
  __device__ bool admits(A score) const {
    return taken < room || (room > 0 && score > scores[room - 1]);
  }
  /// The lanes of the warp insert one block.
  __device__ void insert(A score, int32_t block) {
    const int kept = taken < room ? taken : room - 1;
    int place = kept;
    // Entries with a lower score move by one, from the last on.
    for (int end = kept; end > 0; end -= kWarp) {
      const int i = end - 1 - WarpTeam::rank();
      const bool moves = i >= 0 && scores[i] < score;
      const A of = moves ? scores[i] : A(0);
      const int32_t which = moves ? blocks[i] : 0;
      __syncwarp();
      if (moves) scores[i + 1] = of, blocks[i + 1] = which;
      const int moved = __popc(__ballot_sync(kAllLanes, moves));
      place -= moved;
      if (moved < kWarp) break;
    }
    if (WarpTeam::rank() == 0) scores[place] = score, blocks[place] = block;
    taken = kept + 1;
    __syncwarp();
  }
};

/// Elements of a key and of a query that are in shared memory at a time.
template <class A>
inline constexpr int kPart = 512 / sizeof(A);

/// Writes the forced and the best blocks in ascending order: the place of a block is the number of
/// lower ones.
template <class A>
__device__ void write_sorted(const RowBlocks& row, const BestBlocks<A>& best, int32_t* to) {
  const auto forced = static_cast<int>(row.forced());
  for (int e = WarpTeam::rank(); e < forced + best.taken; e += kWarp) {
    const int64_t block = e < forced ? row.forced(e) : best.blocks[e - forced];
    const int64_t near = min(max(block - row.near, int64_t{0}), row.past_near - row.near);
    int64_t place = min(block, row.first) + near;
    for (int i = 0; i < best.taken; ++i) place += best.blocks[i] < block;
    to[place] = static_cast<int32_t>(block);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    select_kernel(const __grid_constant__ SelectCall<T> call) {
  using A = compute_t<T>;
  constexpr int V = 16 / sizeof(A), kStride = kPart<A> + V;  // lanes read different banks
  __shared__ Vector<A, V> keys[kWarp * kStride / V];
  __shared__ Vector<A, V> queries[kWarps][kPart<A> / V];
  extern __shared__ double lists[];
  const BlockRules& rules = call.rules;
  const int lane = WarpTeam::rank(), warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t head = blockIdx.x / call.row_blocks;  // of all batches
  const int64_t first_row = (blockIdx.x - head * call.row_blocks) * kWarps;
  const int64_t last_row = min(first_row + kWarps, call.rows) - 1;
  const int64_t number = min(first_row + warp, last_row);
  const RowBlocks row(rules, number);
  const int64_t at = head * call.rows + number;
  const bool exists = first_row + warp <= last_row;
  const bool chooses = exists && row.candidates > call.count;

  BestBlocks<A> best{call.scores, call.listed, 0};
  if (call.scores) {
    best.scores += at * call.room, best.blocks += at * call.room;
  } else {
    A* const all = reinterpret_cast<A*>(lists);
    best.scores = all + warp * call.room;
    best.blocks = reinterpret_cast<int32_t*>(all + kWarps * call.room) + warp * call.room;
  }
  if (chooses) best.room = static_cast<int>(call.count - row.forced());

  const int64_t batch = head / call.heads, group = call.query_heads / call.heads;
  const int64_t first_head = (head - batch * call.heads) * group;
  const int64_t key_head = first_head / (call.query_heads / call.key_heads);
  const T* const pooled =
      call.pooled + (batch * call.key_heads + key_head) * rules.scored * call.depth;
  const int64_t queries_of_row = min(rules.queries_per_row, rules.queries);
  const bool in_parts = call.depth > kPart<A>;
  // The last row of the block of threads has the most candidates.
  const int64_t candidates = RowBlocks(rules, last_row).candidates;
  const int64_t end = candidates > call.count ? candidates : 0;

  for (int64_t tile = 0; tile < end; tile += kWarp) {
    const int64_t block = tile + lane;
    A score = 0;
    for (int64_t g = first_head; g < first_head + group; ++g) {
      for (int64_t n = 0; n < queries_of_row; ++n) {
        const int64_t i = row.query + n;
        const int64_t seen = i < row.past_query ? rules.seen(rules.position(i)) : 0;
        const bool sees = chooses && tile < seen;
        const T* const query =
            call.q + batch * call.batch_step + g * call.head_step + i * call.query_step;
        A logit = 0;
        for (int64_t d = 0; d < call.depth; d += kPart<A>) {
          const auto width = static_cast<int>(min(call.depth - d, int64_t{kPart<A>}));
          const int padded = (width + V - 1) / V * V;
          if (in_parts || (g == first_head && n == 0)) {
            __syncthreads();  // all warps have read the keys before
            for (int e = static_cast<int>(threadIdx.x); e < kWarp * padded; e += kThreads) {
              const int j = e / padded, c = e - j * padded;
              const bool inside = tile + j < rules.scored && c < width;
              reinterpret_cast<A*>(keys)[j * kStride + c] =
                  inside ? widen(pooled[(tile + j) * call.depth + d + c]) : A(0);
            }
            __syncthreads();
          }
          if (!sees) continue;
          __syncwarp();  // all lanes have read the query before
          for (int c = lane; c < padded; c += kWarp) {
            reinterpret_cast<A*>(queries[warp])[c] = c < width ? widen(query[d + c]) : A(0);
          }
          __syncwarp();
          for (int c = 0; c < padded / V; ++c) {
            const Vector<A, V> x = queries[warp][c], y = keys[lane * (kStride / V) + c];
#pragma unroll
            for (int e = 0; e < V; ++e) logit += x.element[e] * y.element[e];
          }
        }
        if (sees && block < seen) {
          if (call.lse) {
            const A lse = call.lse[(batch * call.query_heads + g) * rules.queries + i];
            logit = std::exp(call.scale * logit - lse);
          }
          score += logit;
        }
      }
    }
    if (score != score) score = -kInfinity<A>;
    const bool open = chooses && block < row.candidates && !row.is_forced(block);
    unsigned left = __ballot_sync(kAllLanes, open && best.admits(score));
    for (; left != 0; left &= left - 1) {
      const int from = __ffs(static_cast<int>(left)) - 1;
      const A next = __shfl_sync(kAllLanes, score, from);
      if (best.admits(next)) best.insert(next, static_cast<int32_t>(tile + from));
    }
  }

  if (!exists) return;
  int32_t* const to = call.index + at * call.count;
  if (chooses) return write_sorted(row, best, to);
  for (int64_t i = lane; i < call.count; i += kWarp) {
    to[i] = i < row.candidates ? static_cast<int32_t>(i) : -1;
  }
}

void select_blocks(KernelContext& context, View q, View pooled, const TensorView* lse,
                   const BlockRules& rules, double scale, View index) {
  const int64_t rows = index.shape[2], count = index.shape[3], heads = index.shape[1];
  const int64_t room = std::min(count, rules.blocks());
  dispatch_device_floating(q.dtype, "select_blocks", [&]<class T>(TypeTag<T>) {
    using A = compute_t<T>;
    constexpr int64_t entry = sizeof(A) + sizeof(int32_t);
    const bool shared = kWarps * room * entry <= kSharedLists;
    const int64_t listed = shared ? 0 : index.numel() / count * room;
    const Workspace scores(context, listed * int64_t{sizeof(A)});
    const Workspace blocks(context, listed * int64_t{sizeof(int32_t)});
    const SelectCall<T> call{.rules = rules,
                             .q = static_cast<const T*>(q.data),
                             .pooled = static_cast<const T*>(pooled.data),
                             .lse = lse ? static_cast<const A*>(lse->data) : nullptr,
                             .index = index.ptr<int32_t>(),
                             .scores = shared ? nullptr : scores.ptr<A>(),
                             .listed = shared ? nullptr : blocks.ptr<int32_t>(),
                             .batch_step = q.strides[0],
                             .head_step = q.strides[1],
                             .query_step = q.strides[2],
                             .query_heads = q.shape[1],
                             .key_heads = pooled.shape[1],
                             .heads = heads,
                             .rows = rows,
                             .count = count,
                             .depth = q.shape[3],
                             .row_blocks = ceil_div(rows, kWarps),
                             .room = static_cast<int>(room),
                             .scale = static_cast<A>(scale)};
    launch_kernel(context, index.shape[0] * heads * call.row_blocks, kThreads,
                  shared ? kWarps * room * entry : 0, select_kernel<T>, call);
  });
}

}  // namespace

void register_select_blocks() { kernels::select_blocks.set(DeviceType::cuda, select_blocks); }

}  // namespace sash::cuda
