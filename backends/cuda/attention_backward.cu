#include "attention_tile.cuh"

/// The gradient of attention, from the saved log-sum-exp: with P = exp(S - lse), D = rowsum(g .
/// out) and dropout factors M, dV = (M P)' g, dS = P (M (g V') - D), dQ = scale dS K, dK = scale
/// dS' Q. One kernel owns rows of dQ and another rows of dK and dV: each forms P and dS for itself,
/// and every sum has one order.
namespace sash::cuda {
namespace {

using namespace attn;

template <class C, int width>
constexpr int rows_for() {
  return width * sizeof(C) <= 256 && sizeof(C) == 4 ? 64 : width * sizeof(C) <= 1024 ? 32 : 16;
}

template <class C, int width>
struct BackwardTile : Tile<C, width, rows_for<C, width>()> {
  using Base = Tile<C, width, rows_for<C, width>()>;
  static constexpr int kBytes = static_cast<int>(sizeof(C));
  /// Values make room for slopes.
  static constexpr int kValueSize = std::max(Base::kSize, Base::kSquareSize);
  static constexpr int kQueryShared = kBytes * (3 * Base::kSize + kValueSize) + Base::kFlagSize;
  static constexpr int kQueryBlocks = blocks_per_multiprocessor(kQueryShared, 168);
  static constexpr int kKeyShared =
      kBytes * (4 * Base::kSize + Base::kSquareSize + 2 * Base::kRows) + Base::kFlagSize;
  static constexpr int kKeyBlocks = blocks_per_multiprocessor(kKeyShared, width <= 32 ? 168 : 232);
};

template <class T>
struct Backward {
  using C = compute_t<T>;
  Problem<C> problem;
  Rows<const T> g, q, k, v, out;
  const C* lse;
  C* dot;  ///< D [B, H, S_q]
  Rows<T> dq, dk, dv;
};

/// From a score's products q . k and g . v to its weight M P and its slope dS.
template <class C>
struct Slope {
  const Problem<C>& p;
  C scale = exponent_scale(p);

  /// `lse` has base 2. `flag` is null where everything is visible and kept.
  __device__ void operator()(C& score, C& slope, C lse, C dot, const uint8_t* flag) const {
    C weight = std::exp2(score * scale - lse);
    C factor = 1;
    if (flag) {
      if (p.dropout) factor = p.factor(*flag);
      if (!(*flag & kVisible)) weight = slope = 0;
    }
    slope = weight * (slope * factor - dot);
    score = weight * factor;
  }
};

constexpr int kWarp = 32;

/// D = rowsum(g . out), a warp for each row.
template <class T>
__global__ void __launch_bounds__(kBlock) dot_kernel(const __grid_constant__ Backward<T> x) {
  using C = compute_t<T>;
  const Problem<C>& p = x.problem;
  const int64_t row = int64_t{blockIdx.x} * (kBlock / kWarp) + threadIdx.x / kWarp;
  if (row >= p.batches * p.heads * p.queries) return;
  const int64_t item = row / p.queries, query = row % p.queries;
  const int64_t b = item / p.heads, h = item % p.heads;
  const T* g = x.g.at(b, h).data + query * x.g.row;
  const T* out = x.out.at(b, h).data + query * x.out.row;
  C sum = 0;
  for (int d = static_cast<int>(threadIdx.x) % kWarp; d < x.g.width; d += kWarp) {
    sum += widen(g[d]) * widen(out[d]);
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % kWarp == 0) x.dot[row] = sum;
}

/// One block computes kRows rows of dq.
template <class T, int width>
__global__ void __launch_bounds__(kBlock, (BackwardTile<compute_t<T>, width>::kQueryBlocks))
    query_kernel(const __grid_constant__ Backward<T> x) {
  using C = compute_t<T>;
  using S = BackwardTile<C, width>;
  extern __shared__ __align__(16) unsigned char shared[];
  C* q = reinterpret_cast<C*>(shared);                          // [kRows][width]
  C* g = q + S::kSize;                                          // [kRows][width]
  C* k = g + S::kSize;                                          // [kRows][width]
  C* v = k + S::kSize;                                          // [kRows][width], then
  C* slopes = v;                                                // [query][key]
  auto* flags = reinterpret_cast<uint8_t*>(v + S::kValueSize);  // [query][key]

  const Problem<C>& p = x.problem;
  const int64_t tiles = (p.queries + S::kRows - 1) / S::kRows;
  const int64_t item = blockIdx.x / tiles;
  const int64_t b = item / p.heads, h = item % p.heads;
  const int64_t query = (tiles - 1 - blockIdx.x % tiles) * S::kRows;  // longest causal rows first
  const Rows<const T> keys = x.k.at(b, p.group_of(h)), values = x.v.at(b, p.group_of(h));
  const Visible visible(p, b, h);
  const int64_t key_end = visible.key_end(min(query + S::kRows, p.queries));
  const Slope<C> slope_of{p};

  S::read(x.q.at(b, h), query, p.queries, q);
  S::read(x.g.at(b, h), query, p.queries, g);
  C lse[S::kMyRows], dot[S::kMyRows];
#pragma unroll
  for (int i = 0; i < S::kMyRows; ++i) {
    const bool inside = query + S::row(i) < p.queries;
    const int64_t row = p.row_of(b, h) + query + S::row(i);
    lse[i] = inside ? x.lse[row] * static_cast<C>(kLog2E) : kInfinity<C>;
    dot[i] = inside ? x.dot[row] : C(0);
  }
  typename S::Sums sum = {};
  for (int64_t key = 0; key < key_end; key += S::kRows) {
    const bool flagged = p.dropout || !visible.all(query, key, S::kRows);
    __syncthreads();  // k, slopes and flags are free
    S::read(keys, key, p.keys, k);
    S::read(values, key, p.keys, v);
    if (flagged) S::flag(p, visible, p.row_of(b, h) * p.keys, query, key, flags);
    __syncthreads();
    typename S::Scores score = {}, slope = {};
    S::multiply_rows(q, k, score);
    S::multiply_rows(g, v, slope);
    __syncthreads();  // v is free
#pragma unroll
    for (int i = 0; i < S::kMyRows; ++i) {
#pragma unroll
      for (int j = 0; j < S::kMyColumns; ++j) {
        const uint8_t* flag = flags + S::row(i) * S::kFlagStride + S::column(j);
        slope_of(score[i][j], slope[i][j], lse[i], dot[i], flagged ? flag : nullptr);
      }
    }
    S::put(slope, slopes);
    __syncwarp();
    S::multiply(slopes, k, sum);
  }
  C factor[S::kMyRows];
#pragma unroll
  for (C& f : factor) f = p.scale;
  S::write(sum, factor, x.dq.at(b, h), query, p.queries);
}

/// One block computes kRows rows of dk and dv. Rows of its tiles of scores are keys.
template <class T, int width>
__global__ void __launch_bounds__(kBlock, (BackwardTile<compute_t<T>, width>::kKeyBlocks))
    key_kernel(const __grid_constant__ Backward<T> x) {
  using C = compute_t<T>;
  using S = BackwardTile<C, width>;
  extern __shared__ __align__(16) unsigned char shared[];
  C* k = reinterpret_cast<C*>(shared);  // [kRows][width]
  C* v = k + S::kSize;                  // [kRows][width]
  C* q = v + S::kSize;                  // [kRows][width]
  C* g = q + S::kSize;                  // [kRows][width]
  C* weights = g + S::kSize;            // [key][query], and slopes after weights
  C* lse = weights + S::kSquareSize;    // [kRows]
  C* dot = lse + S::kRows;              // [kRows]
  auto* flags = reinterpret_cast<uint8_t*>(dot + S::kRows);  // [query][key]

  const Problem<C>& p = x.problem;
  const int64_t tiles = (p.keys + S::kRows - 1) / S::kRows;
  const int64_t item = blockIdx.x / tiles;
  const int64_t b = item / p.groups, group = item % p.groups;
  const int64_t key = blockIdx.x % tiles * S::kRows;
  const int64_t heads = p.heads / p.groups;
  const Slope<C> slope_of{p};

  S::read(x.k.at(b, group), key, p.keys, k);
  S::read(x.v.at(b, group), key, p.keys, v);
  typename S::Sums dk = {}, dv = {};
  for (int64_t h = group * heads; h < (group + 1) * heads; ++h) {
    const Visible visible(p, b, h);
    const Rows<const T> queries = x.q.at(b, h), slopes_out = x.g.at(b, h);
    const int64_t first = visible.first_query(key) / S::kRows * S::kRows;
    for (int64_t query = first; query < p.queries; query += S::kRows) {
      const bool flagged = p.dropout || !visible.all(query, key, S::kRows);
      __syncthreads();  // q, g, lse, dot and flags are free
      S::read(queries, query, p.queries, q);
      S::read(slopes_out, query, p.queries, g);
      const int mine = static_cast<int>(threadIdx.x);
      if (mine < S::kRows) {
        const bool inside = query + mine < p.queries;
        const int64_t row = p.row_of(b, h) + query + mine;
        lse[mine] = inside ? x.lse[row] * static_cast<C>(kLog2E) : kInfinity<C>;
        dot[mine] = inside ? x.dot[row] : C(0);
      }
      if (flagged) S::flag(p, visible, p.row_of(b, h) * p.keys, query, key, flags);
      __syncthreads();
      typename S::Scores score = {}, slope = {};
      S::multiply_rows(k, q, score);
      S::multiply_rows(v, g, slope);
#pragma unroll
      for (int j = 0; j < S::kMyColumns; ++j) {
        const C column_lse = lse[S::column(j)], column_dot = dot[S::column(j)];
#pragma unroll
        for (int i = 0; i < S::kMyRows; ++i) {
          const uint8_t* flag = flags + S::column(j) * S::kFlagStride + S::row(i);
          slope_of(score[i][j], slope[i][j], column_lse, column_dot, flagged ? flag : nullptr);
        }
      }
      S::put(score, weights);
      __syncwarp();
      S::multiply(weights, g, dv);
      __syncwarp();
      S::put(slope, weights);
      __syncwarp();
      S::multiply(weights, q, dk);
    }
  }
  C factor[S::kMyRows];
#pragma unroll
  for (C& f : factor) f = p.scale;
  S::write(dk, factor, x.dk.at(b, group), key, p.keys);
#pragma unroll
  for (C& f : factor) f = 1;
  S::write(dv, factor, x.dv.at(b, group), key, p.keys);
}

template <class T>
void form_dots(const KernelContext& context, const Backward<T>& call) {
  static constinit std::atomic<uint64_t> allowed{0};
  const auto& p = call.problem;
  launch(context, dot_kernel<T>, allowed, tiles_of(p.batches * p.heads * p.queries, kBlock / kWarp),
         0, call);
}

template <class T, int width>
void backward(const KernelContext& context, const Backward<T>& call) {
  using S = BackwardTile<compute_t<T>, width>;
  static constinit std::atomic<uint64_t> allowed_queries{0}, allowed_keys{0};
  const auto& p = call.problem;
  launch(context, query_kernel<T, width>, allowed_queries,
         p.batches * p.heads * tiles_of(p.queries, S::kRows), S::kQueryShared, call);
  launch(context, key_kernel<T, width>, allowed_keys,
         p.batches * p.groups * tiles_of(p.keys, S::kRows), S::kKeyShared, call);
}

}  // namespace

void attention_backward(KernelContext& context, const TensorView& g, const TensorView& q,
                        const TensorView& k, const TensorView& v, const TensorView& out,
                        const TensorView& lse, const kernels::AttentionParams& params,
                        const TensorView& dq, const TensorView& dk, const TensorView& dv) {
  dispatch_any_floating(q.dtype, "attention", [&]<class Storage>(TypeTag<Storage>) {
    using T = device_t<Storage>;
    using C = compute_t<T>;
    dispatch_width(std::max(q.shape[3], v.shape[3]), [&]<int width>(
                                                         std::integral_constant<int, width>) {
      const Workspace dot(context, lse.numel() * static_cast<int64_t>(sizeof(C)));
      const Backward<T> call{Problem<C>(q, k, params), rows_of<const T>(g), rows_of<const T>(q),
                             rows_of<const T>(k),      rows_of<const T>(v), rows_of<const T>(out),
                             lse.ptr<const C>(),       dot.ptr<C>(),        rows_of<T>(dq),
                             rows_of<T>(dk),           rows_of<T>(dv)};
      form_dots(context, call);
      backward<T, width>(context, call);
    });
  });
}

}  // namespace sash::cuda
