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
  SimpleDims<T> dims;
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
      const T rescale = power_of_two(highest[i] - shift);
      highest[i] = now;
      total[i] *= rescale;
#pragma unroll
      for (int j = 0; j < S::kMyColumns; ++j) {
        score[i][j] = power_of_two(score[i][j] - shift);
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

  const SimpleDims<T>& p = x.dims;
  const RowTile at(p.queries, S::kRows, p.heads);
  const int64_t b = at.b, h = at.h, head = b * p.heads + h;
  const int query = (at.tiles - 1 - at.tile) * S::kRows;  // longest causal rows first
  const int query_block = query / kMapRows;
  const Rows<T> keys = x.k.at(b, p.key_head_of(h)), values = x.v.at(b, p.key_head_of(h));
  const Visibility<T> visibility(p, b, h);
  const Scores<T, general, S> score_of(p, b, h);

  S::read_rows(x.q.at(b, h), query, p.queries, q);
  typename S::Sums sum = {};
  Softmax<S, T> softmax;
  BlockIterator blocks(p.map.by_query, visibility.map_head * p.map.query_blocks + query_block);
  while (blocks.next([&](int n) { return visibility.coverage(query_block, n); })) {
    for (int part = 0; part < kMapKeys; part += S::kRows) {
      const int key = blocks.block * kMapKeys + part;
      if (!bits.fill(visibility, blocks, head, query, key)) continue;
      S::read_columns(keys, key, p.keys, k);
      S::read_columns(values, key, p.keys, v);
      S::template wait<1>();
      typename S::Scores score = {};
      S::multiply_rows(q, k, score);
      score_of(score, query, key);
      if (blocks.masked) {
        S::for_each([&](int i, int j) {
          if (!S::column_bit(bits.visible[S::row(i)], j)) score[i][j] = -kInfinity<T>;
        });
      }
      softmax.update(score, sum);
      if (p.dropout.any) {
        S::for_each([&](int i, int j) {
          score[i][j] *= S::column_bit(bits.kept[S::row(i)], j) ? p.dropout.kept : T(0);
        });
      }
      S::template wait<0>();  // v is there, k is free
      S::put(score, weights);
      __syncwarp();
      S::multiply(weights, v, sum);
    }
  }

  T factor[S::kMyRows];
#pragma unroll
  for (int i = 0; i < S::kMyRows; ++i) {
    const T total = S::reduce_row(softmax.total[i], [](T a, T b) { return a + b; });
    factor[i] = total == 0 ? T(0) : 1 / total;
    const int row = query + S::row(i);
    if (S::tx() != 0 || row >= p.queries) continue;
    x.lse[head * p.queries + row] =
        total == 0 ? kInfinity<T> : (softmax.highest[i] + std::log2(total)) * static_cast<T>(kLn2);
  }
  S::write(sum, factor, x.out.at(b, h), query, p.queries);
}

template <class S, bool general, class T>
void forward(const KernelContext& context, const Forward<T>& call) {
  static constinit std::atomic<uint64_t> allowed{0};
  const auto& p = call.dims;
  launch(context, forward_kernel<S, general>, allowed,
         p.batches * p.heads * tiles_of(p.queries, S::kRows), kBlock, S::kMost, S::kMost, call);
}

}  // namespace

void attention_simple_forward(KernelContext& context, const kernels::AttentionInputs& x,
                              const kernels::AttentionParams& params, const TensorView& out,
                              const TensorView& lse) {
  const int64_t features = features_of(x);
  dispatch_floating(x.q.dtype, "attention", [&]<class T>(TypeTag<T>) {
    const Bounds bounds(context, params);
    const Forward<T> call{SimpleDims<T>(x, params, bounds.ranges()),
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
