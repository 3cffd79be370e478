#include "hopper_gradients.cuh"

/// The gradients of q, k, v, g and beta on Hopper, with a decay for each head: what
/// `mma_gradients.cu` does, by wgmma and TMA. A block of threads takes one chunk after the other.
/// One group of warps forms dq, one dk for each 64 features, one dP, dA, dv, dbeta and states that
/// are not kept. A warp copies what they read, ahead of them; three warps form S . dS and dg.
namespace sash::cuda::delta {
namespace {

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
  each_chunk(x, [&](const Place& place, int head, int64_t, int i) {
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
    shared.wait_for_sums(i - 1);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      of_token[half] = sum_over_quad(of_token[half]);
      if (lane() % 4 == 0) shared.tokens[i % 2][0][row + 8 * half] = of_token[half];
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
  each_chunk(x, [&](const Place& place, int head, int64_t, int i) {
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
    shared.wait_for_sums(i - 1);
    if (lane() == 0) shared.of_keys[i % 2][4 * half_of_d + warp() % 4] = total;
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
      if (lane() % 4 == 0) shared.tokens[i % 2][1 + half_of_d][row + 8 * half] = of_token[half];
    }
    shared.sums_full.arrive();
#pragma unroll
    for (int j = 0; j < 32; ++j) ends[j] += begins[j];
    hopper::barrier_sync(2, (kHalves<kWidth> + 1) * kChainCount);  // all warps have read w
    store_gradients<64>(x, place, head, true, half_of_d * 64, ends, rows.w + slab);
    hopper::fence_proxy_async();
    shared.rows_empty[i % 2].arrive_as_one();
  });
}

/// The state before the next chunk, e S + (f k)' u.
template <int kWidth>
__device__ void form_next_state(GradientMemory<kWidth>& shared, const GradientRows<kWidth>& rows) {
  using F = Factors<kWidth>;
  using S = Panel<kWidth>;
  const int r = warp() % 4;
  const float decay = rows.factors[0];
  const Panel<kChunk> w(shared_address(rows.w));
#pragma unroll 1
  for (int half = 0; half < kHalves<kWidth>; ++half) {
    uint32_t u[16];  // f u'
#pragma unroll
    for (int k = 0; k < 4; ++k) w.left(reinterpret_cast<uint32_t(&)[4]>(u[4 * k]), 4 * half + r, k);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      u[i] = pack(factor_pair(rows.factors + F::kF, i) * factor_pair(rows.factors + F::kU, i) *
                  unpack(u[i]));
    }
#pragma unroll 1
    for (int slab = 0; slab < kHalves<kWidth>; ++slab) {
      unsigned char* const state = shared.state + S::matrix(8 * half, 8 * slab);
      float sum[32];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float2 pair = decay * unpack(word_at(state, S::word(2 * r + i % 2, i / 2)));
        sum[2 * i] = pair.x, sum[2 * i + 1] = pair.y;
      }
      hopper::fence_operand(sum);
      hopper::warpgroup_arrive();
      multiply_by_columns<true>(sum, u, Matrix<kWidth, true>(shared.k + slab * kChunk * 128));
      hopper::warpgroup_commit();
      hopper::warpgroup_wait<0>();
      hopper::fence_operand(sum);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        word_at(state, S::word(2 * r + i % 2, i / 2)) = pack({sum[2 * i], sum[2 * i + 1]});
      }
    }
  }
  hopper::fence_proxy_async();
}

/// dP, dA, dv = beta du, dbeta = du . w, and states that are not kept.
template <int kWidth>
__device__ void form_scores(const GradientCall& x, GradientMemory<kWidth>& shared) {
  using F = Factors<kWidth>;
  const Sizes& s = x.sizes;
  const int r = warp() % 4, row = r * 16 + lane() / 4;
  const float minus = x.beta ? -1 : 0;  // without beta, w does not depend on keys
  shared.states_full.arrive_as_one();   // of the first chunk
  each_chunk(x, [&](const Place& place, int head, int64_t, int i) {
    auto& rows = shared.rows[i % 2];
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
    shared.states_full.wait(i % 2);
    shared.keys_full.wait(i % 2);
    shared.states_empty.wait(i % 2);
    if (!place.is_last && !x.is_first_of_run(place.slot + 1)) form_next_state(shared, rows);
    hopper::barrier_arrive(2, (kHalves<kWidth> + 1) * kChainCount);
    shared.states_full.arrive_as_one();  // of the next chunk
    shared.keys_empty.arrive_as_one();
    const bool has_dbeta = x.to.dbeta && own / 4 / 2 == own % 4;  // of the diagonal
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = row + 8 * half;
      if (has_dbeta && t < place.count) x.to.dbeta[token + t] = dbeta[half];
    }
    float dv[kWidth / 2];
    const Panel<kChunk> du_panel(shared_address(rows.du));
#pragma unroll
    for (int m = 0; m < kWidth / 16; ++m) {
      uint32_t words[4];
      du_panel.left_down(words, m, r);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 pair = betas[e % 2] * unpack(words[e]);
        dv[8 * m + 2 * e] = pair.x, dv[8 * m + 2 * e + 1] = pair.y;
      }
    }
    hopper::barrier_sync(3, kChainCount);  // all warps have read du
    write_rows<kWidth>(dv, rows.du, x.to.dv + token * s.width, s.width, place.count, s.width);
    hopper::fence_proxy_async();
    shared.rows_empty[i % 2].arrive_as_one();
  });
}

/// The part of dg that all tokens have, b[last] S . dS. One of three warps; the first one adds all
/// parts of dg.
template <int kWidth>
__device__ void dot_states(const GradientCall& x, GradientMemory<kWidth>& shared, int part) {
  each_chunk(x, [&](const Place& place, int head, int64_t index, int i) {
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
    shared.wait_for_sums(i - 1);
    if (lane() == 0) shared.of_states[i % 2][part] = sum;
    shared.sums_full.arrive();
    if (part > 0 || !x.to.dg) return;
    shared.sums_full.wait(i % 2);
    float last = 0;
    for (const float of_state : shared.of_states[i % 2]) last += of_state;
    for (const float of_key : shared.of_keys[i % 2]) last += of_key;
    for (int t = lane(); t < kChunk; t += kWarp) {
      float sum_of_token = 0;
      for (const auto& tokens : shared.tokens[i % 2]) sum_of_token += tokens[t];
      shared.dg[t] = sum_of_token;
    }
    __syncwarp();
    running_sums(shared.dg, true);
    float* const dg =
        x.to.dg + (int64_t{place.b} * x.sizes.value_heads + head) * x.sizes.length + place.first;
    for (int t = lane(); t < place.count; t += kWarp) dg[t] = shared.dg[t] + last;
    __syncwarp();
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
  if (group == 0) return form_dq(x, shared);
  if (group < groups - 1) return form_dk(x, shared, group - 1);
  form_scores(x, shared);
#endif
}

}  // namespace

template <int kWidth>
void hopper_gradients(const KernelContext& context, const Inputs& x, const Call& call, View g_out,
                      const Results& to) {
  GradientCall all(call, to);
  const auto panels = [&](const Half* first, int64_t bytes) {
    return tensor_map(reinterpret_cast<const float*>(first), bytes / 1024, 256, 8);
  };
  const int64_t passed = PassedMemory<kWidth>::size_of(x) * 2;
  all.before = panels(call.arrays.states, KeptMemory<kWidth>::bytes_of(x, call.arrays.run_log2));
  all.du = panels(call.arrays.du, passed);
  for (int half = 0; half < kHalves<kWidth>; ++half) {
    all.dstates[half] = panels(call.arrays.dstates[half], passed);
  }
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
