#include "linear_mma.cuh"

/// The gradients, 64 rows a block of threads. With b[i, j] = h[i] . v[j] + c[i] within the chunk:
///
///     dq = phi'(q) (h S' + c z' + b phi(k))               S, z: states of the keys
///     dk = phi'(k) (v R' + rho' + b' phi(q)),  dv = phi(k) R + A' h    R, rho: of the queries
namespace sash::cuda::linear {
namespace {

/// Hides the scores of keys behind their query; rows are queries, or keys.
template <bool by_query>
__device__ void hide_later(Sums<1, kStep>& score) {
#pragma unroll
  for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = row_of<1>(0, e / 2), column = column_of(j, e);
      if (by_query ? column > row : column < row) score[0][j][e] = 0;
    }
  }
}

/// sum phi'(x) for rows [first, end) of x, whose features are read again; 0 behind the end.
template <class T, int kWidth>
__device__ void apply_slope(Sums<1, kWidth>& sum, const Rows<const T>& x, int first, int end) {
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + row_of<1>(0, half), column = column_of(j, 0);
      float(&pair)[4] = sum[0][j];
      if (row < end && column < x.width) {
        const auto from = *reinterpret_cast<const Vector<T, 2>*>(x.data + row * x.row + column);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          pair[2 * half + e] *= min(phi_approx(widen(from.element[e])), 1.f);
        }
      } else {
        pair[2 * half] = pair[2 * half + 1] = 0;
      }
    }
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kRowThreads, kWidth == 64 ? 4 : 2)
    query_gradient_kernel(const __grid_constant__ Call<T, kWidth> x) {
  using U = operand_type<T>;
  constexpr int tile_bytes = kTileBytes<U, kWidth>;
  using R = Reader<T, U, kWidth, kRowThreads>;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const h_tile = shared;
  unsigned char* const k_tile = shared + tile_bytes;  // first the state, then keys and values
  unsigned char* const v_tile = k_tile + tile_bytes;
  auto* const z = reinterpret_cast<float*>(v_tile + tile_bytes);  // [kWidth]

  const Sizes& p = x.p;
  const int blocks = (p.queries + kStep - 1) / kStep;
  const TilePosition at(static_cast<int>(blockIdx.x), blocks, p.heads);
  const int first = at.tile * kStep, key_head = at.h / p.group();
  const int chunk = p.causal ? at.tile / x.kSteps : 0;
  const int64_t state = x.key_head(at.b, key_head), row0 = x.row_of(at.b, at.h) + first;

  read_state<U, kWidth, kRowThreads>(shared_address(k_tile), x.states.matrix(state, chunk));
  R g;
  g.load(x.g.at(at.b, at.h), first, p.queries);
  if (static_cast<int>(threadIdx.x) < kWidth) {
    z[threadIdx.x] = x.states.vector(state, chunk)[threadIdx.x];
  }
  g.store(h_tile, [&](int row, Eight& values) {
    const float factor = first + row < p.queries ? 1 / x.den[row0 + row] : 0.f;
#pragma unroll
    for (float& e : values) e *= factor;
  });
  float c[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_of<1>(0, half);
    c[half] = first + row < p.queries ? x.dots[row0 + row] : 0.f;
  }
  wait_for_copies();
  __syncthreads();

  const Left<U, kWidth, 1, false> h(shared_address(h_tile));
  Sums<1, kWidth> sum;
  multiply_rows<kWidth>(sum, h, shared_address(k_tile));
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[0][j][e] += c[e / 2] * z[column_of(j, e)];
  }
  if (p.causal) {
    const Rows<const T> keys = x.k.at(at.b, key_head), values = x.v.at(at.b, key_head);
    const int end = x.key_end(at.b);
    for (int step = chunk * x.kSteps; step <= at.tile; ++step) {
      R k, v;
      k.load(keys, step * kStep, end);
      v.load(values, step * kStep, end);
      __syncthreads();
      k.store_features(k_tile);
      v.store(v_tile);
      __syncthreads();
      Sums<1, kStep> score;
      multiply_rows<kStep>(score, h, shared_address(v_tile));
#pragma unroll
      for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) score[0][j][e] += c[e / 2];
      }
      if (step == at.tile) hide_later<true>(score);
      multiply_add<U, kWidth>(sum, score, shared_address(k_tile));
    }
  }
  apply_slope<T, kWidth>(sum, x.q.at(at.b, at.h), first, p.queries);
  const float one[1][2] = {{1, 1}};
  __syncthreads();
  write<T, kWidth>(sum, one, h_tile, x.dq.at(at.b, at.h), first, p.queries);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kRowThreads, kWidth == 64 ? 3 : 2)
    key_gradient_kernel(const __grid_constant__ Call<T, kWidth> x) {
  using U = operand_type<T>;
  constexpr int tile_bytes = kTileBytes<U, kWidth>;
  using R = Reader<T, U, kWidth, kRowThreads>;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const k_tile = shared;
  unsigned char* const v_tile = shared + tile_bytes;
  unsigned char* const q_tile = v_tile + tile_bytes;  // first the state, then queries and h
  unsigned char* const h_tile = q_tile + tile_bytes;
  auto* const rho = reinterpret_cast<float*>(h_tile + tile_bytes);  // [kWidth]
  float* const dots = rho + kWidth;                                 // [64]

  const Sizes& p = x.p;
  const int blocks = (p.keys + kStep - 1) / kStep;
  const TilePosition at(static_cast<int>(blockIdx.x), blocks, p.key_heads);
  const int first = at.tile * kStep, end = x.key_end(at.b);
  const int chunk = p.causal ? at.tile / x.kSteps : 0;
  const int64_t state = x.key_head(at.b, at.h);

  read_state<U, kWidth, kRowThreads>(shared_address(q_tile), x.states.matrix(state, chunk));
  {
    R k, v;
    k.load(x.k.at(at.b, at.h), first, end);
    v.load(x.v.at(at.b, at.h), first, end);
    if (static_cast<int>(threadIdx.x) < kWidth) {
      rho[threadIdx.x] = x.states.vector(state, chunk)[threadIdx.x];
    }
    k.store_features(k_tile);
    v.store(v_tile);
  }
  wait_for_copies();
  __syncthreads();

  const Left<U, kWidth, 1, false> keys(shared_address(k_tile)), values(shared_address(v_tile));
  Sums<1, kWidth> dk, dv = {};
  multiply_rows<kWidth>(dk, values, shared_address(q_tile));
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) dk[0][j][e] += rho[column_of(j, e)];
  }
  multiply_state(dv, keys, shared_address(q_tile));
  const int last = min((chunk + 1) * x.kSteps, (p.queries + kStep - 1) / kStep);
  for (int n = 0; p.causal && n < p.group(); ++n) {
    const int head = at.h * p.group() + n;
    const Rows<const T> queries = x.q.at(at.b, head), gradients = x.g.at(at.b, head);
    for (int step = at.tile; step < last; ++step) {
      const int i = step * kStep;
      const int64_t row0 = x.row_of(at.b, head) + i;
      R q, g;
      q.load(queries, i, p.queries);
      if (kWidth == 64) g.load(gradients, i, p.queries);
      __syncthreads();
      q.store_features(q_tile);
      if (kWidth != 64) g.load(gradients, i, p.queries);
      g.store(h_tile, [&](int row, Eight& elements) {
        const float factor = i + row < p.queries ? 1 / x.den[row0 + row] : 0.f;
#pragma unroll
        for (float& e : elements) e *= factor;
      });
      if (static_cast<int>(threadIdx.x) < kStep) {
        const int row = static_cast<int>(threadIdx.x);
        dots[row] = i + row < p.queries ? x.dots[row0 + row] : 0.f;
      }
      __syncthreads();
      Sums<1, kStep> score;
      multiply_rows<kStep>(score, keys, shared_address(q_tile));
      if (step == at.tile) hide_later<false>(score);
      multiply_add<U, kWidth>(dv, score, shared_address(h_tile));
      multiply_rows<kStep>(score, values, shared_address(h_tile));
#pragma unroll
      for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) score[0][j][e] += dots[column_of(j, e)];
      }
      if (step == at.tile) hide_later<false>(score);
      multiply_add<U, kWidth>(dk, score, shared_address(q_tile));
    }
  }
  apply_slope<T, kWidth>(dk, x.k.at(at.b, at.h), first, end);
  float seen[1][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) seen[0][half] = first + row_of<1>(0, half) < end ? 1.f : 0.f;
  __syncthreads();
  write<T, kWidth>(dk, seen, k_tile, x.dk.at(at.b, at.h), first, p.keys);
  write<T, kWidth>(dv, seen, v_tile, x.dv.at(at.b, at.h), first, p.keys);
}

}  // namespace

template <class T, int kWidth>
void run_query_gradient(const KernelContext& context, const Call<T, kWidth>& call) {
  static constinit std::atomic<uint64_t> allowed{0};
  constexpr int shared = shared_bytes<operand_type<T>, kWidth>(3);
  const int64_t blocks = (call.p.queries + kStep - 1) / kStep;
  launch(context, query_gradient_kernel<T, kWidth>, allowed,
         int64_t{call.p.batches} * call.p.heads * blocks, kRowThreads, shared, shared, call);
}

template <class T, int kWidth>
void run_key_gradients(const KernelContext& context, const Call<T, kWidth>& call) {
  static constinit std::atomic<uint64_t> allowed{0};
  constexpr int shared = shared_bytes<operand_type<T>, kWidth>(4);
  const int64_t blocks = (call.p.keys + kStep - 1) / kStep;
  launch(context, key_gradient_kernel<T, kWidth>, allowed,
         int64_t{call.p.batches} * call.p.key_heads * blocks, kRowThreads, shared, shared, call);
}

template void run_query_gradient(const KernelContext&, const Call<__nv_bfloat16, 64>&);
template void run_query_gradient(const KernelContext&, const Call<__nv_bfloat16, 128>&);
template void run_query_gradient(const KernelContext&, const Call<__half, 64>&);
template void run_query_gradient(const KernelContext&, const Call<__half, 128>&);
template void run_key_gradients(const KernelContext&, const Call<__nv_bfloat16, 64>&);
template void run_key_gradients(const KernelContext&, const Call<__nv_bfloat16, 128>&);
template void run_key_gradients(const KernelContext&, const Call<__half, 64>&);
template void run_key_gradients(const KernelContext&, const Call<__half, 128>&);

}  // namespace sash::cuda::linear
