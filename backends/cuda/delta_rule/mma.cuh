#pragma once

#include "../attention/mma/tile.cuh"
#include "common.cuh"
#include "mma.h"

/// What the kernels of the gated delta rule on tensor cores share. With b, f, A, P of
/// `ops/kernels/delta_rule.h`, X = A (I + beta A)^-1 and P, and what else does not depend on
/// states, are formed for all chunks at the same time. Then states go from chunk to chunk:
///
///     y = v - S (b k),    w = y - X beta y,    u = beta w
///     S <- b[last] S + (f k)' u,    out = S (scale b q) + P u
///
namespace sash::cuda::delta {

using namespace mma;

using Half = __nv_bfloat16;

/// Four 8 x 8 matrices of a block of 16 x 16, in the order in which instructions want them. `right`
/// and `left` are operands whose rows are rows of the memory, `right_down` and `left_down` operands
/// whose rows are columns of the memory.
///
/// Memory has matrices [rows / 8][kDepth / 8], each 128 bytes together. So warps read and write
/// whole matrices, and wgmma takes a panel as it is.
template <int kDepth>
struct Panel {
  __device__ explicit Panel(uint32_t shared)
      : straight_(shared + place(lane() / 16, lane() / 8 % 2)),
        crossed_(shared + place(lane() / 8 % 2, lane() / 16)) {}

  /// Bytes from the start to a matrix: rows from 8 `r`, columns from 8 `c` on.
  static __host__ __device__ constexpr int matrix(int r, int c) {
    return (r * (kDepth / 8) + c) * 128;
  }
  static __device__ int element(int row, int column) {
    return matrix(row / 8, column / 8) + row % 8 * 16 + column % 8 * 2;
  }
  /// Bytes to this lane's word of a matrix: its place in sums of products.
  static __device__ int word(int r, int c) { return matrix(r, c) + lane() * 4; }

  __device__ void right(uint32_t (&b)[4], int r, int c) const {
    load_matrices(b, straight_ + block(r, c));
  }
  __device__ void left(uint32_t (&a)[4], int r, int c) const {
    load_matrices(a, crossed_ + block(r, c));
  }
  __device__ void right_down(uint32_t (&b)[4], int r, int c) const {
    load_transposed(b, crossed_ + block(r, c));
  }
  __device__ void left_down(uint32_t (&a)[4], int r, int c) const {
    load_transposed(a, straight_ + block(r, c));
  }

 private:
  static __device__ constexpr uint32_t block(int r, int c) {
    return static_cast<uint32_t>(matrix(2 * r, 2 * c));
  }
  static __device__ uint32_t place(int r, int c) {
    return static_cast<uint32_t>(matrix(r, c) + lane() % 8 * 16);
  }

  uint32_t straight_, crossed_;
};

/// The same functions for rows of a tile. Threads read and write a row's elements without
/// conflicts.
template <int kDepth>
struct RowTile {
  using X = Tile<Half, kDepth>;
  static constexpr int kBytes = 64 * kDepth * 2;

  __device__ explicit RowTile(uint32_t shared) : left_(X::left(shared)), right_(X::right(shared)) {}

  /// Bytes to element (first + j, column), `first` a multiple of 8, and to this lane's word of a
  /// matrix.
  static __device__ int element(int first, int j, int column) {
    return first * X::kRowBytes + static_cast<int>(X::offset(j, column / 8)) + column % 8 * 2;
  }
  static __device__ int word(int r, int c) {
    return static_cast<int>(X::offset(8 * r + lane() / 4, c)) + lane() % 4 * 4;
  }

  __device__ void right(uint32_t (&b)[4], int r, int c) const {
    load_matrices(b, X::moved(right_, 16 * r, 2 * c));
  }
  __device__ void left(uint32_t (&a)[4], int r, int c) const {
    load_matrices(a, X::moved(left_, 16 * r, 2 * c));
  }
  __device__ void right_down(uint32_t (&b)[4], int r, int c) const {
    load_transposed(b, X::moved(left_, 16 * r, 2 * c));
  }
  __device__ void left_down(uint32_t (&a)[4], int r, int c) const {
    uint32_t raw[4];
    load_transposed(raw, X::moved(left_, 16 * r, 2 * c));
    a[0] = raw[0], a[1] = raw[2], a[2] = raw[1], a[3] = raw[3];
  }

 private:
  uint32_t left_, right_;
};

/// Sums [16][16] of a warp.
using Sums16 = float[2][4];

__device__ inline void multiply(Sums16& sum, const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  Operand<Half>::multiply(sum[0], a, b[0], b[1]);
  Operand<Half>::multiply(sum[1], a, b[2], b[3]);
}

/// Sums [16][16] as a left operand.
__device__ inline void left_of(uint32_t (&a)[4], const Sums16& sum) {
  Operand<Half>::from_sums(a, sum, 0);
}

/// The row and the column of an accumulator in [16][16].
__device__ inline int row_in(int e) { return lane() / 4 + e / 2 * 8; }
__device__ inline int column_in(int n, int e) { return n * 8 + lane() % 4 * 2 + e % 2; }

__device__ inline float2 operator*(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }
__device__ inline float2 operator*(float a, float2 b) { return {a * b.x, a * b.y}; }

/// The two numbers of a row of an accumulator: row lane / 4 + 8 `half`.
__device__ inline float2 pair_of(const float (&sum)[4], int half) {
  return {sum[2 * half], sum[2 * half + 1]};
}
__device__ inline void scale_pair(float (&sum)[4], int half, float2 by) {
  sum[2 * half] *= by.x;
  sum[2 * half + 1] *= by.y;
}
__device__ inline void add_pair(float (&sum)[4], int half, float2 x, float2 y) {
  sum[2 * half] += x.x * y.x;
  sum[2 * half + 1] += x.y * y.y;
}
__device__ inline uint32_t pack(float2 pair) { return Operand<Half>::pack(pair.x, pair.y); }
/// The products of the elements of two packed pairs.
__device__ inline uint32_t multiply_halves(uint32_t x, uint32_t y) {
  const __nv_bfloat162 product = __hmul2(reinterpret_cast<const __nv_bfloat162&>(x),
                                         reinterpret_cast<const __nv_bfloat162&>(y));
  return reinterpret_cast<const uint32_t&>(product);
}
__device__ inline float2 unpack(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
__device__ inline uint32_t& word_at(void* memory, int byte) {
  return *reinterpret_cast<uint32_t*>(static_cast<unsigned char*>(memory) + byte);
}
__device__ inline uint32_t word_at(const void* memory, int byte) {
  return *reinterpret_cast<const uint32_t*>(static_cast<const unsigned char*>(memory) + byte);
}
__device__ inline Half& half_at(void* memory, int byte) {
  return *reinterpret_cast<Half*>(static_cast<unsigned char*>(memory) + byte);
}

/// Stores sums [16][16] at rows from 16 `r` and columns from 16 `c` of a panel or tile.
template <class Layout>
__device__ void store(void* memory, const Sums16& sum, int r, int c, float factor = 1) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      word_at(memory, Layout::word(2 * r + half, 2 * c + n)) = pack(factor * pair_of(sum[n], half));
    }
  }
}

/// Multiplies the columns of a left operand [16][16] by factors of 16 columns.
__device__ inline void scale_columns(uint32_t (&a)[4], const float* factors) {
  const float2 low = *reinterpret_cast<const float2*>(factors + lane() % 4 * 2);
  const float2 high = *reinterpret_cast<const float2*>(factors + 8 + lane() % 4 * 2);
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = pack(unpack(a[i]) * (i < 2 ? low : high));
}

/// Starts to copy a contiguous array, as one of `kThreadCount` threads.
template <int kThreadCount, int kBytes>
__device__ void copy_array(int thread, uint32_t to, const void* from) {
  static_assert(kBytes % 16 == 0);
  const auto* const first = static_cast<const unsigned char*>(from) + thread * 16;
#pragma unroll
  for (int i = 0; i < kBytes; i += kThreadCount * 16) {
    if (i + kThreadCount * 16 > kBytes && thread * 16 >= kBytes - i) break;
    copy_async(to + static_cast<uint32_t>(i + thread * 16), first + i, true);
  }
}

/// Replaces 64 numbers by the sums of the numbers up to each, or, `down`, from each on. One warp
/// calls this.
__device__ inline void running_sums(float* x, bool down) {
  const int i = down ? 62 - 2 * lane() : 2 * lane();
  float2 pair = *reinterpret_cast<float2*>(x + i);
  const float sum = pair.x + pair.y;
  float before = sum;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const float other = __shfl_up_sync(~0u, before, step);
    if (lane() >= step) before += other;
  }
  before = __shfl_up_sync(~0u, before, 1);
  if (lane() == 0) before = 0;
  pair = down ? float2{before + sum, before + pair.y} : float2{before + pair.x, before + sum};
  *reinterpret_cast<float2*>(x + i) = pair;
  __syncwarp();
}

/// A level of the halving of a chunk: in each run of 2 kHalf tokens, the pairs of a token of the
/// upper half and one of the lower half. The decay between the two is a product of two decays: from
/// the middle of the run up to the one, and from the other up to the middle. So one operand of
/// a product of matrices has the first decay, the other operand has the second. All levels
/// together have all pairs of different tokens.
///
/// A thread has two neighbouring features and half of the tokens. It calls put(first, j, upper,
/// decay, x) for each token first + j, with the decay between it and the middle of its run; `first`
/// is a multiple of 8, `upper` whether the token is in the upper half. load(first, j) is x: the
/// decay of the token, `x.decay`, and what `put` wants. Loops are not unrolled further than eight
/// tokens: as long a body as a chunk does not stay in the cache of instructions, and took ten times
/// as long.
template <int kHalf, class Load, class Put>
__device__ void each_decay_of_level(int half_of_tokens, const Load& load, const Put& put) {
  const int begin = half_of_tokens * (kChunk / 2), end = begin + kChunk / 2;
  decltype(load(0, 0)) x[8];
  const auto load_eight = [&](int first) {
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = load(first, j);
  };
  // `size` tokens from first + middle on, and as many before it.
  const auto put_up = [&](int first, int middle, int size, float2& decay) {
#pragma unroll
    for (int j = middle; j < middle + size; ++j) {
      decay = decay * x[j].decay;
      put(first, j, true, decay, x[j]);
    }
  };
  const auto put_down = [&](int first, int middle, int size, float2& decay) {
#pragma unroll
    for (int j = middle - 1; j >= middle - size; --j) {
      put(first, j, false, decay, x[j]);
      decay = decay * x[j].decay;
    }
  };
  if constexpr (kHalf < 8) {
#pragma unroll 1
    for (int first = begin; first < end; first += 8) {
      load_eight(first);
#pragma unroll
      for (int middle = kHalf; middle < 8; middle += 2 * kHalf) {
        float2 up{1, 1}, down{1, 1};
        put_up(first, middle, kHalf, up);
        put_down(first, middle, kHalf, down);
      }
    }
  } else {
    // With kHalf = 32, each half of the tokens is half of the only run.
#pragma unroll 1
    for (int run = begin; run < end; run += 2 * kHalf) {
      const int middle = kHalf == 32 ? kChunk / 2 : run + kHalf;
      float2 decay{1, 1};
#pragma unroll 1
      for (int first = middle; first < min(middle + kHalf, end); first += 8) {
        load_eight(first);
        put_up(first, 0, 8, decay);
      }
      decay = {1, 1};
#pragma unroll 1
      for (int first = middle - 8; first >= max(middle - kHalf, begin); first -= 8) {
        load_eight(first);
        put_down(first, 8, 8, decay);
      }
    }
  }
}
/// Whether (t, i) is a pair of the level.
template <int kHalf>
__device__ bool in_level(int t, int i) {
  return t / (2 * kHalf) == i / (2 * kHalf) && t % (2 * kHalf) >= kHalf && i % (2 * kHalf) < kHalf;
}
template <class F>
__device__ void each_level(const F& f) {
  f.template operator()<32>();
  f.template operator()<16>();
  f.template operator()<8>();
  f.template operator()<4>();
  f.template operator()<2>();
  f.template operator()<1>();
}

/// b as a divisor. Kernels divide by b if, for each feature, the decays of each half of the chunk
/// multiply to at least exp(-60) (`suits`). They multiply b by `lift`, a power of two that makes b
/// about 1 in the middle of the chunk, so that b and 1 / b are in a float's range. `drop` is
/// 1 / lift. Both are for two features. `low` is the product of the decays of the first half.
struct Divisor {
  static constexpr float kLeast = 8.76e-27f;  // exp(-60)

  __device__ explicit Divisor(float2 low)
      : lift{lift_of(low.x), lift_of(low.y)}, drop{drop_of(low.x), drop_of(low.y)} {}
  __device__ static bool suits(float2 half) { return half.x >= kLeast && half.y >= kLeast; }

  float2 lift, drop;

 private:
  // The bits of an exponent, and twice those that 1 has.
  static constexpr uint32_t kExponent = 0x7f800000, kTwiceOne = 254u << 23;

  __device__ static float drop_of(float x) {
    return __uint_as_float(__float_as_uint(x) & kExponent);
  }
  __device__ static float lift_of(float x) {
    return __uint_as_float(kTwiceOne - (__float_as_uint(x) & kExponent));
  }
};

constexpr float kLeastGate = -200;  // exp of less is 0

/// The decay of a feature at a token. Without a branch, so that many are loaded at the same time.
__device__ inline float decay_of(const Chunk<Half>& c, int t, int d) {
  const int depth = c.x.sizes.depth;
  const float* const g = c.x.g + c.token * depth;
  const float decay = __expf(g[min(t, c.count - 1) * depth + min(d, depth - 1)]);
  return t < c.count && d < depth ? decay : 1;
}

/// Writes the decays of a chunk to [64][kWidth]. All threads call this.
template <int kWidth, int kThreadCount>
__device__ void store_decays(float* decays, const Chunk<Half>& c) {
  static_assert(kThreadCount % kWidth == 0);
  const int thread = static_cast<int>(threadIdx.x) % kThreadCount, d = thread % kWidth;
#pragma unroll 16
  for (int t = thread / kWidth; t < kChunk; t += kThreadCount / kWidth) {
    decays[t * kWidth + d] = decay_of(c, t, d);
  }
}

/// Arrays of all chunks of all value heads. kWidth is D and D_v, rounded up to 64 or 128. An array
/// that a pass does not need is null.
struct Arrays {
  Half *x, *p;      ///< panels [64][64]; X is 0 without a delta term
  Half *b, *f, *q;  ///< panels [64][kWidth] of b k, f k and scale b q
  float* e;         ///< `Factors`, floats
  float* growth;    ///< logarithm of the most by which a chunk enlarges a state: with a decay for
                    ///< each head a bound, otherwise a guess
  Half* states;     ///< S', panels [kWidth][kWidth]: before chunks, see `Call::keeps`
  Half* w;          ///< w', panels [kWidth][64]
  // Panels of 64 columns that `Call::row_index` numbers: gradients of the halves of states after
  // chunks [64][kWidth], and of u [kWidth][64].
  Half *dstates[2], *du;
  int run_log2;  ///< of the number of chunks of a run
};

/// Floats of a chunk in `Arrays::e`: b[last] for each feature. For each token, the factors f,
/// scale b of queries and b of keys of rows that are not in panels; that of keys is 0 without a
/// delta term. Then beta, or 1 without a delta term, and the sum of g, times log2(e).
template <int kWidth>
struct Factors {
  static constexpr int kF = kWidth, kQ = kF + kChunk, kK = kQ + kChunk, kU = kK + kChunk,
                       kSums = kU + kChunk, kCount = kSums + kChunk;
};

struct Call : Operands<Half> {
  Call(const Inputs& x, const Arrays& all) : Operands(x, {}), arrays(all) {}
  __device__ int64_t index(const Place& at, int head) const {
    return at.slot * sizes.value_heads + head;
  }
  /// The number of a chunk in the order of the rows of v.
  __device__ int64_t row_index(const Place& at, int head) const {
    const int64_t of_row = sizes.bounds ? sizes.slots : sizes.slots_of_row;
    return (int64_t{at.b} * sizes.value_heads + head - at.b) * of_row + at.slot;
  }
  /// On Hopper, with a decay for each head, the forward pass keeps the state before the first chunk
  /// of each text and of each run. The kernel of gradients forms the others.
  __device__ bool keeps(const Place& at) const { return at.is_first || is_first_of_run(at.slot); }
  __device__ bool is_first_of_run(int64_t slot) const {
    return (slot & ((1 << arrays.run_log2) - 1)) == 0;
  }
  /// The place of such a state in `Arrays::states`.
  __device__ int64_t kept_index(const Place& at, int head) const {
    const int64_t row = at.is_first ? runs() + at.text : at.slot >> arrays.run_log2;
    return row * sizes.value_heads + head;
  }
  __device__ int64_t runs() const {
    return (sizes.slots + (1 << arrays.run_log2) - 1) >> arrays.run_log2;
  }

  Arrays arrays;
};

/// `f<kWidth>()` for the features of a call.
template <class F>
void with_width(const Inputs& x, const F& f) {
  if (std::max(x.q.shape[3], x.v.shape[3]) <= 64) return f.template operator()<64>();
  f.template operator()<128>();
}

/// `f<kFeatures>()`: whether there is a decay for each feature.
template <class F>
void with_gates(const Sizes& x, const F& f) {
  if (x.gates > 1) return f.template operator()<true>();
  f.template operator()<false>();
}

inline int64_t chunks_of(const Inputs& x) { return x.slots() * x.v.shape[1]; }

/// The arrays of all chunks up to `e`.
template <int kWidth>
void prepare(const KernelContext& context, const Call& call);

}  // namespace sash::cuda::delta
