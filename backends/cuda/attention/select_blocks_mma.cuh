#pragma once

#include <cstdint>

#include "mma/instructions.cuh"
#include "select_blocks.cuh"

/// The choice by tensor cores, for float16 and bfloat16.
///
/// A *line* is a query of one head. A warp has the lines of one row of the index, 16 at a time, or
/// several rows of up to 8 lines. It multiplies 32 pooled keys, the rows of a product, by 16 lines,
/// the columns. The warps of a block of threads share the keys, of which two steps are in shared
/// memory.
///
/// Sums over features may take any order. A lane has features 8 (4 c + t) .. + 7 of each 32 c, as
/// it reads them in 16 bytes: words 0 and 1 for one product of 16 features, 2 and 3 for the next.
namespace sash::cuda::selection {

template <class T>
using ShortCall = SelectCall<T, int32_t>;
using ShortRow = RowBlocksOf<int32_t>;

inline constexpr int kLines = 16, kKeys = 32;  // of a product
inline constexpr int kPitch = kKeys + 4;       // of scores: lanes write to different banks
inline constexpr int kMostFeatures = 256;

/// The 32 best blocks of a row: each lane has one, the first lane the best. An entry is larger if
/// the block is better: the score above the complement of the block. 0 is no block.
class BestOfWarp {
 public:
  static __device__ uint64_t entry(float score, int block) {
    if (score != score) score = -kInfinity<float>;
    const uint32_t bits = __float_as_uint(score + 0.f);  // -0 is 0
    const uint32_t ordered = bits >> 31 ? ~bits : bits | 1u << 31;
    return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(block);
  }
  static __device__ int block(uint64_t entry) {
    return static_cast<int>(~static_cast<uint32_t>(entry));
  }

  __device__ explicit BestOfWarp(uint64_t mine) : mine_(mine) {}
  __device__ uint64_t mine() const { return mine_; }

  /// Adds an entry of each lane, as far as it is among the best `room`.
  __device__ void add(uint64_t x, int room) {
    constexpr int kFew = 6;  // so many are inserted sooner than merged
    unsigned left = __ballot_sync(kAllLanes, x > __shfl_sync(kAllLanes, mine_, room - 1));
    if (__popc(left) > kFew) return merge(x);
    for (; left != 0; left &= left - 1) {
      insert(__shfl_sync(kAllLanes, x, __ffs(static_cast<int>(left)) - 1));
    }
  }

 private:
  __device__ void insert(uint64_t x) {
    const uint64_t better = __shfl_up_sync(kAllLanes, mine_, 1);
    if (mine_ < x) mine_ = WarpTeam::rank() == 0 || better > x ? x : better;
  }
  static __device__ uint64_t exchanged(uint64_t x, int step, bool keeps_larger) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, x, step);
    return (x > other) == keeps_larger ? x : other;
  }
  /// Sorts x, the best last, and merges (Batcher, "Sorting networks and their applications", 1968).
  __device__ void merge(uint64_t x) {
    const int lane = WarpTeam::rank();
#pragma unroll
    for (int size = 2; size <= kWarp; size *= 2) {
#pragma unroll
      for (int step = size / 2; step > 0; step /= 2) {
        x = exchanged(x, step, ((lane & step) == 0) != ((lane & size) == 0));
      }
    }
    mine_ = max(mine_, x);
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      mine_ = exchanged(mine_, step, (lane & step) == 0);
    }
  }

  uint64_t mine_;
};

/// The shape of a call for warps.
struct LineShape {
  int lines;  ///< of a row
  int rows;   ///< of a warp
};

/// 16 lines of a warp. A lane has features of lines 8 n + g, and weighs lines 8 n + 2 t + e.
template <class T, int kParts>
class Lines {
 public:
  /// Lines `part` of the rows from `first_row` on.
  __device__ void load(const ShortCall<T>& call, const LineShape& shape,
                       const HeadAt<T, int32_t>& at, int first_row, int part) {
    const auto& rules = call.rules;
    const int lane = WarpTeam::rank(), number = lane % kLines;
    const int r = shape.rows > 1 ? number / shape.lines : 0;
    const int line = part * kLines + number - r * shape.lines;  // of row r
    const int row = first_row + r, n = line / call.group, g = line - n * call.group;
    const int query = row < call.rows ? row * rules.queries_per_row + n : rules.queries;
    const bool exists = r < shape.rows && line < shape.lines && query < rules.queries;
    const int seen = exists ? rules.seen(rules.position(query)) : 0;
    const float lse = exists && call.lse ? call.lse_of(at, g, query) : 0.f;
    const int64_t place = exists ? call.query_at(at, g, query) : 0;
    all_see_ = __reduce_min_sync(kAllLanes, seen);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int from = i / 2 * 8 + lane % 4 * 2 + i % 2;
      seen_[i] = __shfl_sync(kAllLanes, seen, from);
      minus_lse_[i] = -kLog2E<float> * __shfl_sync(kAllLanes, lse, from);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const T* from = call.q + __shfl_sync(kAllLanes, place, 8 * i + lane / 4);
      const bool sees = __shfl_sync(kAllLanes, seen, 8 * i + lane / 4) > 0;
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        const int d = 8 * (4 * c + lane % 4);
        const bool inside = sees && d < call.depth;
        const uint4 words = inside ? *reinterpret_cast<const uint4*>(from + d) : uint4{};
        q_[i][c][0] = words.x, q_[i][c][1] = words.y, q_[i][c][2] = words.z, q_[i][c][3] = words.w;
      }
    }
  }

  /// Terms sum[m][n][e] of keys first + 16 m + 8 (e / 2) + g and lines 8 n + 2 t + e % 2. Of 32
  /// features c, keys 8 j .. 8 j + 7 are words[(4 c + j) 32 + lane].
  __device__ void terms(float (&sum)[2][2][4], const uint4* words, int first, float scale,
                        bool logits) const {
    const int lane = WarpTeam::rank();
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      uint32_t k[4][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint4 x = words[(4 * c + j) * kWarp + lane];
        k[j][0] = x.x, k[j][1] = x.y, k[j][2] = x.z, k[j][3] = x.w;
      }
#pragma unroll
      for (int w = 0; w < 4; w += 2) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint32_t a[4]{k[2 * m][w], k[2 * m + 1][w], k[2 * m][w + 1], k[2 * m + 1][w + 1]};
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            mma::Operand<T>::multiply(sum[m][n], a, q_[n][c][w], q_[n][c][w + 1]);
          }
        }
      }
    }
    const auto each = [&](auto f) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int m = i / 8, n = i / 4 % 2, e = i % 4;
        f(sum[m][n][e], 2 * n + e % 2, first + 16 * m + 8 * (e / 2) + lane / 4);
      }
    };
    if (!logits) {
      each([&](float& x, int i, int) { x = power_of_2(fmaf(x, scale, minus_lse_[i])); });
    }
    if (first + kKeys > all_see_) {
      each([&](float& x, int i, int key) { x = key < seen_[i] ? x : 0.f; });
    }
  }

 private:
  uint32_t q_[2][kParts][4];
  float minus_lse_[4];  // to the base 2
  int seen_[4], all_see_;
};

/// The sums over 16 lines for key 8 t + g.
__device__ inline float sum_of_lines(const float (&x)[2][2][4]) {
  const int lane = WarpTeam::rank();
  float of[4];  // for keys 8 j + g
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int m = j / 2, e = j % 2 * 2;
    of[j] = (x[m][0][e] + x[m][0][e + 1]) + (x[m][1][e] + x[m][1][e + 1]);
  }
  const bool high = lane & 2, odd = lane & 1;
  const auto halves = [](bool second, float a, float b, int step) {
    return (second ? b : a) + __shfl_xor_sync(kAllLanes, second ? a : b, step);
  };
  const float even_key = halves(high, of[0], of[2], 2), odd_key = halves(high, of[1], of[3], 2);
  return halves(odd, even_key, odd_key, 1);
}

/// Starts to copy the pooled keys [first, first + kKeys) to `words`, in the order of `terms`.
template <class T, int kParts>
__device__ void copy_keys(uint4* words, const T* pooled, int first, int keys, int depth) {
  constexpr int pieces = 4 * kParts;  // of 8 features
#pragma unroll
  for (int i = 0; i < kKeys * pieces; i += kThreads) {
    const int p = i + static_cast<int>(threadIdx.x), key = p / pieces, piece = p % pieces;
    const bool inside = first + key < keys && 8 * piece < depth;
    const int to = (piece / 4 * 4 + key / 8) * kWarp + key % 8 * 4 + piece % 4;
    const int64_t from = int64_t{first + key} * depth + 8 * piece;
    mma::copy_async(mma::shared_address(words + to), inside ? pooled + from : pooled, inside);
  }
}

/// The row of another lane.
__device__ inline ShortRow of_lane(ShortRow row, int lane) {
  row.candidates = __shfl_sync(kAllLanes, row.candidates, lane);
  row.first = __shfl_sync(kAllLanes, row.first, lane);
  row.near = __shfl_sync(kAllLanes, row.near, lane);
  row.past_near = __shfl_sync(kAllLanes, row.past_near, lane);
  return row;
}

/// The least number of blocks of threads on a multiprocessor.
template <int kParts>
inline constexpr int kTogether = kParts <= 2   ? 3
                                 : kParts <= 4 ? 2
                                               : 1;

template <int kParts>
struct SharedWords {
  static constexpr int kStep = 4 * kParts * kWarp;  ///< of keys, 16 bytes each
  static constexpr int64_t kKeyBytes = 2 * kStep * 16, kScoreBytes = kWarps * kLines * kPitch * 4;
  static constexpr int64_t kEntryBytes = kWarps * sizeof(uint64_t);  ///< of all warps
  static constexpr int64_t kMostBytes = kKeyBytes + kScoreBytes + kLines * kWarp * kEntryBytes;
};

/// Shared memory: two steps of keys; with several rows the scores of a product, [kLines, kPitch]
/// for each warp; and the lists, [rows, room] for each warp.
template <class T, int kParts>
__global__ void __launch_bounds__(kThreads, kTogether<kParts>)
    select_mma_kernel(const __grid_constant__ ShortCall<T> call, const LineShape shape) {
  using Words = SharedWords<kParts>;
  extern __shared__ uint4 words[];
  const auto& rules = call.rules;
  const int lane = WarpTeam::rank(), warp = static_cast<int>(threadIdx.x) / kWarp;
  const bool several = shape.rows > 1;
  float* const scores = reinterpret_cast<float*>(words + 2 * Words::kStep) + warp * kLines * kPitch;
  uint64_t* const lists = reinterpret_cast<uint64_t*>(words + 2 * Words::kStep +
                                                      (several ? Words::kScoreBytes / 16 : 0)) +
                          warp * shape.rows * call.room;
  for (int i = lane; i < shape.rows * call.room; i += kWarp) lists[i] = 0;

  // The last rows have the most candidates: they go first.
  const int turn = static_cast<int>(blockIdx.x) / call.all_heads;
  const HeadAt<T, int32_t> at = call.head(static_cast<int>(blockIdx.x) - turn * call.all_heads);
  const int block_row = (call.row_blocks - 1 - turn) * kWarps * shape.rows;
  const int first_row = block_row + warp * shape.rows;
  const int rows = max(0, min(shape.rows, call.rows - first_row));
  const int last_row = min(block_row + kWarps * shape.rows, call.rows) - 1;
  const ShortRow own(rules, min(first_row + lane, last_row));  // of row `lane`
  const int own_room = own.candidates > call.count ? call.count - own.forced() : 0;
  const int end = ShortRow(rules, last_row).candidates;
  const int warp_end =
      __reduce_max_sync(kAllLanes, lane < rows && own_room > 0 ? own.candidates : 0);

  Lines<T, kParts> lines;
  const int parts = (shape.rows * shape.lines + kLines - 1) / kLines;
  if (warp_end > 0 && parts == 1) lines.load(call, shape, at, first_row, 0);
  const float scale = call.scale * kLog2E<float>;
  const int past = end > call.count ? end : 0;
  if (past > 0) copy_keys<T, kParts>(words, at.pooled, 0, rules.scored, call.depth);
  for (int tile = 0, step = 0; tile < past; tile += kKeys, step ^= 1) {
    mma::wait_for_copies();
    __syncthreads();  // the step is there; all warps have finished with the other one
    if (tile + kKeys < past) {
      copy_keys<T, kParts>(words + (step ^ 1) * Words::kStep, at.pooled, tile + kKeys, rules.scored,
                           call.depth);
    }
    if (tile >= warp_end) continue;
    float score = 0;
    for (int part = 0; part < parts; ++part) {
      if (parts > 1) lines.load(call, shape, at, first_row, part);
      float sum[2][2][4] = {};
      lines.terms(sum, words + step * Words::kStep, tile, scale, !call.lse);
      if (!several) {
        score += sum_of_lines(sum);
        continue;
      }
      __syncwarp();  // all lanes have read the scores before
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int m = i / 8, n = i / 4 % 2, e = i % 4;
        scores[(8 * n + lane % 4 * 2 + e % 2) * kPitch + 16 * m + 8 * (e / 2) + lane / 4] =
            sum[m][n][e];
      }
      __syncwarp();
    }
    const int block = tile + (several ? lane : lane % 4 * 8 + lane / 4);
    for (int r = 0; r < rows; ++r) {
      const int room = __shfl_sync(kAllLanes, own_room, r);
      if (room == 0) continue;
      if (several) {
        score = 0;
        for (int i = 0; i < shape.lines; ++i)
          score += scores[(r * shape.lines + i) * kPitch + lane];
      }
      const ShortRow row = of_lane(own, r);
      const bool open = block < row.candidates && !row.is_forced(block);
      uint64_t* const list = lists + r * call.room;
      BestOfWarp best(lane < call.room ? list[lane] : 0);
      best.add(open ? BestOfWarp::entry(score, block) : 0, room);
      if (lane < call.room) list[lane] = best.mine();
    }
  }

  __syncwarp();  // the lists are there
  for (int r = 0; r < rows; ++r) {
    const uint64_t* const list = lists + r * call.room;
    write_sorted(of_lane(own, r), call.count, call.index_of(at, first_row + r),
                 [&](int i) { return BestOfWarp::block(list[i]); });
  }
}

inline constexpr int64_t kMostShort = 1 << 30;  // so that sums of two numbers have 32 bits

/// Whether the kernel takes the call: rows of whole 16 bytes, lists of up to a warp, numbers of 32
/// bits.
template <class T>
bool takes(const SelectCall<T, int64_t>& call) {
  const int64_t queries = std::min(call.rules.queries_per_row, call.rules.queries);
  return call.depth % 8 == 0 && call.depth <= kMostFeatures && call.room <= kWarp &&
         std::max({call.rules.keys, call.rules.queries, call.count}) < kMostShort &&
         queries < kMostShort / call.group && is_aligned(call.q) && is_aligned(call.pooled) &&
         call.batch_step % 8 == 0 && call.head_step % 8 == 0 && call.query_step % 8 == 0;
}

/// The rules in 32 bits, for calls that the kernel takes.
inline BlockRulesOf<int32_t> short_rules(const kernels::BlockRules& rules) {
  const auto of = [](int64_t x) { return static_cast<int32_t>(std::min(x, kMostShort)); };
  return {.queries = of(rules.queries),
          .keys = of(rules.keys),
          .block = of(rules.block),
          .scored = of(rules.scored),
          .queries_per_row = of(std::min(rules.queries_per_row, rules.queries)),
          .first = of(rules.first),
          .neighbours = of(rules.neighbours),
          .own = rules.own,
          .causal = rules.causal,
          .complete = rules.complete};
}

template <class T>
void launch_mma(const KernelContext& context, ShortCall<T> call) {
  const int lines = call.group * call.rules.queries_per_row;
  const LineShape shape{lines, std::max(1, kLines / lines)};
  call.row_blocks = ceil_div(call.rows, kWarps * shape.rows);
  const auto launch = [&]<int parts>(std::integral_constant<int, parts>) {
    using Words = SharedWords<parts>;
    const int64_t bytes = Words::kKeyBytes + (shape.rows > 1 ? Words::kScoreBytes : 0) +
                          shape.rows * call.room * Words::kEntryBytes;
    const auto kernel = select_mma_kernel<T, parts>;
    const CardGuard guard(context.device.index);
    // Of all calls, since threads may launch at the same time.
    SASH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(Words::kMostBytes)));
    launch_kernel(context, int64_t{call.all_heads} * call.row_blocks, kThreads, bytes, kernel, call,
                  shape);
  };
  if (call.depth <= 64) return launch(std::integral_constant<int, 2>());
  if (call.depth <= 128) return launch(std::integral_constant<int, 4>());
  launch(std::integral_constant<int, kMostFeatures / 32>());
}

}  // namespace sash::cuda::selection
