#include "../families.h"

#include "../../../../core/backend/dispatch.h"
#include "../common/limits.h"
#include "scores.cuh"

/// Attention in tiles with an online softmax (M. Milakov and N. Gimelshein, "Online normalizer
/// calculation for softmax", 2018; T. Dao et al., "FlashAttention", NeurIPS 2022).
namespace sash::cuda {
namespace {

using namespace attn;

template <class T, int width_, int rows>
struct ForwardTile : Tile<T, width_, rows, rows> {
  using Base = Tile<T, width_, rows, rows>;
  using TileBits = attn::TileBits<rows, rows>;
  /// Weights reuse the memory of keys.
  static constexpr int kKeySize = std::max(Base::kSize, Base::kSquareSize);
  static constexpr int kMost =
      static_cast<int>(sizeof(T) * (2 * Base::kSize + kKeySize) + sizeof(TileBits));
  static constexpr int kRegisters = sizeof(T) == 8 ? 232 : width_ <= 64 ? 128 : 168;
  static constexpr int kBlocks = blocks_per_multiprocessor(kMost, kRegisters);
};

template <class T, int width>
inline constexpr int kForwardRows = width * sizeof(T) <= 512    ? 64
                                    : width * sizeof(T) <= 1024 ? 32
                                                                : 16;

template <class T>
struct Forward {
  AttentionDims<T> dims;
  Rows<T> q, k, v, out;
  T* lse;
};

/// The online softmax of one thread's rows, exponents to the base 2. `total` is the thread's part
/// of a row sum.
template <class S, class T>
struct Softmax {
  T highest[S::kMyRows], total[S::kMyRows];

  __device__ Softmax() {
#pragma unroll
    for (int i = 0; i < S::kMyRows; ++i) {
      highest[i] = -kInfinity<T>;
      total[i] = 0;
    }
  }

  /// From scores to weights 2^(score - highest so far); rescales the sums of earlier steps.
  __device__ void update(typename S::Scores& score, typename S::Sums& sum) {
#pragma unroll
    for (int i = 0; i < S::kMyRows; ++i) {
      T now = highest[i];
#pragma unroll
      for (int j = 0; j < S::kMyColumns; ++j) now = max(now, score[i][j]);
      now = S::reduce_row(now, [](T a, T b) { return max(a, b); });
      const T shift = now == -kInfinity<T> ? T(0) : now;
      const T rescale = exp2_approx(highest[i] - shift);
      highest[i] = now;
      total[i] *= rescale;
#pragma unroll
      for (int j = 0; j < S::kMyColumns; ++j) {
        score[i][j] = exp2_approx(score[i][j] - shift);
        total[i] += score[i][j];
      }
#pragma unroll
      for (int f = 0; f < S::kMyFeatures; ++f) sum[i][f] *= rescale;
    }
  }
};

/// One block computes kRows rows of out and lse.
template <class S, bool general, class T = typename S::Element>
__global__ void __launch_bounds__(kBlock, S::kBlocks)
    forward_kernel(const __grid_constant__ Forward<T> x) {
  extern __shared__ __align__(16) unsigned char shared[];
  T* q = reinterpret_cast<T*>(shared);  // [kRows][width]
  T* k = q + S::kSize;                  // [kRows][width]; reused:
  T* weights = k;                       // [kRows][kRows]
  T* v = k + S::kKeySize;               // [kRows][width]
  auto& bits = *reinterpret_cast<typename S::TileBits*>(v + S::kSize);

  const AttentionDims<T>& p = x.dims;
  const int tiles = (p.queries + S::kRows - 1) / S::kRows;
  const TilePosition at(static_cast<int>(blockIdx.x), tiles, p.heads);
  const int b = at.b, h = at.h;
  const int query = (tiles - 1 - at.tile) * S::kRows;  // longest causal rows first
  const int key_head = p.key_head_of(h);

  S::read_rows(x.q.at(b, h), query, p.queries, q);
  typename S::Sums sum = {};
  Softmax<S, T> softmax;
  StepIterator<T, true, S::kColumns, false> steps(p, b, h, h + 1, query / kBlockKeys);
  for (Step step = steps.next(); step.first >= 0; step = steps.next()) {
    const int key = step.first;
    if (!bits.fill(p, step, b, query, key)) continue;
    S::read_columns(x.k.at(b, key_head), key, p.keys, k);
    S::read_columns(x.v.at(b, key_head), key, p.keys, v);
    S::template wait<1>();
    typename S::Scores score = {};
    S::multiply_rows(q, k, score);
    Scores<T, general, S>(p, b, h)(score, query, key);
    if (step.masked()) {
      S::for_each([&](int i, int j) {
        if (!S::column_bit(bits.visible[S::row(i)], j)) score[i][j] = -kInfinity<T>;
      });
    }
    softmax.update(score, sum);
    if (p.dropout) {
      S::for_each([&](int i, int j) {
        score[i][j] *= S::column_bit(bits.kept[S::row(i)], j) ? p.kept : T(0);
      });
    }
    S::template wait<0>();  // v is there, k is free
    S::put(score, weights);
    __syncwarp();
    S::multiply(weights, v, sum);
  }

  T factor[S::kMyRows];
#pragma unroll
  for (int i = 0; i < S::kMyRows; ++i) {
    const T total = S::reduce_row(softmax.total[i], [](T a, T b) { return a + b; });
    factor[i] = total == 0 ? T(0) : 1 / total;
    const int row = query + S::row(i);
    if (S::tx() != 0 || row >= p.queries) continue;
    x.lse[p.row_of(b, h) + row] =
        total == 0 ? kInfinity<T> : (softmax.highest[i] + std::log2(total)) * static_cast<T>(kLn2);
  }
  S::write(sum, factor, x.out.at(b, h), query, p.queries);
}

template <class S, bool general, class T>
void forward(const KernelContext& context, const Forward<T>& call) {
  const auto& p = call.dims;
  launch<forward_kernel<S, general>>(context,
                                     int64_t{p.batches} * p.heads * tiles_of(p.queries, S::kRows),
                                     kBlock, S::kMost, call);
}

}  // namespace

void attention_simple_forward(KernelContext& context, const AttentionInputs& x,
                              const AttentionParams& params, View out, View lse) {
  const int64_t features = features_of(x);
  const BoundsSummary summary(context, x, params);
  dispatch_floating(x.q.dtype, "attention", [&]<class T>(TypeTag<T>) {
    const Forward<T> call{AttentionDims<T>(x, params, summary.bounds()),
                          rows_of<T>(x.q),
                          rows_of<T>(x.k),
                          rows_of<T>(x.v),
                          rows_of<T>(out),
                          lse.ptr<T>()};
    dispatch_tile(
        features, call.dims,
        [&]<int width, bool general>(std::integral_constant<int, width>,
                                     std::bool_constant<general>) {
          constexpr int rows = kForwardRows<T, width>;
          with_shape_that_fits<ForwardTile<T, width, rows>, ForwardTile<T, width, rows / 2>>(
              context.device, [&]<class S>() { forward<S, general>(context, call); });
        });
  });
}

}  // namespace sash::cuda
