#include "mma.cuh"

/// out = (phi(q) S + A v) / den, A the scores within the chunk. A block has 64 queries.
///
/// Memory traffic: a block reads its q and a state once, and the k and v of its chunk up to its
/// last row. It writes its out and den once.
namespace sash::cuda::linear {
namespace {

template <class T, int kWidth>
__global__ void __launch_bounds__(kRowThreads, kWidth == 64 ? 4 : 2)
    out_kernel(const __grid_constant__ Call<T, kWidth> x) {
  using U = operand_type<T>;
  using S = Share<kWidth, kRowThreads>;
  constexpr int tile_bytes = kTileBytes<U, kWidth>;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const q_tile = shared;
  unsigned char* const ring = shared + tile_bytes;  // two stages of keys and values
  auto* const dens = reinterpret_cast<float*>(ring + 4 * tile_bytes);  // [64]

  const Sizes& p = x.p;
  const int blocks = (p.queries + kStep - 1) / kStep;
  const TilePosition at(static_cast<int>(blockIdx.x), blocks, p.heads);
  const int first = at.tile * kStep, key_head = at.h / p.group();
  const int chunk = p.causal ? at.tile / x.kSteps : 0;
  const int64_t state = x.key_head(at.b, key_head);
  const Rows<const T> keys = x.k.at(at.b, key_head), values = x.v.at(at.b, key_head);
  const int end = x.key_end(at.b);

  Reader<T, U, kWidth, kRowThreads> q, k, v;
  q.start(q_tile, x.q.at(at.b, at.h), first, p.queries);
  unsigned char* const state_tile = ring + 2 * tile_bytes;  // the second stage, at first
  read_state<U, kWidth, kRowThreads>(shared_address(state_tile), x.states.matrix(state, chunk));
  int step = chunk * x.kSteps;
  if (p.causal) {
    k.start(ring, keys, step * kStep, end);
    v.start(ring + tile_bytes, values, step * kStep, end);
  }
  Eight z;
#pragma unroll
  for (int e = 0; e < 8; ++e) z[e] = x.states.vector(state, chunk)[S::column() + e];
  wait_for_copies();
  q.finish_features(q_tile, [&](int row, Eight& elements) {
    round_to<U>(elements);
    float dot = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) dot += elements[e] * z[e];
    dot = sum_over_lanes<S::kAcross>(dot);
    if (S::column() == 0) dens[row] = dot;
  });
  if (p.causal) {
    k.finish_features(ring);
    v.finish(ring + tile_bytes);
  }
  __syncthreads();

  const Left<U, kWidth, 1, false> queries(shared_address(q_tile));
  Sums<1, kWidth> sum = {};
  multiply_state(sum, queries, shared_address(state_tile));
  float total[2] = {};
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
    multiply_rows<kStep>(score, queries, shared_address(k_tile));
    score.for_each([&](float& a, int, int j, int e) {
      if (step == at.tile && column_of(j, e) > row_of<1>(0, e / 2)) a = 0;
      total[e / 2] += a;
    });
    multiply_add<U, kWidth>(sum, score, shared_address(k_tile + tile_bytes));
    if (step == at.tile) break;
    wait_for_copies();
    k.finish_features(next);
    v.finish(next + tile_bytes);
    __syncthreads();
  }

  float factor[1][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_of<1>(0, half);
    const float den = dens[row] + sum_over_quad(total[half]) + x.eps;
    factor[0][half] = 1 / den;
    if (lane() % 4 == 0 && first + row < p.queries) {
      x.den[x.row_of(at.b, at.h) + first + row] = den;
    }
  }
  __syncthreads();  // all have read the queries
  write<T, kWidth>(sum, factor, q_tile, x.out.at(at.b, at.h), first, p.queries);
}

}  // namespace

template <class T, int kWidth>
void run_out(const KernelContext& context, const Call<T, kWidth>& call) {
  constexpr int shared = shared_bytes<operand_type<T>, kWidth>(5);
  const int64_t blocks = (call.p.queries + kStep - 1) / kStep;
  launch<out_kernel<T, kWidth>>(context, int64_t{call.p.batches} * call.p.heads * blocks,
                                kRowThreads, shared, call);
}

template void run_out(const KernelContext&, const Call<__nv_bfloat16, 64>&);
template void run_out(const KernelContext&, const Call<__nv_bfloat16, 128>&);
template void run_out(const KernelContext&, const Call<__half, 64>&);
template void run_out(const KernelContext&, const Call<__half, 128>&);

}  // namespace sash::cuda::linear
