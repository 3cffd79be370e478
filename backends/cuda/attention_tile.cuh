#pragma once

#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "../../core/error.h"
#include "../../core/philox.h"
#include "../../ops/kernels/attention.h"
#include "compute.cuh"

/// What the forward and the backward kernels of attention share.
///
/// A block of 128 threads works on square tiles of scores. Its threads stand in 8 rows of 16: the
/// thread at (ty, tx) owns rows ty, ty + 8, ... and columns tx, tx + 16, ... of a tile of scores,
/// and the same rows of what is summed from it. So a row's owners are half a warp: its maxima and
/// sums need shuffles, and its weights can go through shared memory, without a block's barrier.
/// Tiles lie in shared memory in the type of the arithmetic, [row][feature], with 16 bytes after
/// each row so that 16-byte reads of 8 neighbouring rows meet no bank twice; rows and features past
/// the end are 0.
namespace sash::cuda {

void attention_backward(KernelContext& context, const TensorView& g, const TensorView& q,
                        const TensorView& k, const TensorView& v, const TensorView& out,
                        const TensorView& lse, const kernels::AttentionParams& params,
                        const TensorView& dq, const TensorView& dk, const TensorView& dv);

namespace attn {

inline constexpr int kBlock = 128;
inline constexpr int kAcross = 16;
inline constexpr int kDown = kBlock / kAcross;

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;
template <class C>
inline constexpr C kInfinity = std::numeric_limits<C>::infinity();

/// What is known of one score beforehand.
enum Flag : uint8_t { kVisible = 1, kKept = 2 };

/// [B, H, S, n] with unit stride along n. `vectors`: every row can be read 16 bytes at a time.
template <class T>
struct Rows {
  T* data;
  int64_t batch, head, row;
  int width;
  bool vectors;

  __device__ Rows at(int64_t b, int64_t h) const {
    Rows rows = *this;
    rows.data += b * batch + h * head;
    return rows;
  }
};

template <class T>
Rows<T> rows_of(const TensorView& x) {
  using Element = std::remove_const_t<T>;
  constexpr int64_t per_vector = 16 / sizeof(Element);
  bool vectors = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.shape[3] % per_vector == 0;
  for (int axis = 0; axis < 3; ++axis) {
    vectors = vectors && (x.shape[axis] == 1 || x.strides[axis] % per_vector == 0);
  }
  return {static_cast<T*>(x.data),      x.strides[0], x.strides[1], x.strides[2],
          static_cast<int>(x.shape[3]), vectors};
}

/// One call, apart from its operands.
template <class C>
struct Problem {
  int64_t batches, heads, groups, queries, keys;
  C scale;
  bool causal;
  const bool* mask;  ///< null: none
  int64_t mask_step[4];
  bool dropout;
  uint32_t threshold;
  C kept;
  PhiloxState random;

  Problem(const TensorView& q, const TensorView& k, const kernels::AttentionParams& params)
      : batches(q.shape[0]),
        heads(q.shape[1]),
        groups(k.shape[1]),
        queries(q.shape[2]),
        keys(k.shape[2]),
        scale(static_cast<C>(params.scale)),
        causal(params.causal),
        mask(params.mask ? params.mask->ptr<const bool>() : nullptr),
        mask_step{},
        dropout(params.dropout > 0),
        threshold(dropout_threshold(params.dropout)),
        kept(params.dropout == 1 ? C(0) : static_cast<C>(1 / (1 - params.dropout))),
        random(params.philox) {
    for (int axis = 0; params.mask && axis < 4; ++axis) {
      mask_step[axis] = params.mask->strides[axis];
    }
  }

  __device__ int64_t group_of(int64_t h) const { return h / (heads / groups); }
  __device__ int64_t row_of(int64_t b, int64_t h) const { return (b * heads + h) * queries; }
  __device__ int64_t offset() const { return keys - queries; }
  __device__ C factor(uint8_t flag) const { return flag & kKept ? kept : C(0); }
};

/// Which scores of one head (b, h) count.
struct Visible {
  const bool* mask;
  int64_t mask_row, mask_column;
  int64_t queries, keys;
  bool causal;

  template <class C>
  __device__ Visible(const Problem<C>& p, int64_t b, int64_t h)
      : mask(p.mask ? p.mask + b * p.mask_step[0] + h * p.mask_step[1] : nullptr),
        mask_row(p.mask_step[2]),
        mask_column(p.mask_step[3]),
        queries(p.queries),
        keys(p.keys),
        causal(p.causal) {}

  __device__ bool operator()(int64_t query, int64_t key) const {
    if (query >= queries || key >= keys) return false;
    if (causal && key > query + keys - queries) return false;
    return !mask || mask[query * mask_row + key * mask_column];
  }
  /// Whether all of a tile that starts here is visible.
  __device__ bool all(int64_t query, int64_t key, int rows) const {
    return !mask && query + rows <= queries && key + rows <= keys &&
           (!causal || key + rows - 1 <= query + keys - queries);
  }
  /// The keys [0, end) hold all that queries before `end_query` see.
  __device__ int64_t key_end(int64_t end_query) const {
    if (!causal) return keys;
    const int64_t end = end_query + keys - queries;
    return end < 0 ? 0 : end < keys ? end : keys;
  }
  /// No query before this one sees `key` or a later key.
  __device__ int64_t first_query(int64_t key) const {
    const int64_t first = causal ? key - (keys - queries) : 0;
    return first > 0 ? first : 0;
  }
};

/// Arithmetic in C on tiles of `rows_` rows; heads of up to `width_` features.
template <class C, int width_, int rows_>
struct Tile {
  static constexpr int kWidth = width_, kRows = rows_;
  static constexpr int kVector = 16 / sizeof(C);
  static constexpr int kStride = kWidth + kVector;
  static constexpr int kSize = kRows * kStride;
  /// Of a tile of scores or weights.
  static constexpr int kSquareStride = kRows + kVector;
  static constexpr int kSquareSize = kRows * kSquareStride;
  /// Of a tile of flags [query][key].
  static constexpr int kFlagStride = kRows + 4;
  static constexpr int kFlagSize = kRows * kFlagStride;
  /// A thread's share of a tile of scores, and the features of a row that it sums.
  static constexpr int kMyRows = kRows / kDown, kMyColumns = kRows / kAcross;
  static constexpr int kMyFeatures = kWidth / kAcross;
  /// Features come in runs of kRun side by side.
  static constexpr int kRun = kMyFeatures < kVector ? kMyFeatures : kVector;

  using Scores = C[kMyRows][kMyColumns];
  using Sums = C[kMyRows][kMyFeatures];

  static __device__ int ty() { return static_cast<int>(threadIdx.x) / kAcross; }
  static __device__ int tx() { return static_cast<int>(threadIdx.x) % kAcross; }
  static __device__ int row(int i) { return ty() + kDown * i; }
  static __device__ int column(int j) { return tx() + kAcross * j; }
  static __device__ int feature(int run) { return (run * kAcross + tx()) * kRun; }

  /// Rows [first, min(first + kRows, end)) of `x` to `to`, by the whole block.
  template <class T>
  static __device__ void read(const Rows<const T>& x, int64_t first, int64_t end, C* to) {
    constexpr int wide = 16 / static_cast<int>(sizeof(T));
    if (x.vectors) {
      read_vectors<wide>(x, first, end, to);
    } else {
      read_vectors<1>(x, first, end, to);
    }
  }

  /// sum[i][j] += a[row i] . b[row j]; the rows of b are the columns of the scores.
  static __device__ void multiply_rows(const C* a, const C* b, Scores& sum) {
    a += ty() * kStride;
    b += tx() * kStride;
#pragma unroll 4
    for (int d = 0; d < kWidth; d += kVector) {
      Vector<C, kVector> x[kMyRows];
#pragma unroll
      for (int i = 0; i < kMyRows; ++i) x[i] = vector<kVector>(a + i * kDown * kStride + d);
#pragma unroll
      for (int j = 0; j < kMyColumns; ++j) {
        const auto y = vector<kVector>(b + j * kAcross * kStride + d);
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
#pragma unroll
          for (int i = 0; i < kMyRows; ++i) sum[i][j] += x[i].element[e] * y.element[e];
        }
      }
    }
  }

  /// sum[i] += sum over j of weights[row i][j] x[j], features by features. The weights have been
  /// written by this half of the warp.
  static __device__ void multiply(const C* weights, const C* x, Sums& sum) {
    weights += ty() * kSquareStride;
#pragma unroll 2
    for (int j = 0; j < kRows; j += kVector) {
      Vector<C, kVector> w[kMyRows];
#pragma unroll
      for (int i = 0; i < kMyRows; ++i) {
        w[i] = vector<kVector>(weights + i * kDown * kSquareStride + j);
      }
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
#pragma unroll
        for (int run = 0; run < kMyFeatures / kRun; ++run) {
          const auto y = vector<kRun>(x + (j + e) * kStride + feature(run));
#pragma unroll
          for (int f = 0; f < kRun; ++f) {
#pragma unroll
            for (int i = 0; i < kMyRows; ++i) {
              sum[i][run * kRun + f] += w[i].element[e] * y.element[f];
            }
          }
        }
      }
    }
  }

  /// f(score, row, column) for each score of this thread.
  template <class F>
  static __device__ void for_each(Scores& x, F f) {
#pragma unroll
    for (int i = 0; i < kMyRows; ++i) {
#pragma unroll
      for (int j = 0; j < kMyColumns; ++j) f(x[i][j], row(i), column(j));
    }
  }

  /// A thread's share of a tile of weights, to shared memory.
  static __device__ void put(Scores& x, C* to) {
    for_each(x, [to](C& weight, int i, int j) { to[i * kSquareStride + j] = weight; });
  }

  /// Rows [first, min(first + kRows, end)) of `y`: the sums times one factor a row.
  template <class T>
  static __device__ void write(const Sums& sum, const C (&factor)[kMyRows], const Rows<T>& y,
                               int64_t first, int64_t end) {
#pragma unroll
    for (int i = 0; i < kMyRows; ++i) {
      if (first + row(i) >= end) continue;
      T* to = y.data + (first + row(i)) * y.row;
#pragma unroll
      for (int run = 0; run < kMyFeatures / kRun; ++run) {
        Vector<T, kRun> result;
#pragma unroll
        for (int f = 0; f < kRun; ++f) {
          result.element[f] = narrow<T>(sum[i][run * kRun + f] * factor[i]);
        }
        const int left = y.width - feature(run);
        if (y.vectors) {
          if (left > 0) *reinterpret_cast<Vector<T, kRun>*>(to + feature(run)) = result;
          continue;
        }
#pragma unroll
        for (int f = 0; f < kRun; ++f) {
          if (f < left) to[feature(run) + f] = result.element[f];
        }
      }
    }
  }

  /// flags[i][j] for the tile of scores that starts at (query, key) of the head whose weights start
  /// at the element `head`; by the whole block.
  static __device__ void flag(const Problem<C>& p, const Visible& visible, int64_t head,
                              int64_t query, int64_t key, uint8_t* flags) {
    const uint64_t base = p.dropout ? (p.random.base ? *p.random.base : 0) + p.random.offset : 0;
    const int64_t corner = head + query * p.keys + key;
    // Tiles start at multiples of 4 keys: either a row is made of whole Philox blocks, or it may
    // need one more.
    const bool whole = !p.dropout || p.keys % 4 == 0;
    for (int task = static_cast<int>(threadIdx.x); task < kRows * (kRows / 4 + 1); task += kBlock) {
      const int i = task % kRows, n = task / kRows;
      if (whole && n == kRows / 4) return;
      int start = 4 * n;
      PhiloxBlock block{};
      if (p.dropout) {
        const auto first = static_cast<uint64_t>(corner + i * p.keys);
        block = philox(p.random.seed, base + first / 4 + static_cast<uint64_t>(n));
        start -= static_cast<int>(first % 4);
      }
#pragma unroll
      for (int lane = 0; lane < 4; ++lane) {
        const int j = start + lane;
        if (j < 0 || j >= kRows) continue;
        const int kept = block.lane[lane] >= p.threshold ? kKept : 0;
        const int seen = visible(query + i, key + j) ? kVisible : 0;
        flags[i * kFlagStride + j] = static_cast<uint8_t>(kept | seen);
      }
    }
  }

 private:
  template <int n>
  static __device__ Vector<C, n> vector(const C* x) {
    return *reinterpret_cast<const Vector<C, n>*>(x);
  }

  template <int wide, class T>
  static __device__ void read_vectors(const Rows<const T>& x, int64_t first, int64_t end, C* to) {
    // The block reads `down` rows at once; a thread stays with its features.
    constexpr int across = kWidth / wide < kBlock ? kWidth / wide : kBlock;
    constexpr int down = kBlock / across;
    static_assert(kRows % down == 0);
    constexpr int n = wide < kVector ? wide : kVector;
    const int rows = end - first < kRows ? static_cast<int>(end - first) : kRows;
    const int top = static_cast<int>(threadIdx.x) / across;
    for (int d = static_cast<int>(threadIdx.x) % across * wide; d < kWidth; d += across * wide) {
      const T* from = x.data + (first + top) * x.row + d;
#pragma unroll 8
      for (int turn = 0; turn < kRows / down; ++turn) {
        const int i = top + turn * down;
        Vector<T, wide> raw{};
        if (i < rows && d < x.width) raw = *reinterpret_cast<const Vector<T, wide>*>(from);
        from += down * x.row;
#pragma unroll
        for (int part = 0; part < wide; part += n) {
          Vector<C, n> cooked;
#pragma unroll
          for (int e = 0; e < n; ++e) cooked.element[e] = widen(raw.element[part + e]);
          *reinterpret_cast<Vector<C, n>*>(to + i * kStride + d + part) = cooked;
        }
      }
    }
  }
};

/// log2 of the weight before normalisation: the exponent's base is 2.
template <class C>
__device__ C exponent_scale(const Problem<C>& p) {
  return p.scale * static_cast<C>(kLog2E);
}

/// Over the half of a warp that owns a row.
template <class C, class F>
__device__ C reduce_row(C x, F f) {
#pragma unroll
  for (int step = kAcross / 2; step > 0; step /= 2) x = f(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

inline int64_t tiles_of(int64_t n, int rows) { return (n + rows - 1) / rows; }

/// How many blocks with `shared` bytes of shared memory and `registers` per thread fit a Hopper
/// multiprocessor.
constexpr int blocks_per_multiprocessor(int shared, int registers) {
  const int by_memory = 228 * 1024 / (shared + 1024), by_registers = 65536 / kBlock / registers;
  const int blocks = by_memory < by_registers ? by_memory : by_registers;
  return blocks > 0 ? blocks : 1;
}

/// Launches `blocks` blocks with `shared` bytes of shared memory. `allowed` holds a bit for each
/// card on which `kernel` may use them.
template <class... Parameters, class... Arguments>
void launch(const KernelContext& context, void (*kernel)(Parameters...),
            std::atomic<uint64_t>& allowed, int64_t blocks, int shared,
            const Arguments&... arguments) {
  if (blocks == 0) return;
  if (blocks > std::numeric_limits<int32_t>::max()) {
    throw ValueError("attention", "at most 2^31 - 1 tiles", std::to_string(blocks));
  }
  const CardGuard guard(context.device.index);
  const uint64_t bit = uint64_t{1} << context.device.index;
  if (!(allowed.load(std::memory_order_relaxed) & bit)) {
    SASH_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    SASH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared));
    allowed.fetch_or(bit, std::memory_order_relaxed);
  }
  kernel<<<static_cast<unsigned>(blocks), kBlock, static_cast<size_t>(shared),
           static_cast<cudaStream_t>(context.stream.handle)>>>(arguments...);
  SASH_CUDA_CHECK(cudaGetLastError());
}

/// Calls `f` with the narrowest width of tiles that holds heads of `features`.
template <class F>
void dispatch_width(int64_t features, F&& f) {
  if (features <= 32) return f(std::integral_constant<int, 32>{});
  if (features <= 64) return f(std::integral_constant<int, 64>{});
  if (features <= 128) return f(std::integral_constant<int, 128>{});
  if (features <= 256) return f(std::integral_constant<int, 256>{});
  throw NotImplemented("attention", "heads of at most 256 features on cuda",
                       std::to_string(features));
}

}  // namespace attn
}  // namespace sash::cuda
