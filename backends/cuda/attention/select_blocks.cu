// The blocks of keys that rows of queries attend to. Here a warp has a row; the lanes have
// neighbouring blocks, whose pooled keys the warps of a block of threads share.
#include <algorithm>

#include "select_blocks_mma.cuh"

namespace sash::cuda {
namespace {

using namespace selection;

/// Bytes of shared memory for the lists of a block of threads. Longer lists lie in global memory.
constexpr int64_t kSharedLists = 24 << 10;

/// Memory of the lists of all rows; null: shared.
template <class A>
struct Lists {
  A* scores;
  int32_t* blocks;
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

template <class T>
__global__ void __launch_bounds__(kThreads)
    select_kernel(const __grid_constant__ SelectCall<T, int64_t> call,
                  const Lists<compute_t<T>> memory) {
  using A = compute_t<T>;
  constexpr int V = 16 / sizeof(A), kStride = kPart<A> + V;  // lanes read different banks
  __shared__ Vector<A, V> keys[kWarp * kStride / V];
  __shared__ Vector<A, V> queries[kWarps][kPart<A> / V];
  extern __shared__ double lists[];
  const auto& rules = call.rules;
  const int lane = WarpTeam::rank(), warp = static_cast<int>(threadIdx.x) / kWarp;
  const HeadAt<T, int64_t> head = call.head(blockIdx.x / call.row_blocks);
  const int64_t first_row = (blockIdx.x - head.number * call.row_blocks) * kWarps;
  const int64_t last_row = min(first_row + kWarps, call.rows) - 1;
  const int64_t number = min(first_row + warp, last_row);
  const RowBlocksOf<int64_t> row(rules, number);
  const int64_t at = head.number * call.rows + number;
  const bool exists = first_row + warp <= last_row;
  const bool chooses = exists && row.candidates > call.count;

  BestBlocks<A> best{memory.scores, memory.blocks, 0};
  if (memory.scores) {
    best.scores += at * call.room, best.blocks += at * call.room;
  } else {
    A* const all = reinterpret_cast<A*>(lists);
    best.scores = all + warp * call.room;
    best.blocks = reinterpret_cast<int32_t*>(all + kWarps * call.room) + warp * call.room;
  }
  if (chooses) best.room = static_cast<int>(call.count - row.forced());

  const int64_t queries_of_row = min(rules.queries_per_row, rules.queries);
  const bool in_parts = call.depth > kPart<A>;
  // The last row of the block of threads has the most candidates.
  const int64_t candidates = RowBlocksOf(rules, last_row).candidates;
  const int64_t end = candidates > call.count ? candidates : 0;

  for (int64_t tile = 0; tile < end; tile += kWarp) {
    const int64_t block = tile + lane;
    A score = 0;
    for (int64_t g = 0; g < call.group; ++g) {
      for (int64_t n = 0; n < queries_of_row; ++n) {
        const int64_t i = row.query + n;
        const int64_t seen = i < row.past_query ? rules.seen(rules.position(i)) : 0;
        const bool sees = chooses && tile < seen;
        const T* const query = call.q + call.query_at(head, g, i);
        A logit = 0;
        for (int64_t d = 0; d < call.depth; d += kPart<A>) {
          const auto width = static_cast<int>(min(call.depth - d, int64_t{kPart<A>}));
          const int padded = (width + V - 1) / V * V;
          if (in_parts || (g == 0 && n == 0)) {
            __syncthreads();  // all warps have read the keys before
            for (int e = static_cast<int>(threadIdx.x); e < kWarp * padded; e += kThreads) {
              const int j = e / padded, c = e - j * padded;
              const bool inside = tile + j < rules.scored && c < width;
              reinterpret_cast<A*>(keys)[j * kStride + c] =
                  inside ? widen(head.pooled[(tile + j) * call.depth + d + c]) : A(0);
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
          if (call.lse) logit = std::exp(call.scale * logit - call.lse_of(head, g, i));
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
  write_sorted(row, call.count, call.index_of(head, number),
               [&](int64_t i) { return best.blocks[i]; });
}

void select_blocks(KernelContext& context, View q, View pooled, const TensorView* lse,
                   const kernels::BlockRules& rules, double scale, View index) {
  const int64_t rows = index.shape[2], count = index.shape[3], heads = index.shape[1];
  const int64_t room = std::min(count, rules.blocks()), all_heads = index.shape[0] * heads;
  dispatch_device_floating(q.dtype, "select_blocks", [&]<class T>(TypeTag<T>) {
    using A = compute_t<T>;
    const auto scores_by = [&]<class Int>(TypeTag<Int>, const BlockRulesOf<Int>& own) {
      const auto of = [](int64_t x) { return static_cast<Int>(x); };
      return SelectCall<T, Int>{.rules = own,
                                .q = static_cast<const T*>(q.data),
                                .pooled = static_cast<const T*>(pooled.data),
                                .lse = lse ? static_cast<const A*>(lse->data) : nullptr,
                                .index = index.ptr<int32_t>(),
                                .batch_step = q.strides[0],
                                .head_step = q.strides[1],
                                .query_step = q.strides[2],
                                .key_heads = of(pooled.shape[1]),
                                .key_group = of(q.shape[1] / pooled.shape[1]),
                                .all_heads = of(all_heads),
                                .heads = of(heads),
                                .group = of(q.shape[1] / heads),
                                .rows = of(rows),
                                .count = of(count),
                                .depth = of(q.shape[3]),
                                .row_blocks = of(ceil_div(rows, kWarps)),
                                .room = of(room),
                                .scale = static_cast<A>(scale)};
    };
    const auto call = scores_by(TypeTag<int64_t>{}, rules);
    if constexpr (kIsHalf<T>) {
      if (takes(call)) {
        return launch_mma(context, scores_by(TypeTag<int32_t>{}, short_rules(rules)));
      }
    }
    constexpr int64_t entry = sizeof(A) + sizeof(int32_t);
    const bool shared = kWarps * room * entry <= kSharedLists;
    const int64_t listed = shared ? 0 : all_heads * rows * room;
    const Workspace scores(context, listed * int64_t{sizeof(A)});
    const Workspace blocks(context, listed * int64_t{sizeof(int32_t)});
    const Lists<A> lists{shared ? nullptr : scores.ptr<A>(),
                         shared ? nullptr : blocks.ptr<int32_t>()};
    launch_kernel(context, all_heads * call.row_blocks, kThreads,
                  shared ? kWarps * room * entry : 0, select_kernel<T>, call, lists);
  });
}

}  // namespace

void register_select_blocks() { kernels::select_blocks.set(DeviceType::cuda, select_blocks); }

}  // namespace sash::cuda
