#pragma once

#include <algorithm>
#include <limits>
#include <string>

#include "../../../../core/error.h"
#include "../../../../core/philox.h"
#include "../../../../ops/kernels/attention.h"
#include "../common/block_bounds.h"
#include "../common/launch.cuh"
#include "tile.cuh"

/// What the forward and the backward kernels without tensor cores share besides products: the
/// blocks to visit, masks, dropout, and the options of scores.
namespace sash::cuda::attn {

inline constexpr int kMapKeys = static_cast<int>(kernels::kBlockKeys);
inline constexpr int kMapRows = kMapKeys;  ///< queries of a block of the map
inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;
template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();

/// Bounds: a range of keys for each query, and their summary for each query block.
struct Ranges {
  const int2* row = nullptr;  ///< null: no bounds
  const int4* block = nullptr;
  int64_t batches = 1, heads = 1;
};

/// Options that few calls have.
template <class T>
struct Options {
  T softcap = 0;
  const T* bias = nullptr;
  int64_t bias_step[4] = {};
  const T* relative = nullptr;
  int64_t relative_step[2] = {};
  int radius = 0;  ///< R
  const T* slopes = nullptr;
  int64_t slopes_step = 0;

  explicit Options(const kernels::AttentionParams& params)
      : softcap(static_cast<T>(params.softcap)) {
    if (params.bias) {
      bias = params.bias->ptr<const T>();
      for (int axis = 0; axis < 4; ++axis) bias_step[axis] = params.bias->strides[axis];
    }
    if (params.relative_bias) {
      relative = params.relative_bias->ptr<const T>();
      for (int axis = 0; axis < 2; ++axis)
        relative_step[axis] = params.relative_bias->strides[axis];
      radius = static_cast<int>(params.relative_bias->shape[1] / 2);
    }
    if (params.slopes) {
      slopes = params.slopes->ptr<const T>();
      slopes_step = params.slopes->strides[0];
    }
  }
  bool any() const { return softcap != 0 || bias || relative || slopes; }
};

template <class T>
struct Dropout {
  bool any;
  uint32_t threshold;
  T kept;  ///< 1 / (1 - p): the factor of weights that dropout keeps
  PhiloxState random;

  explicit Dropout(const kernels::AttentionParams& params)
      : any(params.dropout > 0),
        threshold(dropout_threshold(params.dropout)),
        kept(params.dropout == 1 ? T(0) : static_cast<T>(1 / (1 - params.dropout))),
        random(params.philox) {}
};

/// The extents and options of a call.
template <class T>
struct SimpleDims {
  int64_t batches, heads, key_heads;
  int queries, keys;
  T scale;
  kernels::BlockMap map;
  Ranges ranges;
  Dropout<T> dropout;
  Options<T> options;

  SimpleDims(const kernels::AttentionInputs& x, const kernels::AttentionParams& params,
             const Ranges& bounds)
      : batches(x.q.shape[0]),
        heads(x.q.shape[1]),
        key_heads(x.k.shape[1]),
        queries(static_cast<int>(x.q.shape[2])),
        keys(static_cast<int>(x.k.shape[2])),
        scale(static_cast<T>(params.scale)),
        map(params.map),
        ranges(bounds),
        dropout(params),
        options(params) {}

  __device__ int64_t key_head_of(int64_t h) const { return h / (heads / key_heads); }
};

/// The bounds of a call, with the memory of their summary.
class Bounds {
 public:
  Bounds(const KernelContext& context, const kernels::AttentionParams& params)
      : summary_(context, params.bounds ? bytes_for(*params.bounds) : 0) {
    if (!params.bounds) return;
    summarise_bounds(context, *params.bounds, kMapRows, summary_.ptr<int4>());
    ranges_ = {params.bounds->ptr<const int2>(), summary_.ptr<const int4>(),
               params.bounds->shape[0], params.bounds->shape[1]};
  }
  const Ranges& ranges() const { return ranges_; }

 private:
  static int64_t bytes_for(const TensorView& bounds) {
    const int64_t blocks = (bounds.shape[2] + kMapRows - 1) / kMapRows;
    return bounds.shape[0] * bounds.shape[1] * blocks * static_cast<int64_t>(sizeof(int4));
  }
  Workspace summary_;
  Ranges ranges_;
};

/// The tile of rows of this block of threads, of `extent` rows a head.
struct RowTile {
  int64_t b, h;
  int tile, tiles;

  __device__ RowTile(int extent, int rows, int64_t heads) : tiles((extent + rows - 1) / rows) {
    const int64_t item = blockIdx.x / tiles;
    b = item / heads;
    h = item - b * heads;
    tile = static_cast<int>(blockIdx.x - item * tiles);
  }
};

/// The visible pairs of one head.
template <class T>
struct Visibility {
  const SimpleDims<T>& p;
  int64_t map_head, range_head;  ///< among those that differ

  __device__ Visibility(const SimpleDims<T>& dims, int64_t b, int64_t h)
      : p(dims),
        map_head((p.map.batches == 1 ? 0 : b) * p.map.heads + (p.map.heads == 1 ? 0 : h)),
        range_head((p.ranges.batches == 1 ? 0 : b) * p.ranges.heads +
                   (p.ranges.heads == 1 ? 0 : h)) {}

  /// Whether bounds show any pair, and all pairs, of a block.
  struct Coverage {
    bool any, all;
  };
  __device__ Coverage coverage(int query_block, int key_block) const {
    if (!p.ranges.row) return {true, true};
    const int4 lo_hi = p.ranges.block[range_head * p.map.query_blocks + query_block];
    const int key = key_block * kMapKeys, end = key + kMapKeys;
    return {key < lo_hi.w && end > lo_hi.x, key >= lo_hi.y && end <= lo_hi.z};
  }
  /// Bit j: whether the query sees key + j. `tile` is the block's bit tile, or -1.
  __device__ uint64_t row_bits(int tile, int query, int key) const {
    if (query >= p.queries) return 0;
    uint64_t seen = ~uint64_t{0};
    if (tile >= 0) {
      seen = p.map.bits[int64_t{tile} * kMapRows + query % kMapRows] >> (key % kMapKeys);
    }
    if (p.ranges.row) {
      const int2 range = p.ranges.row[range_head * p.queries + query];
      seen &= below(range.y - key) & ~below(range.x - key);
    }
    return seen;
  }

 private:
  static __device__ uint64_t below(int n) {
    return n >= 64 ? ~uint64_t{0} : n <= 0 ? 0 : (uint64_t{1} << n) - 1;
  }
};

/// Visits the blocks of a block row that bounds do not hide. By the whole block of threads: every
/// warp tests 32 entries at a time.
class BlockIterator {
 public:
  int block, tile;  ///< the current block and its bit tile, -1 if it is full
  bool masked;      ///< whether some of its pairs are hidden

  __device__ BlockIterator(const kernels::BlockList& list, int64_t row)
      : list_(list), at_(list.start[row]), full_(list.full_start[row]), end_(list.start[row + 1]) {}

  /// Goes on to the next block; coverage(n) is that of block n by bounds.
  template <class F>
  __device__ bool next(F coverage) {
    while (pending_ == 0) {
      if (at_ >= end_) return false;
      const int entry = at_ + static_cast<int>(threadIdx.x) % 32;
      bool any = false, all = false;
      if (entry < end_) {
        my_block_ = list_.block[entry];
        my_tile_ = entry < full_ ? list_.tile[entry] : -1;
        const auto seen = coverage(my_block_);
        any = seen.any;
        all = seen.all && entry >= full_;
      }
      pending_ = __ballot_sync(~0u, any);
      full_bits_ = __ballot_sync(~0u, all);
      at_ += 32;
    }
    const int lane = __ffs(static_cast<int>(pending_)) - 1;
    pending_ &= pending_ - 1;
    block = __shfl_sync(~0u, my_block_, lane);
    tile = __shfl_sync(~0u, my_tile_, lane);
    masked = !(full_bits_ >> lane & 1);
    return true;
  }

 private:
  const kernels::BlockList& list_;
  int at_, full_, end_;
  int my_block_ = 0, my_tile_ = -1;
  uint32_t pending_ = 0, full_bits_ = 0;
};

/// Which pairs of a tile are visible, and which dropout keeps: a word for each query, a bit for
/// each key.
template <int queries, int keys>
struct TileBits {
  uint64_t visible[queries], kept[queries];

  /// Fills the words for the tile that starts at (query, key), after a barrier. False, with nothing
  /// changed, if all of it is hidden. By the whole block, which syncs before it reads them.
  template <class T>
  __device__ bool fill(const Visibility<T>& visibility, const BlockIterator& blocks, int64_t head,
                       int query, int key) {
    const int i = static_cast<int>(threadIdx.x);
    if (blocks.masked) {
      constexpr uint64_t all = ~uint64_t{0} >> (64 - keys);
      const uint64_t word =
          i < queries ? visibility.row_bits(blocks.tile, query + i, key) & all : 0;
      if (!__syncthreads_or(word != 0)) return false;
      if (i < queries) visible[i] = word;
    } else {
      __syncthreads();
    }
    if (visibility.p.dropout.any) draw(visibility.p, head, query, key);
    return true;
  }

 private:
  /// 16 keys a task. Bits past the last key of the tile are not read.
  template <class T>
  __device__ void draw(const SimpleDims<T>& p, int64_t head, int query, int key) {
    constexpr int turns = (keys + 15) / 16;
    const PhiloxState& random = p.dropout.random;
    const uint64_t base = (random.base ? *random.base : 0) + random.offset;
    for (int task = static_cast<int>(threadIdx.x); task < queries * turns; task += kBlock) {
      const int i = task / turns, turn = task % turns;
      const auto first =
          static_cast<uint64_t>((head * p.queries + query + i) * p.keys + key + 16 * turn);
      const int lead = static_cast<int>(first % 4);
      uint32_t bits = 0;
      for (int n = 0; n < (lead ? 5 : 4); ++n) {
        const PhiloxBlock block = philox(random.seed, base + first / 4 + static_cast<uint64_t>(n));
#pragma unroll
        for (int lane = 0; lane < 4; ++lane) {
          bits |= uint32_t{block.lane[lane] >= p.dropout.threshold} << (4 * n + lane);
        }
      }
      reinterpret_cast<uint16_t*>(kept + i)[turn] = static_cast<uint16_t>(bits >> lead);
    }
  }
};

/// From products q . k of one head to scores, times log2(e): exponents have the base 2. The rows of
/// a tile S are queries, or keys if `keys_down`.
template <class T, bool general, class S, bool keys_down = false>
class Scores {
 public:
  using Tile = typename S::Scores;

  __device__ Scores(const SimpleDims<T>& p, int64_t b, int64_t h)
      : p_(p), factor_(p.scale * (general ? T(1) : static_cast<T>(kLog2E))) {
    if constexpr (general) {
      const Options<T>& options = p.options;
      if (options.bias) bias_ = options.bias + b * options.bias_step[0] + h * options.bias_step[1];
      if (options.relative) relative_ = options.relative + h * options.relative_step[0];
      if (options.slopes) slope_ = options.slopes[h * options.slopes_step];
    }
  }

  /// Of the tile that starts at (query, key). Scores past the end come to something finite.
  /// `cap_grad`, if given, becomes the derivative of the softcap; left alone if there is none.
  __device__ void operator()(Tile& score, int query, int key, Tile* cap_grad = nullptr) const {
    S::for_each([&](int i, int j) { score[i][j] *= factor_; });
    if constexpr (general) {
      const Options<T>& options = p_.options;
      if (options.softcap != 0) cap(score, cap_grad);
      if (options.bias) add_bias(score, query, key);
      const int corner = key - query - (p_.keys - p_.queries);
      if (options.relative) {
        S::for_each([&](int i, int j) {
          const int distance = corner + relative_distance(i, j);
          const int place = max(-options.radius, min(distance, options.radius)) + options.radius;
          score[i][j] += relative_[place * options.relative_step[1]];
        });
      }
      if (options.slopes) {
        S::for_each([&](int i, int j) {
          score[i][j] -= slope_ * static_cast<T>(abs(corner + relative_distance(i, j)));
        });
      }
      S::for_each([&](int i, int j) { score[i][j] *= static_cast<T>(kLog2E); });
    }
  }

 private:
  static __device__ int query_of(int i, int j) { return keys_down ? S::column(j) : S::row(i); }
  static __device__ int key_of(int i, int j) { return keys_down ? S::row(i) : S::column(j); }
  static __device__ int relative_distance(int i, int j) { return key_of(i, j) - query_of(i, j); }

  __device__ void cap(Tile& score, Tile* cap_grad) const {
    const T softcap = p_.options.softcap;
    S::for_each([&](int i, int j) {
      const T tanh = std::tanh(score[i][j] / softcap);
      score[i][j] = softcap * tanh;
      if (cap_grad) (*cap_grad)[i][j] = 1 - tanh * tanh;
    });
  }
  __device__ void add_bias(Tile& score, int query, int key) const {
    const int64_t down = p_.options.bias_step[2], across = p_.options.bias_step[3];
    S::for_each([&](int i, int j) {
      const int m = query + query_of(i, j), n = key + key_of(i, j);
      if (m < p_.queries && n < p_.keys) score[i][j] += bias_[m * down + n * across];
    });
  }

  const SimpleDims<T>& p_;
  T factor_;
  const T* bias_ = nullptr;
  const T* relative_ = nullptr;
  T slope_ = 0;
};

/// 2^x. What float32 holds only as a subnormal number is 0.
inline __device__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
inline __device__ double power_of_two(double x) { return std::exp2(x); }

inline int64_t tiles_of(int64_t n, int rows) { return (n + rows - 1) / rows; }

/// How many blocks with `shared` bytes of shared memory and `registers` per thread fit a Hopper
/// multiprocessor.
constexpr int blocks_per_multiprocessor(int shared, int registers) {
  const int by_memory = 228 * 1024 / (shared + 1024), by_registers = 65536 / kBlock / registers;
  const int blocks = by_memory < by_registers ? by_memory : by_registers;
  return blocks > 0 ? blocks : 1;
}

/// The features of the widest operand, which decide the width of tiles. `NotImplemented` above 256.
inline int64_t features_of(const kernels::AttentionInputs& x) {
  const int64_t features = std::max(x.q.shape[3], x.v.shape[3]);
  if (features <= 256) return features;
  throw NotImplemented("attention", "heads of at most 256 features on cuda",
                       std::to_string(features));
}

/// Calls `f` with the narrowest width of tiles that holds heads of `features`, and whether the
/// kernel is general: it has options. float64 has general kernels only.
template <class T, class F>
void dispatch_tile(int64_t features, const SimpleDims<T>& p, F&& f) {
  const auto with_options = [&]<int width>(std::integral_constant<int, width> n) {
    if constexpr (sizeof(T) == 4) {
      if (!p.options.any()) return f(n, std::false_type{});
    }
    f(n, std::true_type{});
  };
  if (features <= 32) return with_options(std::integral_constant<int, 32>{});
  if (features <= 64) return with_options(std::integral_constant<int, 64>{});
  if (features <= 128) return with_options(std::integral_constant<int, 128>{});
  with_options(std::integral_constant<int, 256>{});
}

}  // namespace sash::cuda::attn
