#include "../../ops/kernels/attention.h"

#include "attention_tile.cuh"

/// Attention in tiles with a running softmax (M. Milakov and N. Gimelshein, "Online normalizer
/// calculation for softmax", 2018; T. Dao et al., "FlashAttention", NeurIPS 2022).
namespace sash::cuda {
namespace {

using namespace attn;

template <class C, int width>
struct ForwardTile : Tile<C, width,
                          (width * sizeof(C) <= 512    ? 64
                           : width * sizeof(C) <= 1024 ? 32
                                                       : 16)> {
  using Base = Tile<C, width,
                    (width * sizeof(C) <= 512    ? 64
                     : width * sizeof(C) <= 1024 ? 32
                                                 : 16)>;
  /// Keys make room for weights.
  static constexpr int kKeySize = std::max(Base::kSize, Base::kSquareSize);
  static constexpr int kShared =
      static_cast<int>(sizeof(C)) * (2 * Base::kSize + kKeySize) + Base::kFlagSize;
  static constexpr int kRegisters = width * sizeof(C) <= 256 && sizeof(C) == 4 ? 128 : 168;
  static constexpr int kBlocks = blocks_per_multiprocessor(kShared, kRegisters);
};

template <class T>
struct Forward {
  using C = compute_t<T>;
  Problem<C> problem;
  Rows<const T> q, k, v;
  Rows<T> out;
  C* lse;
};

/// The running softmax of the rows of one thread, exponents to the base 2. `total` is the thread's
/// share of a row's sum.
template <class S, class C>
struct Softmax {
  C highest[S::kMyRows], total[S::kMyRows];

  __device__ Softmax() {
#pragma unroll
    for (int i = 0; i < S::kMyRows; ++i) {
      highest[i] = -kInfinity<C>;
      total[i] = 0;
    }
  }

  /// Turns scores into weights relative to the highest score so far, and sums of earlier weights
  /// into the same terms.
  __device__ void update(typename S::Scores& score, typename S::Sums& sum) {
#pragma unroll
    for (int i = 0; i < S::kMyRows; ++i) {
      C now = highest[i];
#pragma unroll
      for (int j = 0; j < S::kMyColumns; ++j) now = max(now, score[i][j]);
      now = reduce_row(now, [](C a, C b) { return max(a, b); });
      const C shift = now == -kInfinity<C> ? C(0) : now;
      const C rescale = std::exp2(highest[i] - shift);
      highest[i] = now;
      total[i] *= rescale;
#pragma unroll
      for (int j = 0; j < S::kMyColumns; ++j) {
        score[i][j] = std::exp2(score[i][j] - shift);
        total[i] += score[i][j];
      }
#pragma unroll
      for (int f = 0; f < S::kMyFeatures; ++f) sum[i][f] *= rescale;
    }
  }
};

/// One block computes kRows rows of out and lse.
template <class T, int width>
__global__ void __launch_bounds__(kBlock, (ForwardTile<compute_t<T>, width>::kBlocks))
    forward_kernel(const __grid_constant__ Forward<T> x) {
  using C = compute_t<T>;
  using S = ForwardTile<C, width>;
  extern __shared__ __align__(16) unsigned char shared[];
  C* q = reinterpret_cast<C*>(shared);                     // [kRows][width]
  C* k = q + S::kSize;                                     // [kRows][width], then
  C* weights = k;                                          // [kRows][kRows]
  C* v = k + S::kKeySize;                                  // [kRows][width]
  auto* flags = reinterpret_cast<uint8_t*>(v + S::kSize);  // [kRows][kRows]

  const Problem<C>& p = x.problem;
  const int64_t tiles = (p.queries + S::kRows - 1) / S::kRows;
  const int64_t item = blockIdx.x / tiles;
  const int64_t b = item / p.heads, h = item % p.heads;
  const int64_t query = (tiles - 1 - blockIdx.x % tiles) * S::kRows;  // longest causal rows first
  const Rows<const T> keys = x.k.at(b, p.group_of(h)), values = x.v.at(b, p.group_of(h));
  const Visible visible(p, b, h);
  const int64_t key_end = visible.key_end(min(query + S::kRows, p.queries));
  const C scale = exponent_scale(p);

  S::read(x.q.at(b, h), query, p.queries, q);
  typename S::Sums sum = {};
  Softmax<S, C> softmax;
  for (int64_t key = 0; key < key_end; key += S::kRows) {
    const bool all = visible.all(query, key, S::kRows);
    __syncthreads();  // weights, v and flags are free
    S::read(keys, key, p.keys, k);
    S::read(values, key, p.keys, v);
    if (!all || p.dropout) S::flag(p, visible, p.row_of(b, h) * p.keys, query, key, flags);
    __syncthreads();
    typename S::Scores score = {};
    S::multiply_rows(q, k, score);
    S::for_each(score, [&](C& s, int i, int j) {
      s *= scale;
      if (!all && !(flags[i * S::kFlagStride + j] & kVisible)) s = -kInfinity<C>;
    });
    softmax.update(score, sum);
    if (p.dropout) {
      S::for_each(score, [&](C& s, int i, int j) { s *= p.factor(flags[i * S::kFlagStride + j]); });
    }
    __syncthreads();  // k is free
    S::put(score, weights);
    __syncwarp();
    S::multiply(weights, v, sum);
  }

  C factor[S::kMyRows];
#pragma unroll
  for (int i = 0; i < S::kMyRows; ++i) {
    const C total = reduce_row(softmax.total[i], [](C a, C b) { return a + b; });
    factor[i] = total == 0 ? C(0) : 1 / total;
    const int64_t row = query + S::row(i);
    if (S::tx() != 0 || row >= p.queries) continue;
    x.lse[p.row_of(b, h) + row] =
        total == 0 ? kInfinity<C> : (softmax.highest[i] + std::log2(total)) * static_cast<C>(kLn2);
  }
  S::write(sum, factor, x.out.at(b, h), query, p.queries);
}

template <class T, int width>
void forward(const KernelContext& context, const Forward<T>& call) {
  using S = ForwardTile<compute_t<T>, width>;
  static constinit std::atomic<uint64_t> allowed{0};
  const auto& p = call.problem;
  launch(context, forward_kernel<T, width>, allowed,
         p.batches * p.heads * tiles_of(p.queries, S::kRows), S::kShared, call);
}

void attention_forward(KernelContext& context, const TensorView& q, const TensorView& k,
                       const TensorView& v, const kernels::AttentionParams& params,
                       const TensorView& out, const TensorView& lse) {
  dispatch_any_floating(q.dtype, "attention", [&]<class Storage>(TypeTag<Storage>) {
    using T = device_t<Storage>;
    using C = compute_t<T>;
    const Forward<T> call{Problem<C>(q, k, params), rows_of<const T>(q), rows_of<const T>(k),
                          rows_of<const T>(v),      rows_of<T>(out),     lse.ptr<C>()};
    dispatch_width(
        std::max(q.shape[3], v.shape[3]),
        [&]<int width>(std::integral_constant<int, width>) { forward<T, width>(context, call); });
  });
}

}  // namespace

void register_attention() {
  kernels::attention_forward.set(DeviceType::cuda, attention_forward);
  kernels::attention_backward.set(DeviceType::cuda, attention_backward);
}

}  // namespace sash::cuda
