#include "../attention/common/launch.cuh"
#include "mma_levels.cuh"

/// dv = beta du, dbeta = du . w, and the gradients that are named in `ops/kernels/delta_rule.h`: a
/// block for each chunk of each value head. A warp has 16 rows and a part of the columns of
/// each product.
///
/// A key gets gradients where a decay ends at its token (`row`) and where one begins (`column`).
namespace sash::cuda::delta {
namespace {

/// Stores the sums of eight columns over the rows of a warp.
__device__ void store_sum(float2 sum, float* to) {
  for (int step = 4; step < kWarp; step *= 2) {
    sum.x += __shfl_xor_sync(~0u, sum.x, step);
    sum.y += __shfl_xor_sync(~0u, sum.y, step);
  }
  if (lane() < 4) reinterpret_cast<float2*>(to)[lane()] = sum;
}

template <int kWidth, bool kFeatures>
__global__ void __launch_bounds__(kGradientCount)
    gradient_kernel(const __grid_constant__ Call x, Results to) {
  using M = GradientShared<kWidth, kFeatures>;
  constexpr int blocks = kPartBlocks<kWidth>;  // of columns of a warp
  extern __shared__ __align__(128) unsigned char shared[];
  const Sizes& s = x.sizes;
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  const Place at = s.place_of_slot(block / s.value_heads);
  const Chunk<Half> c(x, at, block % s.value_heads);
  if (c.count == 0) return;
  const int64_t index = block;
  const int r = warp() % 4, part = warp() / 4, first = part * blocks;
  const uint32_t base = shared_address(shared);
  auto* const sums = reinterpret_cast<float*>(shared + M::kFloats);  // G
  float *const betas = sums + kChunk, *const tokens = betas + kChunk,
               *const with_states = tokens + kGradientParts * kChunk,
               *const with_columns = with_states + kWidth;  // [4][kWidth]
  float* const totals = with_columns + 4 * kWidth;          // for each warp

  const int key_head = c.head / (s.value_heads / s.heads), end = at.first + at.count;
  const auto read = [&](int place, const Rows<const Half>& rows) {
    Tile<Half, kWidth>::template read<kChunk, kGradientCount>(base + static_cast<uint32_t>(place),
                                                              rows, at.first, end);
  };
  const int64_t row_index = x.row_index(at, c.head);
  const auto copy = [&]<int bytes>(int place, const Half* array, int64_t number) {
    copy_array<kGradientCount, bytes>(thread, base + static_cast<uint32_t>(place),
                                      array + number * (bytes / 2));
  };
  const auto copy_tile = [&](int place, const Half* array, int64_t number) {
    copy.template operator()<M::kTileBytes>(place, array, number);
  };
  copy_tile(M::kDu, x.arrays.du, row_index);
  copy_tile(M::kW, x.arrays.w, index);
  read(M::kG, to.g.at(at.b, c.head));
  end_group();
  read(M::kKeys, x.k.at(at.b, key_head));
  copy.template operator()<M::kDState>(M::kState, x.arrays.states, index);
#pragma unroll
  for (int half = 0; half < kWidth / 64; ++half) {
    copy_tile(M::kDState + half * M::kTileBytes, x.arrays.dstates[half], row_index);
  }
  read(M::kQueries, x.q.at(at.b, key_head));
  end_group();
  const float* const factors = x.arrays.e + index * Factors<kWidth>::kCount;
  if (thread < kChunk) {
    betas[thread] = factors[Factors<kWidth>::kU + thread];
    sums[thread] = factors[Factors<kWidth>::kSums + thread];
  }
  if constexpr (kFeatures) {
    const int d = thread % kWidth;
    float decay = 1;
    const auto put = [&](int tile, int t) {
      half_at(shared, tile + RowTile<kWidth>::element(t & ~7, t % 8, d)) = narrow<Half>(decay);
    };
    if (thread < kWidth) {
#pragma unroll 16
      for (int t = 0; t < kChunk; ++t) {
        decay *= decay_of(c, t, d);
        put(M::kDecays, t);
      }
    } else if (thread < 2 * kWidth) {
#pragma unroll 16
      for (int t = kChunk - 1; t >= 0; --t) {
        put(M::kDecays + M::kTileBytes, t);
        decay *= decay_of(c, t, d);
      }
    }
  }
  wait_for_groups<1>();
  __syncthreads();
  const Panel<kWidth> state(base + M::kState), dstate(base + M::kDState);
  const Panel<kChunk> w(base + M::kW), du(base + M::kDu);
  const RowTile<kWidth> g(base + M::kG), keys(base + M::kKeys), queries(base + M::kQueries);
  uint32_t left[4], right[4];
#pragma unroll
  for (int j = 0; j < blocks; ++j) {
    du.left_down(left, first + j, r);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = 16 * r + lane() / 4 + i % 2 * 8, m = 16 * (first + j) + column_in(i / 2, 0);
      if (t >= c.count || m >= s.width) continue;
      word_at(to.dv + (c.token + t) * s.width + m, 0) = pack(betas[t] * unpack(left[i]));
    }
  }
  // Without beta, w does not depend on keys.
  const float minus = x.beta ? -1 : 0;
#pragma unroll
  for (int i = part; i < 4; i += kGradientParts) {  // dP and dA, with the decays of heads
    Sums16 p = {}, da = {};
    if (i <= r) {
#pragma unroll
      for (int k = 0; k < kWidth / 16; ++k) {
        w.right_down(right, k, i);
        g.left(left, r, k);
        multiply(p, left, right);
        du.left_down(left, k, r);
        multiply(da, left, right);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = 16 * r + row_in(e), column = 16 * i + column_in(n, e);
        if (to.dbeta && row == column && row < c.count) to.dbeta[c.token + row] = da[n][e];
        const float decay = (kFeatures ? 1 : exp2_approx(sums[row] - sums[column])) * betas[column];
        p[n][e] = column <= row ? x.scale * decay * p[n][e] : 0;
        da[n][e] = column < row ? minus * betas[row] * decay * da[n][e] : 0;
      }
    }
    store<Panel<kChunk>>(shared + M::kP, p, r, i);
    store<Panel<kChunk>>(shared + M::kA, da, r, i);
  }
  wait_for_copies();
  __syncthreads();

  PartOfRow<kWidth> dq = {}, row = {}, column = {};
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    uint32_t of_g[4], of_du[4], of_w[4];
    g.left(of_g, r, k);
    du.left_down(of_du, k, r);
    w.left_down(of_w, k, r);
#pragma unroll
    for (int j = 0; j < blocks; ++j) {
      state.right_down(right, k, first + j);
      multiply(dq[j], of_g, right);
      multiply(row[j], of_du, right);
      dstate.right_down(right, k, first + j);
      multiply(column[j], of_w, right);
    }
  }
  float total = 0;  // k . column
#pragma unroll
  for (int j = 0; j < blocks; ++j) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float2 sum = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = 16 * r + lane() / 4 + 8 * half;
        const int place = RowTile<kWidth>::word(2 * r + half, 2 * (first + j) + n);
        const float2 key = unpack(word_at(shared, M::kKeys + place));
        float2 b, f;
        if constexpr (kFeatures) {
          b = unpack(word_at(shared, M::kDecays + place));
          f = unpack(word_at(shared, M::kDecays + M::kTileBytes + place));
        } else {
          b.x = b.y = exp2_approx(sums[t]);
          f.x = f.y = exp2_approx(sums[kChunk - 1] - sums[t]);
        }
        scale_pair(dq[j][n], half, x.scale * b);
        scale_pair(row[j][n], half, minus * betas[t] * b);
        scale_pair(column[j][n], half, betas[t] * f);
        sum.x += key.x * column[j][n][2 * half];
        sum.y += key.y * column[j][n][2 * half + 1];
      }
      if constexpr (kFeatures) {
        store_sum(sum, with_columns + r * kWidth + 16 * (first + j) + 8 * n);
      } else {
        total += sum.x + sum.y;
      }
    }
  }
  if constexpr (!kFeatures) {
    total = sum_over_lanes(total);
    if (lane() == 0) totals[warp()] = total;
  }
  for (int d = warp(); d < kWidth / 8;
       d += kGradientCount / kWarp) {  // S . dS of features 8 d to 8 d + 7
    float2 sum = {};
#pragma unroll
    for (int m = 0; m < kWidth / 8; ++m) {
      const int place = Panel<kWidth>::word(m, d);
      const float2 one = unpack(word_at(shared, M::kState + place));
      const float2 other = unpack(word_at(shared, M::kDState + place));
      sum.x += one.x * other.x;
      sum.y += one.y * other.y;
    }
    store_sum(sum, with_states + 8 * d);
  }
  __syncthreads();

  const Panel<kChunk> dp(base + M::kP), da(base + M::kA);
  if constexpr (kFeatures) {
    auto* const decays = reinterpret_cast<float*>(shared + 3 * M::kTileBytes);  // [64][kWidth]
    store_decays<kWidth, kGradientCount>(decays, c);
    __syncthreads();
    if (!add_divided<kWidth>(shared, decays, dq, row, column)) {
      add_levels<kWidth>(shared, decays, dq, row, column);
    }
    __syncthreads();
  } else {
#pragma unroll
    for (int j = 0; j < blocks; ++j) {
      multiply_scores(dq[j], row[j], column[j], dp, da, keys, queries, keys, r, first + j);
    }
  }

  auto* const dg_terms = reinterpret_cast<float*>(shared + M::kW);  // [64][kDgRow]
  const int64_t key_token = (int64_t{at.b} * s.heads + key_head) * s.length + at.first;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = 16 * r + lane() / 4 + 8 * half;
    float of_token = 0;
#pragma unroll
    for (int j = 0; j < blocks; ++j) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int d = 16 * (first + j) + column_in(n, 0);
        const int place = RowTile<kWidth>::word(2 * r + half, 2 * (first + j) + n);
        const float2 key = unpack(word_at(shared, M::kKeys + place));
        const float2 query = unpack(word_at(shared, M::kQueries + place));
        const float2 of_q = pair_of(dq[j][n], half), of_row = pair_of(row[j][n], half),
                     of_column = pair_of(column[j][n], half);
        const float2 term{query.x * of_q.x + key.x * (of_row.x - of_column.x),
                          query.y * of_q.y + key.y * (of_row.y - of_column.y)};
        if constexpr (kFeatures) {
          *reinterpret_cast<float2*>(dg_terms + t * M::kDgRow + d) = term;
        } else {
          of_token += term.x + term.y;
        }
        if (t >= c.count || d >= s.depth) continue;
        const float2 of_k{of_row.x + of_column.x, of_row.y + of_column.y};
        if (to.parts) {
          const int64_t place_of = (c.token + t) * s.depth + d;
          *reinterpret_cast<float2*>(to.parts + place_of) = of_q;
          *reinterpret_cast<float2*>(to.parts + to.part_size + place_of) = of_k;
        } else {
          word_at(to.dq + (key_token + t) * s.depth + d, 0) = pack(of_q);
          word_at(to.dk + (key_token + t) * s.depth + d, 0) = pack(of_k);
        }
      }
    }
    if constexpr (!kFeatures) {
      of_token = sum_over_quad(of_token);
      if (lane() % 4 == 0) tokens[part * kChunk + t] = of_token;
    }
  }
  if (!to.dg) return;
  __syncthreads();
  if constexpr (kFeatures) {
    if (thread >= s.depth) return;
    float sum = factors[thread] * with_states[thread];
    for (int i = 0; i < 4; ++i) sum += with_columns[i * kWidth + thread];
    for (int t = c.count - 1; t >= 0; --t) {
      to.dg[c.gate(t, thread)] = sum += dg_terms[t * M::kDgRow + thread];
    }
  } else if (warp() == 0) {
    float last = 0;
    for (int d = lane(); d < kWidth; d += kWarp) last += with_states[d];
    last = sum_over_lanes(last) * factors[0];
    for (int i = 0; i < kGradientCount / kWarp; ++i) last += totals[i];
    for (int t = lane(); t < kChunk; t += kWarp) {
      for (int i = 1; i < kGradientParts; ++i) tokens[t] += tokens[i * kChunk + t];
    }
    __syncwarp();
    running_sums(tokens, true);
    for (int t = lane(); t < c.count; t += kWarp) to.dg[c.token + t] = tokens[t] + last;
  }
}

/// The sum of `group` heads' parts, two numbers a thread.
__global__ void __launch_bounds__(kGradientCount)
    join_kernel(const float* parts, Half* to, int64_t pairs, int64_t pairs_of_head, int group) {
  const int64_t i = int64_t{blockIdx.x} * kGradientCount + threadIdx.x;
  if (i >= pairs) return;
  const int64_t head = i / pairs_of_head, pair = i % pairs_of_head;
  float2 sum = {};
  for (int g = 0; g < group; ++g) {
    const float2 one =
        reinterpret_cast<const float2*>(parts)[(head * group + g) * pairs_of_head + pair];
    sum.x += one.x;
    sum.y += one.y;
  }
  word_at(to + 2 * i, 0) = pack(sum);
}

}  // namespace

template <int kWidth>
void run_gradients(const KernelContext& context, const Call& call, const Results& to) {
  const Sizes& s = call.sizes;
  with_gates(s, [&]<bool kFeatures>() {
    launch<gradient_kernel<kWidth, kFeatures>>(context, s.slots * s.value_heads, kGradientCount,
                                               GradientShared<kWidth, kFeatures>::kBytes, call, to);
  });
}

void join_parts(const KernelContext& context, const Call& call, const Results& to) {
  const Sizes& s = call.sizes;
  if (!to.parts) return;
  const int group = s.value_heads / s.heads;
  const int64_t pairs = to.part_size / group / 2, of_head = int64_t{s.length} * s.depth / 2;
  for (const bool keys : {false, true}) {
    launch<join_kernel>(context, ceil_div(pairs, kGradientCount), kGradientCount, 0,
                        static_cast<const float*>(to.parts + (keys ? to.part_size : 0)),
                        keys ? to.dk : to.dq, pairs, of_head, group);
  }
}

template void run_gradients<64>(const KernelContext&, const Call&, const Results&);
template void run_gradients<128>(const KernelContext&, const Call&, const Results&);

int gradient_bytes(const Inputs& x) {
  int bytes = 0;
  with_width(x, [&]<int kWidth>() {
    with_gates(Sizes(x), [&]<bool kFeatures>() {
      bytes = std::max(GradientShared<kWidth, kFeatures>::kBytes, 2 * MmaStep<kWidth>::kBytes);
    });
  });
  return bytes;
}

}  // namespace sash::cuda::delta
