#include "../families.h"

#include "../../../../core/backend/dispatch.h"
#include "../common/diagonals.cuh"
#include "../common/limits.h"
#include "scores.cuh"

/// The gradient of attention, from the saved log-sum-exp; formulas in ops/kernels/attention.h. One
/// kernel forms rows of dQ and another rows of dK and dV. Each recomputes P and dS, and every sum
/// has one order.
namespace sash::cuda {
namespace {

using namespace attn;

template <class T, int width_, int rows, int columns>
struct BackwardTile : Tile<T, width_, rows, columns> {
  using Base = Tile<T, width_, rows, columns>;
  using QueryBits = TileBits<rows, columns>;  ///< where rows are queries
  using KeyBits = TileBits<columns, rows>;
  static constexpr int kBytes = static_cast<int>(sizeof(T));
  /// dS reuses the memory of values.
  static constexpr int kValueSize = std::max(Base::kStepSize, Base::kSquareSize);
  static constexpr int kQueryShared = kBytes * (2 * Base::kSize + Base::kStepSize + kValueSize) +
                                      static_cast<int>(sizeof(QueryBits));
  static constexpr int kQueryBlocks = blocks_per_multiprocessor(kQueryShared, 168);
  static constexpr int kKeyShared =
      kBytes * (2 * Base::kSize + 2 * Base::kStepSize + Base::kSquareSize + 2 * columns) +
      static_cast<int>(sizeof(KeyBits));
  static constexpr int kKeyBlocks = blocks_per_multiprocessor(kKeyShared, width_ <= 32 ? 168 : 232);
  static constexpr int kMost = std::max(kQueryShared, kKeyShared);
};

template <class T, int width>
inline constexpr int kBackwardRows = width * sizeof(T) <= 256 && sizeof(T) == 4 ? 64
                                     : width * sizeof(T) <= 1024                ? 32
                                                                                : 16;
template <class T, int width>
using LargeTile = BackwardTile<T, width, kBackwardRows<T, width>, kBackwardRows<T, width>>;
/// Of wide heads, where a block of threads has less shared memory.
template <class T, int width>
using SmallTile = BackwardTile<T, width, 16, width * sizeof(T) <= 1024 ? 16 : 8>;

template <class T>
struct Backward {
  AttentionDims<T> dims;
  Rows<T> g, q, k, v, out;
  const T *lse, *g_lse;
  T* dot;  ///< D [B, H, S_q]
  Rows<T> dq, dk, dv;
  T* dbias;      ///< null: not wanted
  T* diagonals;  ///< [B, H, tiles of queries, 2 R + 1]: parts of drelative; null: not wanted
};

/// D = rowsum(g . out) - g_lse, a warp for each row.
template <class T>
__global__ void __launch_bounds__(kBlock) dot_kernel(const __grid_constant__ Backward<T> x) {
  const AttentionDims<T>& p = x.dims;
  const int64_t row = int64_t{blockIdx.x} * (kBlock / kWarp) + threadIdx.x / kWarp;
  if (row >= int64_t{p.batches} * p.heads * p.queries) return;
  const int64_t item = row / p.queries, query = row - item * p.queries;
  const int64_t b = item / p.heads, h = item - b * p.heads;
  const T* g = x.g.at(b, h).data + query * x.g.row;
  const T* out = x.out.at(b, h).data + query * x.out.row;
  T sum = 0;
  for (int d = static_cast<int>(threadIdx.x) % kWarp; d < x.g.width; d += kWarp) {
    sum += g[d] * out[d];
  }
  sum = sum_over_lanes(sum);
  if (threadIdx.x % kWarp != 0) return;
  if (x.g_lse && x.lse[row] != kInfinity<T>) sum -= x.g_lse[row];  // inf is a constant
  x.dot[row] = sum;
}

/// This block's part of drelative: sums of dS along the diagonals of its tiles. Distances past the
/// table's ends are summed by thread, and over threads at the end.
template <class S, class T>
class Diagonals {
 public:
  /// `sums` [2 R + 1] belong to this block.
  __device__ Diagonals(T* sums, int radius) : sums_(sums), radius_(radius) {
    for (int i = static_cast<int>(threadIdx.x); sums && i <= 2 * radius; i += kBlock) sums[i] = 0;
  }

  /// Adds a tile of dS whose first key is `distance` past its first query. By the whole block, in
  /// sync.
  __device__ void add(const T* dscores, int distance) {
    const int right = static_cast<int>(threadIdx.x) - (S::kRows - 1);
    if (right >= S::kColumns) return;
    T sum = 0;
    for (int i = max(0, -right); i < min(S::kRows, S::kColumns - right); ++i) {
      sum += dscores[i * S::kSquareStride + i + right];
    }
    const int place = distance + right + radius_;
    if (place <= 0 || radius_ == 0) {
      low_ += sum;
    } else if (place >= 2 * radius_) {
      high_ += sum;
    } else {
      sums_[place] += sum;
    }
  }

  /// After the last tile; `scratch` holds 2 kBlock numbers.
  __device__ void finish(T* scratch) const {
    __syncthreads();
    scratch[threadIdx.x] = low_;
    scratch[kBlock + threadIdx.x] = high_;
    __syncthreads();
    const int end = static_cast<int>(threadIdx.x);
    if (end >= (radius_ == 0 ? 1 : 2)) return;
    T sum = 0;
    for (int i = 0; i < kBlock; ++i) sum += scratch[end * kBlock + i];
    sums_[end * 2 * radius_] = sum;
  }

 private:
  T* sums_;
  int radius_;
  T low_ = 0, high_ = 0;
};

/// The tile of dbias that starts at (query, key).
template <class S, class T>
__device__ void write_bias(const Backward<T>& x, const typename S::Scores& dscore, int b, int h,
                           int query, int key) {
  const AttentionDims<T>& p = x.dims;
  S::for_each([&](int i, int j) {
    const int row = query + S::row(i), column = key + S::column(j);
    if (row >= p.queries || column >= p.keys) return;
    x.dbias[(p.row_of(b, h) + row) * p.keys + column] = dscore[i][j];
  });
}

/// One block computes kRows rows of dq and of dbias.
template <class S, bool general, class T = typename S::Element>
__global__ void __launch_bounds__(kBlock, S::kQueryBlocks)
    query_kernel(const __grid_constant__ Backward<T> x) {
  extern __shared__ __align__(16) unsigned char shared[];
  T* q = reinterpret_cast<T*>(shared);  // [kRows][width]
  T* g = q + S::kSize;                  // [kRows][width]
  T* k = g + S::kSize;                  // [kColumns][width]
  T* v = k + S::kStepSize;              // [kColumns][width]; reused:
  T* dscores = v;                       // [query][key]
  auto& bits = *reinterpret_cast<typename S::QueryBits*>(v + S::kValueSize);

  const AttentionDims<T>& p = x.dims;
  const int tiles = (p.queries + S::kRows - 1) / S::kRows;
  const TilePosition at(static_cast<int>(blockIdx.x), tiles, p.heads);
  const int b = at.b, h = at.h;
  const int query = (tiles - 1 - at.tile) * S::kRows;  // longest causal rows first
  const int key_head = p.key_head_of(h);

  S::read_rows(x.q.at(b, h), query, p.queries, q);
  S::read_rows(x.g.at(b, h), query, p.queries, g);
  T lse[S::kMyRows], dot[S::kMyRows];
#pragma unroll
  for (int i = 0; i < S::kMyRows; ++i) {
    const bool inside = query + S::row(i) < p.queries;
    const int64_t row = p.row_of(b, h) + query + S::row(i);
    lse[i] = inside ? x.lse[row] * static_cast<T>(kLog2E) : kInfinity<T>;
    dot[i] = inside ? x.dot[row] : T(0);
  }
  const int64_t table = 2 * int64_t{p.radius} + 1;
  Diagonals<S, T> diagonals(
      general && x.diagonals ? x.diagonals + int64_t{blockIdx.x} * table : nullptr, p.radius);
  typename S::Sums sum = {};
  StepIterator<T, true, S::kColumns, false, fragments::RowBy::address> steps(p, b, h, h + 1,
                                                                             query / kBlockKeys);
  for (Step step = steps.next(); step.first >= 0; step = steps.next()) {
    const int key = step.first;
    if (!bits.fill(p, step, b, query, key)) continue;
    S::read_columns(x.k.at(b, key_head), key, p.keys, k);
    S::read_columns(x.v.at(b, key_head), key, p.keys, v);
    S::template wait<0>();
    typename S::Scores score = {}, dscore = {};
    S::multiply_rows(q, k, score);
    S::multiply_rows(g, v, dscore);
    __syncthreads();  // v is free
    typename S::Scores cap_grad;
    Scores<T, general, S>(p, b, h)(score, query, key, general ? &cap_grad : nullptr);
    S::for_each([&](int i, int j) { score[i][j] = exp2_approx(score[i][j] - lse[i]); });
    if (p.dropout) {
      S::for_each([&](int i, int j) {
        dscore[i][j] *= S::column_bit(bits.kept[S::row(i)], j) ? p.kept : T(0);
      });
    }
    S::for_each([&](int i, int j) { dscore[i][j] = score[i][j] * (dscore[i][j] - dot[i]); });
    if (step.masked()) {
      S::for_each([&](int i, int j) {
        if (!S::column_bit(bits.visible[S::row(i)], j)) dscore[i][j] = 0;
      });
    }
    if constexpr (general) {
      if (x.dbias) write_bias<S>(x, dscore, b, h, query, key);
      if (x.diagonals) {
        S::put(dscore, dscores);
        __syncthreads();
        diagonals.add(dscores, key - query - (p.keys - p.queries));
        __syncthreads();
      }
      if (p.softcap != 0) S::for_each([&](int i, int j) { dscore[i][j] *= cap_grad[i][j]; });
    }
    S::put(dscore, dscores);
    __syncwarp();
    S::multiply(dscores, k, sum);
  }
  S::write(sum, p.scale, x.dq.at(b, h), query, p.queries);
  if (general && x.diagonals) diagonals.finish(dscores);
}

/// One block computes kRows rows of dk and dv. Rows of its tiles of scores are keys.
template <class S, bool general, class T = typename S::Element>
__global__ void __launch_bounds__(kBlock, S::kKeyBlocks)
    key_kernel(const __grid_constant__ Backward<T> x) {
  extern __shared__ __align__(16) unsigned char shared[];
  T* k = reinterpret_cast<T*>(shared);  // [kRows][width]
  T* v = k + S::kSize;                  // [kRows][width]
  T* q = v + S::kSize;                  // [kColumns][width]
  T* g = q + S::kStepSize;              // [kColumns][width]
  T* weights = g + S::kStepSize;        // [key][query], then dS
  T* lse = weights + S::kSquareSize;    // [kColumns]
  T* dot = lse + S::kColumns;           // [kColumns]
  auto& bits = *reinterpret_cast<typename S::KeyBits*>(dot + S::kColumns);

  const AttentionDims<T>& p = x.dims;
  const TilePosition at(static_cast<int>(blockIdx.x), (p.keys + S::kRows - 1) / S::kRows,
                        p.key_heads);
  const int b = at.b, key_head = at.h, key = at.tile * S::kRows, heads = p.heads / p.key_heads;

  S::read_rows(x.k.at(b, key_head), key, p.keys, k);
  S::read_rows(x.v.at(b, key_head), key, p.keys, v);
  typename S::Sums dk = {}, dv = {};
  StepIterator<T, false, S::kColumns, false> steps(p, b, key_head * heads, (key_head + 1) * heads,
                                                   key / kBlockKeys);
  for (Step step = steps.next(); step.first >= 0; step = steps.next()) {
    const int h = step.head, query = step.first;
    if (!bits.fill(p, step, b, query, key)) continue;
    S::read_columns(x.q.at(b, h), query, p.queries, q);
    S::read_columns(x.g.at(b, h), query, p.queries, g);
    const int mine = static_cast<int>(threadIdx.x);
    if (mine < S::kColumns) {
      const bool inside = query + mine < p.queries;
      const int64_t row = p.row_of(b, h) + query + mine;
      lse[mine] = inside ? x.lse[row] * static_cast<T>(kLog2E) : kInfinity<T>;
      dot[mine] = inside ? x.dot[row] : T(0);
    }
    S::template wait<0>();
    typename S::Scores score = {}, dscore = {};
    S::multiply_rows(k, q, score);
    S::multiply_rows(v, g, dscore);
    typename S::Scores cap_grad;
    Scores<T, general, S, true>(p, b, h)(score, query, key, general ? &cap_grad : nullptr);
    S::for_each([&](int i, int j) { score[i][j] = exp2_approx(score[i][j] - lse[S::column(j)]); });
    if (p.dropout) {
      S::for_each([&](int i, int j) {
        const bool kept = S::row_bit(bits.kept[S::column(j)], i);
        const T factor = kept ? p.kept : T(0);
        dscore[i][j] = score[i][j] * (dscore[i][j] * factor - dot[S::column(j)]);
        score[i][j] *= factor;
      });
    } else {
      S::for_each(
          [&](int i, int j) { dscore[i][j] = score[i][j] * (dscore[i][j] - dot[S::column(j)]); });
    }
    if (general && p.softcap != 0) {
      S::for_each([&](int i, int j) { dscore[i][j] *= cap_grad[i][j]; });
    }
    if (step.masked()) {
      S::for_each([&](int i, int j) {
        if (!S::row_bit(bits.visible[S::column(j)], i)) score[i][j] = dscore[i][j] = 0;
      });
    }
    S::put(score, weights);
    __syncwarp();
    S::multiply(weights, g, dv);
    __syncwarp();
    S::put(dscore, weights);
    __syncwarp();
    S::multiply(weights, q, dk);
  }
  S::write(dk, p.scale, x.dk.at(b, key_head), key, p.keys);
  S::write(dv, T(1), x.dv.at(b, key_head), key, p.keys);
}

template <class T>
void form_dots(const KernelContext& context, const Backward<T>& call) {
  const auto& p = call.dims;
  launch<dot_kernel<T>>(context, tiles_of(int64_t{p.batches} * p.heads * p.queries, kBlock / kWarp),
                        kBlock, 0, call);
}

template <class S, bool general, class T>
void backward(const KernelContext& context, Backward<T> call, const TensorView* drelative) {
  const auto& p = call.dims;
  const int64_t heads = int64_t{p.batches} * p.heads, tiles = tiles_of(p.queries, S::kRows);
  const int64_t table = drelative ? drelative->shape[2] : 0;
  const Workspace diagonals(context, heads * tiles * table * int64_t{sizeof(T)});
  call.diagonals = drelative ? diagonals.ptr<T>() : nullptr;
  launch<query_kernel<S, general>>(context, heads * tiles, kBlock, S::kQueryShared, call);
  launch<key_kernel<S, general>>(context,
                                 int64_t{p.batches} * p.key_heads * tiles_of(p.keys, S::kRows),
                                 kBlock, S::kKeyShared, call);
  if (drelative) sum_diagonals(context, diagonals.ptr<const T>(), tiles, *drelative);
}

}  // namespace

void attention_simple_backward(KernelContext& context, const AttentionInputs& x,
                               const AttentionParams& params, const AttentionGradients& y) {
  const int64_t features = features_of(x);
  const BoundsSummary summary(context, x, params);
  dispatch_floating(x.q.dtype, "attention", [&]<class T>(TypeTag<T>) {
    const Workspace dot(context, y.lse.numel() * int64_t{sizeof(T)});
    const Backward<T> call{AttentionDims<T>(x, params, summary.bounds()),
                           rows_of<T>(y.g),
                           rows_of<T>(x.q),
                           rows_of<T>(x.k),
                           rows_of<T>(x.v),
                           rows_of<T>(y.out),
                           y.lse.ptr<const T>(),
                           y.g_lse ? y.g_lse->ptr<const T>() : nullptr,
                           dot.ptr<T>(),
                           rows_of<T>(y.dq),
                           rows_of<T>(y.dk),
                           rows_of<T>(y.dv),
                           y.dbias ? y.dbias->ptr<T>() : nullptr,
                           nullptr};
    form_dots(context, call);
    dispatch_tile(features, call.dims,
                  [&]<int width, bool general>(std::integral_constant<int, width>,
                                               std::bool_constant<general>) {
                    with_shape_that_fits<LargeTile<T, width>, SmallTile<T, width>>(
                        context.device,
                        [&]<class S>() { backward<S, general>(context, call, y.drelative); });
                  });
  });
}

}  // namespace sash::cuda
