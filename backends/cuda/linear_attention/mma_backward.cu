#include "mma.cuh"

/// The gradients, 64 rows a block of threads. With b[i, j] = h[i] . v[j] + c[i] within the chunk:
///
///     dq = phi'(q) (h S' + c z' + b phi(k))               S, z: states of the keys
///     dk = phi'(k) (v R' + rho' + b' phi(q)),  dv = phi(k) R + A' h    R, rho: of the queries
namespace sash::cuda::linear {
namespace {

/// Hides the scores of keys behind their query; rows are queries, or keys.
template <bool by_query>
__device__ void hide_later(Sums<1, kStep>& score) {
  score.for_each([](float& x, int, int j, int e) {
    const int row = row_of<1>(0, e / 2), column = column_of(j, e);
    if (by_query ? column > row : column < row) x = 0;
  });
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

/// score = score factor + term, by row.
template <int kColumns>
__device__ void scale_rows(Sums<1, kColumns>& score, const float (&factor)[2],
                           const float (&term)[2]) {
  score.for_each([&](float& x, int, int, int e) { x = x * factor[e / 2] + term[e / 2]; });
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kRowThreads, kWidth == 64 ? 4 : 2)
    query_gradient_kernel(const __grid_constant__ Call<T, kWidth> x) {
  using U = operand_type<T>;
  constexpr int tile_bytes = kTileBytes<U, kWidth>;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const g_tile = shared;
  unsigned char* const ring = shared + tile_bytes;  // two stages of keys and values

  const Sizes& p = x.p;
  const int blocks = (p.queries + kStep - 1) / kStep;
  const TilePosition at(static_cast<int>(blockIdx.x), blocks, p.heads);
  const int first = at.tile * kStep, key_head = at.h / p.group();
  const int chunk = p.causal ? at.tile / x.kSteps : 0;
  const int64_t state = x.key_head(at.b, key_head), row0 = x.row_of(at.b, at.h) + first;
  const Rows<const T> keys = x.k.at(at.b, key_head), values = x.v.at(at.b, key_head);
  const int end = x.key_end(at.b);

  Reader<T, U, kWidth, kRowThreads> g, k, v;
  g.start(g_tile, x.g.at(at.b, at.h), first, p.queries);
  unsigned char* const state_tile = ring + 2 * tile_bytes;  // the second stage, at first
  read_state<U, kWidth, kRowThreads>(shared_address(state_tile), x.states.matrix(state, chunk));
  int step = chunk * x.kSteps;
  if (p.causal) {
    k.start(ring, keys, step * kStep, end);
    v.start(ring + tile_bytes, values, step * kStep, end);
  }
  float r[2], c[2];  // 1 / den and c of this lane's rows
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_of<1>(0, half);
    const bool inside = first + row < p.queries;
    r[half] = inside ? 1 / x.den[row0 + row] : 0.f;
    c[half] = inside ? x.dots[row0 + row] : 0.f;
  }
  wait_for_copies();
  g.finish(g_tile);
  if (p.causal) {
    k.finish_features(ring);
    v.finish(ring + tile_bytes);
  }
  __syncthreads();

  const Left<U, kWidth, 1, false> cotangents(shared_address(g_tile));
  const float* const z = x.states.vector(state, chunk);
  Sums<1, kWidth> sum;
  multiply_rows<kWidth>(sum, cotangents, shared_address(state_tile));
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
    const float2 pair = *reinterpret_cast<const float2*>(z + column_of(j, 0));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sum[0][j][e] = sum[0][j][e] * r[e / 2] + c[e / 2] * (e % 2 == 0 ? pair.x : pair.y);
    }
  }
#pragma unroll 1
  for (int n = 0; p.causal; ++n, ++step) {
    unsigned char* const k_tile = ring + n % 2 * 2 * tile_bytes;
    unsigned char* const next = ring + (n + 1) % 2 * 2 * tile_bytes;
    if (step < at.tile) {
      __syncthreads();  // the other stage is free
      k.start(next, keys, (step + 1) * kStep, end);
      v.start(next + tile_bytes, values, (step + 1) * kStep, end);
    }
    Sums<1, kStep> score;
    multiply_rows<kStep>(score, cotangents, shared_address(k_tile + tile_bytes));
    scale_rows(score, r, c);
    if (step == at.tile) hide_later<true>(score);
    multiply_add<U, kWidth>(sum, score, shared_address(k_tile));
    if (step == at.tile) break;
    wait_for_copies();
    k.finish_features(next);
    v.finish(next + tile_bytes);
    __syncthreads();
  }
  apply_slope<T, kWidth>(sum, x.q.at(at.b, at.h), first, p.queries);
  const float one[1][2] = {{1, 1}};
  __syncthreads();
  write<T, kWidth>(sum, one, g_tile, x.dq.at(at.b, at.h), first, p.queries);
}

/// What a query multiplies its column of scores with.
struct Column {
  float r, c;  // 1 / den, and c
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kRowThreads, kWidth == 64 ? 3 : 2)
    key_gradient_kernel(const __grid_constant__ Call<T, kWidth> x) {
  using U = operand_type<T>;
  constexpr int tile_bytes = kTileBytes<U, kWidth>;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const k_tile = shared;
  unsigned char* const v_tile = shared + tile_bytes;
  unsigned char* const ring = v_tile + tile_bytes;  // two stages of queries and cotangents
  auto* const columns = reinterpret_cast<Column*>(ring + 4 * tile_bytes);  // [2][64]

  const Sizes& p = x.p;
  const int blocks = (p.keys + kStep - 1) / kStep;
  const TilePosition at(static_cast<int>(blockIdx.x), blocks, p.key_heads);
  const int first = at.tile * kStep, end = x.key_end(at.b);
  const int chunk = p.causal ? at.tile / x.kSteps : 0;
  const int64_t state = x.key_head(at.b, at.h);

  // Steps of the chunk from this block's rows on, of each head that reads them.
  const int steps = min((chunk + 1) * x.kSteps, (p.queries + kStep - 1) / kStep) - at.tile;
  const int count = p.causal ? steps * p.group() : 0;
  Reader<T, U, kWidth, kRowThreads> q, g;
  const auto stage = [&](int n) { return ring + n % 2 * 2 * tile_bytes; };
  const auto start = [&](int n) {
    const int head = at.h * p.group() + n / steps, i = first + n % steps * kStep;
    q.start(stage(n), x.q.at(at.b, head), i, p.queries);
    g.start(stage(n) + tile_bytes, x.g.at(at.b, head), i, p.queries);
    const int row = static_cast<int>(threadIdx.x);
    if (row >= kStep) return;
    const int64_t place = x.row_of(at.b, head) + i + row;
    const bool inside = i + row < p.queries;
    columns[n % 2 * kStep + row] =
        inside ? Column{1 / x.den[place], x.dots[place]} : Column{0.f, 0.f};
  };
  unsigned char* const state_tile = ring + 2 * tile_bytes;  // the second stage, at first
  read_state<U, kWidth, kRowThreads>(shared_address(state_tile), x.states.matrix(state, chunk));
  {
    Reader<T, U, kWidth, kRowThreads> k, v;
    k.start(k_tile, x.k.at(at.b, at.h), first, end);
    v.start(v_tile, x.v.at(at.b, at.h), first, end);
    if (Reader<T, U, kWidth, kRowThreads>::kDirect && count > 0) start(0);
    wait_for_copies();
    k.finish_features(k_tile);
    v.finish(v_tile);
  }
  if (count > 0) {
    if (!Reader<T, U, kWidth, kRowThreads>::kDirect) start(0);
    q.finish_features(stage(0));
    g.finish(stage(0) + tile_bytes);
  }
  __syncthreads();

  const Left<U, kWidth, 1, false> keys(shared_address(k_tile)), values(shared_address(v_tile));
  const float* const rho = x.states.vector(state, chunk);
  Sums<1, kWidth> dk, dv = {};
  multiply_rows<kWidth>(dk, values, shared_address(state_tile));
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
    const float2 pair = *reinterpret_cast<const float2*>(rho + column_of(j, 0));
#pragma unroll
    for (int e = 0; e < 4; ++e) dk[0][j][e] += e % 2 == 0 ? pair.x : pair.y;
  }
  multiply_state(dv, keys, shared_address(state_tile));
#pragma unroll 1
  for (int n = 0; n < count; ++n) {
    if (n + 1 < count) {
      __syncthreads();  // the other stage is free
      start(n + 1);
    }
    unsigned char* const q_tile = stage(n);
    unsigned char* const g_tile = q_tile + tile_bytes;
    const Column* const column = columns + n % 2 * kStep;
    const bool diagonal = n % steps == 0;
    Sums<1, kStep> score;
    multiply_rows<kStep>(score, keys, shared_address(q_tile));
    score.for_each([&](float& x, int, int j, int e) { x *= column[column_of(j, e)].r; });
    if (diagonal) hide_later<false>(score);
    multiply_add<U, kWidth>(dv, score, shared_address(g_tile));
    multiply_rows<kStep>(score, values, shared_address(g_tile));
    score.for_each([&](float& x, int, int j, int e) {
      const Column& by = column[column_of(j, e)];
      x = x * by.r + by.c;
    });
    if (diagonal) hide_later<false>(score);
    multiply_add<U, kWidth>(dk, score, shared_address(q_tile));
    if (n + 1 == count) break;
    wait_for_copies();
    q.finish_features(stage(n + 1));
    g.finish(stage(n + 1) + tile_bytes);
    __syncthreads();
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
  constexpr int shared = shared_bytes<operand_type<T>, kWidth>(5);
  const int64_t blocks = (call.p.queries + kStep - 1) / kStep;
  launch<query_gradient_kernel<T, kWidth>>(context, int64_t{call.p.batches} * call.p.heads * blocks,
                                           kRowThreads, shared, call);
}

template <class T, int kWidth>
void run_key_gradients(const KernelContext& context, const Call<T, kWidth>& call) {
  constexpr int shared = shared_bytes<operand_type<T>, kWidth>(6);
  const int64_t blocks = (call.p.keys + kStep - 1) / kStep;
  launch<key_gradient_kernel<T, kWidth>>(
      context, int64_t{call.p.batches} * call.p.key_heads * blocks, kRowThreads, shared, call);
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
