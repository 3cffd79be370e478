#include "hopper_chain.cuh"

/// The gradients of q, k, v, g and beta on Hopper, with a decay for each head: what
/// `mma_gradients.cu` does, by wgmma and TMA. A block of threads takes one chunk after the other.
/// One group of warps forms dq, one dk for each 64 features, one dP, dA, dv, dbeta and dg. A warp
/// copies what they read, ahead of them; three warps form S . dS.
namespace sash::cuda::delta {
namespace {

struct GradientCall : Call {
  GradientCall(const Call& call, const Results& results) : Call(call), to(results) {}

  Results to;
  CUtensorMap before, after, factors, q_map, k_map, g_map;  // `states` and w, `dstates` and du
};

template <int kWidth>
struct alignas(1024) GradientRows {
  static constexpr int kTile = kChunk * kWidth * 2;
  unsigned char g[kTile], w[kTile], du[kTile];
  float factors[Factors<kWidth>::kCount];
};

template <int kWidth>
struct GradientMemory {
  static constexpr int kTile = kChunk * kWidth * 2, kSquare = kChunk * kChunk * 2;
  static constexpr int kGroups = kHalves<kWidth> + 2, kThreads = (kGroups + 1) * kChainCount;
  GradientRows<kWidth> rows[2];
  unsigned char state[kWidth * kWidth * 2], dstate[kWidth * kWidth * 2];
  unsigned char k[kTile], q[kTile], dp[kSquare], da[kSquare];
  hopper::Barrier rows_full[2], rows_empty[2], states_full, states_empty, keys_full, keys_empty,
      scores_full, scores_empty, sums_full;
  float tokens[kGroups - 1][kChunk], dg[kChunk];  ///< parts of dg of each token, and their sums
  float of_states[2][3], of_keys[4 * kHalves<kWidth>];  ///< parts of dg of all tokens

  __device__ void init() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2; ++i) rows_full[i].init(kWarp), rows_empty[i].init(4 * kGroups);
      for (hopper::Barrier* full : {&states_full, &keys_full}) full->init(kWarp);
      for (hopper::Barrier* one : {&keys_empty, &scores_empty}) one->init(4 * (kGroups - 1));
      states_empty.init(4 * (kGroups - 1) + 3);
      sums_full.init((4 * (kGroups - 1) + 3) * kWarp);
      scores_full.init(4);
      hopper::fence_barrier_init();
    }
    __syncthreads();
  }
};

/// Calls f(place, head, index, i) for the chunks of a block of threads, of which it is number i.
template <class F>
__device__ void each_chunk(const Sizes& s, const F& f) {
  const int64_t items = s.slots * s.value_heads;
  int i = 0;
#pragma unroll 1
  for (int64_t index = blockIdx.x; index < items; index += gridDim.x) {
    const Place place = s.place_of_slot(index / s.value_heads);
    if (place.count > 0) f(place, static_cast<int>(index % s.value_heads), index, i++);
  }
}

template <int kWidth>
__device__ void copy_chunks(const GradientCall& x, GradientMemory<kWidth>& shared) {
  using Copies = StageCopies<kWidth>;
  const Sizes& s = x.sizes;
  each_chunk(s, [&](const Place& place, int head, int64_t index, int i) {
    const int key_head = head / (s.value_heads / s.heads);
    auto& rows = shared.rows[i % 2];
    shared.rows_empty[i % 2].wait((i / 2 + 1) % 2);
    const Copies to_rows(s, place, index, shared.rows_full[i % 2]);
    to_rows.rows(x.to.g.at(place.b, head), rows.g);
    if (to_rows.begin(2 * Copies::kTile + static_cast<int>(sizeof(rows.factors)), 1)) {
      to_rows.tile(rows.g, x.g_map, head);
      to_rows.panel(rows.w, x.before, x.arrays.states, x.arrays.w);
      to_rows.panel(rows.du, x.after, x.arrays.dstates, x.arrays.du);
      to_rows.factors(rows.factors, x.factors);
    }
    __syncwarp();
    shared.states_empty.wait((i + 1) % 2);
    const Copies to_states(s, place, index, shared.states_full);
    if (to_states.begin(2 * static_cast<int>(sizeof(shared.state)), 0)) {
      to_states.panel(shared.state, x.before, x.arrays.states, x.arrays.states);
      to_states.panel(shared.dstate, x.after, x.arrays.dstates, x.arrays.dstates);
    }
    __syncwarp();
    shared.keys_empty.wait((i + 1) % 2);
    const Copies to_keys(s, place, index, shared.keys_full);
    to_keys.rows(x.k.at(place.b, key_head), shared.k);
    to_keys.rows(x.q.at(place.b, key_head), shared.q);
    if (to_keys.begin(0, 2)) {
      to_keys.tile(shared.k, x.k_map, key_head);
      to_keys.tile(shared.q, x.q_map, key_head);
    }
    __syncwarp();
  });
}

/// Calls f(i, pair) for the elements of a tile at the places of accumulators 2 i and 2 i + 1, whose
/// row is row lane / 4 + 8 (i % 2) of the warp.
template <int kColumns, class F>
__device__ void each_pair(const unsigned char* tile, const F& f) {
  const auto from = static_cast<uint32_t>(hidden(static_cast<int>(shared_address(tile))));
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    uint32_t words[4];
    RowTile<64>(from + static_cast<uint32_t>(k / 4 * kChunk * 128)).left(words, warp() % 4, k % 4);
#pragma unroll
    for (int e = 0; e < 4; ++e) f(4 * k + e, unpack(words[e]));
  }
}

/// sum = left right or += (`add`), kDepth deep; operands across are MN-major.
template <bool left_across, int kDepth, bool add, class Left, class Right, int n>
__device__ void multiply_matrices(float (&sum)[n], const Left& left, const Right& right) {
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    hopper::detail::multiply_16<left_across, true>(
        kHalf, sum, left_across ? left.columns(k) : left.rows(k), right.columns(k), add || k > 0);
  }
}

/// Writes gradients [64][kColumns] of queries or keys, from feature `first` on.
template <int kColumns>
__device__ void store_gradients(const GradientCall& x, const Place& place, int head, bool keys,
                                int first, const float (&sum)[kColumns / 2],
                                unsigned char* memory) {
  const Sizes& s = x.sizes;
  if (x.to.parts) {
    const int r = warp() % 4, own = hidden(lane());
    const int64_t token = (int64_t{place.b} * s.value_heads + head) * s.length + place.first;
    float* const to = x.to.parts + (keys ? x.to.part_size : 0) + token * s.depth;
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      const int t = 16 * r + own / 4 + i % 2 * 8, d = first + i / 2 * 8 + own % 4 * 2;
      if (t >= place.count || d >= s.depth) continue;
      *reinterpret_cast<float2*>(to + t * s.depth + d) = {sum[2 * i], sum[2 * i + 1]};
    }
    return;
  }
  const int key_head = head / (s.value_heads / s.heads);
  const int64_t token = (int64_t{place.b} * s.heads + key_head) * s.length + place.first;
  write_rows<kColumns>(sum, memory, (keys ? x.to.dk : x.to.dq) + token * s.depth + first, s.depth,
                       place.count, s.depth - first);
}

/// dq = scale b (g_out S') + dP k.
template <int kWidth>
__device__ void form_dq(const GradientCall& x, GradientMemory<kWidth>& shared) {
  using F = Factors<kWidth>;
  const int row = warp() % 4 * 16 + lane() / 4;
  each_chunk(x.sizes, [&](const Place& place, int head, int64_t, int i) {
    auto& rows = shared.rows[i % 2];
    const Matrix<kWidth, true> g(rows.g), keys(shared.k);
    const Matrix<kWidth> state(shared.state);
    const Matrix<kChunk> dp(shared.dp);
    float sum[kWidth / 2];
    shared.rows_full[i % 2].wait(i / 2 % 2);
    shared.states_full.wait(i % 2);
    hopper::warpgroup_arrive();
    multiply_matrices<false, kWidth, false>(sum, g, state);
    hopper::warpgroup_commit();
    const float by[2] = {rows.factors[F::kQ + row], rows.factors[F::kQ + row + 8]};
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(sum);
    shared.states_empty.arrive_as_one();
#pragma unroll
    for (int j = 0; j < kWidth / 2; ++j) sum[j] *= by[j / 2 % 2];
    shared.keys_full.wait(i % 2);
    shared.scores_full.wait(i % 2);
    hopper::fence_operand(sum);
    hopper::warpgroup_arrive();
    multiply_matrices<false, kChunk, true>(sum, dp, keys);
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(sum);
    shared.scores_empty.arrive_as_one();
    float of_token[2] = {};
    each_pair<kWidth>(shared.q, [&](int j, float2 query) {
      of_token[j % 2] += query.x * sum[2 * j] + query.y * sum[2 * j + 1];
    });
    shared.keys_empty.arrive_as_one();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      of_token[half] = sum_over_quad(of_token[half]);
      if (lane() % 4 == 0) shared.tokens[0][row + 8 * half] = of_token[half];
    }
    shared.sums_full.arrive();
    hopper::barrier_sync(1, kChainCount);  // all warps have read g_out
    store_gradients<kWidth>(x, place, head, false, 0, sum, rows.g);
    hopper::fence_proxy_async();
    shared.rows_empty[i % 2].arrive_as_one();
  });
}

/// dk of 64 features: where a decay ends at the token, -beta b (du S') + dA k; and where one
/// begins, f (u dS') + dP' q + dA' k.
template <int kWidth>
__device__ void form_dk(const GradientCall& x, GradientMemory<kWidth>& shared, int half_of_d) {
  using F = Factors<kWidth>;
  const int row = warp() % 4 * 16 + lane() / 4;
  const int panel = half_of_d * 8 * 128, slab = half_of_d * kChunk * 128;
  each_chunk(x.sizes, [&](const Place& place, int head, int64_t, int i) {
    auto& rows = shared.rows[i % 2];
    const Matrix<kChunk> w(rows.w), du(rows.du), dp(shared.dp), da(shared.da);
    const Matrix<kWidth> state(shared.state + panel), dstate(shared.dstate + panel);
    const Matrix<kWidth, true> keys(shared.k + slab), queries(shared.q + slab);
    float ends[32], begins[32];
    shared.rows_full[i % 2].wait(i / 2 % 2);
    shared.states_full.wait(i % 2);
    hopper::warpgroup_arrive();
    multiply_matrices<true, kWidth, false>(ends, du, state);
    multiply_matrices<true, kWidth, false>(begins, w, dstate);
    hopper::warpgroup_commit();
    float by_end[2], by_begin[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* const factors = rows.factors + row + 8 * half;
      by_end[half] = -factors[F::kK] * factors[F::kU];
      by_begin[half] = factors[F::kF] * factors[F::kU];
    }
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(ends);
    hopper::fence_operand(begins);
    shared.states_empty.arrive_as_one();
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      ends[j] *= by_end[j / 2 % 2];
      begins[j] *= by_begin[j / 2 % 2];
    }
    shared.keys_full.wait(i % 2);
    float total = 0, of_token[2] = {};
    each_pair<64>(shared.k + slab, [&](int j, float2 key) {
      total += key.x * begins[2 * j] + key.y * begins[2 * j + 1];
    });
    shared.scores_full.wait(i % 2);
    hopper::fence_operand(ends);
    hopper::fence_operand(begins);
    hopper::warpgroup_arrive();
    multiply_matrices<false, kChunk, true>(ends, da, keys);
    multiply_matrices<true, kChunk, true>(begins, dp, queries);
    multiply_matrices<true, kChunk, true>(begins, da, keys);
    hopper::warpgroup_commit();
    total = sum_over_lanes(total);
    if (lane() == 0) shared.of_keys[4 * half_of_d + warp() % 4] = total;
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(ends);
    hopper::fence_operand(begins);
    shared.scores_empty.arrive_as_one();
    each_pair<64>(shared.k + slab, [&](int j, float2 key) {
      of_token[j % 2] +=
          key.x * (ends[2 * j] - begins[2 * j]) + key.y * (ends[2 * j + 1] - begins[2 * j + 1]);
    });
    shared.keys_empty.arrive_as_one();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      of_token[half] = sum_over_quad(of_token[half]);
      if (lane() % 4 == 0) shared.tokens[1 + half_of_d][row + 8 * half] = of_token[half];
    }
    shared.sums_full.arrive();
#pragma unroll
    for (int j = 0; j < 32; ++j) ends[j] += begins[j];
    hopper::barrier_sync(2, kHalves<kWidth> * kChainCount);  // all warps have read w
    store_gradients<64>(x, place, head, true, half_of_d * 64, ends, rows.w + slab);
    hopper::fence_proxy_async();
    shared.rows_empty[i % 2].arrive_as_one();
  });
}

/// dP, dA, dv = beta du, dbeta = du . w, and dg.
template <int kWidth>
__device__ void form_scores(const GradientCall& x, GradientMemory<kWidth>& shared) {
  using F = Factors<kWidth>;
  using M = GradientMemory<kWidth>;
  const Sizes& s = x.sizes;
  const int r = warp() % 4, row = r * 16 + lane() / 4;
  const float minus = x.beta ? -1 : 0;  // without beta, w does not depend on keys
  each_chunk(s, [&](const Place& place, int head, int64_t, int i) {
    const auto& rows = shared.rows[i % 2];
    const Matrix<kWidth, true> g(rows.g);
    const Matrix<kChunk> w(rows.w), du(rows.du);
    const int64_t token = (int64_t{place.b} * s.value_heads + head) * s.length + place.first;
    float dp[32], da[32];
    const int own = hidden(lane());
    shared.rows_full[i % 2].wait(i / 2 % 2);
    hopper::warpgroup_arrive();
    multiply_matrices<false, kWidth, false>(dp, g, w);
    multiply_matrices<true, kWidth, false>(da, du, w);
    hopper::warpgroup_commit();
    float sums[2], betas[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums[half] = rows.factors[F::kSums + row + 8 * half];
      betas[half] = rows.factors[F::kU + row + 8 * half];
    }
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(dp);
    hopper::fence_operand(da);
    uint32_t of_p[16], of_a[16];
    float dbeta[2];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = 8 * j + own % 4 * 2;
      const float2 sum = *reinterpret_cast<const float2*>(rows.factors + F::kSums + column);
      const float2 beta = *reinterpret_cast<const float2*>(rows.factors + F::kU + column);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = row + 8 * half, at = 4 * j + 2 * half;
        float2 p, a;
        const auto scale = [&](float& to_p, float& to_a, float of_sum, float of_beta, int e) {
          if (t == column + e) dbeta[half] = da[at + e];
          const float decay = exp2_approx(sums[half] - of_sum) * of_beta;
          to_p = column + e <= t ? x.scale * decay * dp[at + e] : 0;
          to_a = column + e < t ? minus * betas[half] * decay * da[at + e] : 0;
        };
        scale(p.x, a.x, sum.x, beta.x, 0);
        scale(p.y, a.y, sum.y, beta.y, 1);
        of_p[2 * j + half] = pack(p);
        of_a[2 * j + half] = pack(a);
      }
    }
    shared.scores_empty.wait((i + 1) % 2);
    share_left(shared.dp, of_p);
    share_left(shared.da, of_a);
    shared.scores_full.arrive_as_one();
    const bool has_dbeta = x.to.dbeta && own / 4 / 2 == own % 4;  // of the diagonal
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = row + 8 * half;
      if (has_dbeta && t < place.count) x.to.dbeta[token + t] = dbeta[half];
    }
    const Panel<kChunk> du_panel(shared_address(rows.du));
#pragma unroll
    for (int m = 0; m < kWidth / 16; ++m) {
      uint32_t words[4];
      du_panel.left_down(words, m, r);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int t = row + e % 2 * 8, column = 16 * m + e / 2 * 8 + own % 4 * 2;
        if (t >= place.count || column >= s.width) continue;
        word_at(x.to.dv + (token + t) * s.width + column, 0) =
            pack(betas[e % 2] * unpack(words[e]));
      }
    }
    __syncwarp();
    shared.rows_empty[i % 2].arrive_as_one();
    shared.sums_full.wait(i % 2);
    if (r > 0 || !x.to.dg) return;
    float last = 0;
    for (int part = 0; part < 3; ++part) last += shared.of_states[i % 2][part];
    for (int part = 0; part < 4 * kHalves<kWidth>; ++part) last += shared.of_keys[part];
    for (int t = lane(); t < kChunk; t += kWarp) {
      float sum = 0;
      for (int part = 0; part < M::kGroups - 1; ++part) sum += shared.tokens[part][t];
      shared.dg[t] = sum;
    }
    __syncwarp();
    running_sums(shared.dg, true);
    for (int t = lane(); t < place.count; t += kWarp) x.to.dg[token + t] = shared.dg[t] + last;
  });
}

/// The part of dg that all tokens have: b[last] S . dS. One of three warps.
template <int kWidth>
__device__ void dot_states(const GradientCall& x, GradientMemory<kWidth>& shared, int part) {
  each_chunk(x.sizes, [&](const Place&, int, int64_t index, int i) {
    const float decay = x.arrays.e[index * Factors<kWidth>::kCount];
    shared.states_full.wait(i % 2);
    float sum = 0;
#pragma unroll 4
    for (int at = (part * kWarp + lane()) * 16; at < kWidth * kWidth * 2; at += 3 * kWarp * 16) {
      const auto one = *reinterpret_cast<const uint4*>(shared.state + at),
                 other = *reinterpret_cast<const uint4*>(shared.dstate + at);
      const uint32_t ones[4] = {one.x, one.y, one.z, one.w},
                     others[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 product = unpack(ones[e]) * unpack(others[e]);
        sum += product.x + product.y;
      }
    }
    shared.states_empty.arrive_as_one();
    sum = sum_over_lanes(sum) * decay;
    if (i > 0) shared.sums_full.wait((i - 1) % 2);
    if (lane() == 0) shared.of_states[i % 2][part] = sum;
    shared.sums_full.arrive();
  });
}

template <int kWidth>
__global__ void __launch_bounds__(GradientMemory<kWidth>::kThreads, 1)
    gradient_kernel(const __grid_constant__ GradientCall x) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<GradientMemory<kWidth>*>(memory);
  shared.init();
  wait_for_previous_kernel();
  const auto group = static_cast<int>(hopper::uniform(threadIdx.x / kChainCount));
  constexpr int groups = GradientMemory<kWidth>::kGroups;
  if (group == groups) {
    if constexpr (groups == 4) hopper::warpgroup_reg_dealloc<32>();
    if (warp() == 4 * groups) return copy_chunks(x, shared);
    return dot_states(x, shared, warp() - 4 * groups - 1);
  }
  if constexpr (groups == 4) hopper::warpgroup_reg_alloc<112>();
  if (group == 0) {
    form_dq(x, shared);
  } else if (group < groups - 1) {
    form_dk(x, shared, group - 1);
  } else {
    form_scores(x, shared);
  }
#endif
}

}  // namespace

template <int kWidth>
void hopper_gradients(const KernelContext& context, const Inputs& x, const Call& call, View g_out,
                      const Results& to) {
  GradientCall all(call, to);
  const int64_t rows = KeptMemory<kWidth>::bytes_of(x) / 1024;
  const auto panels = [&](const Half* first) {
    return tensor_map(reinterpret_cast<const float*>(first), rows, 256, 8);
  };
  all.before = panels(call.arrays.states);
  all.after = panels(call.arrays.dstates);
  all.factors = tensor_map(call.arrays.e, chunks_of(x) * 2, Factors<kWidth>::kCount / 2, 2);
  all.q_map = tensor_map(x.q, 64);
  all.k_map = tensor_map(x.k, 64);
  all.g_map = tensor_map(g_out, 64);
  using M = GradientMemory<kWidth>;
  static_assert(sizeof(M) <= hopper::kSharedBytes);
  launch_next<gradient_kernel<kWidth>>(
      context, std::min<int64_t>(hopper::multiprocessors(context), chunks_of(x)), M::kThreads,
      static_cast<int>(sizeof(M)), all);
}

template void hopper_gradients<64>(const KernelContext&, const Inputs&, const Call&, View,
                                   const Results&);
template void hopper_gradients<128>(const KernelContext&, const Inputs&, const Call&, View,
                                    const Results&);

}  // namespace sash::cuda::delta
