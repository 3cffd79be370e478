#include "../attention/common/lanes.cuh"
#include "common.cuh"

namespace sash::cuda::delta {
namespace {

constexpr int kTeam = kThreads / kChunk;  // threads for a token
constexpr int kShare = kTile / kTeam;     // features of a thread

// a, b and f of a chunk, a thread for each number of a decay.
template <class T, class C = compute_t<T>>
__device__ void form_decays(const Chunk<T>& c) {
  const Scratch<C>& to = c.x.scratch;
  for (int d = static_cast<int>(threadIdx.x); d < c.x.sizes.gates; d += kThreads) {
    C product = 1;
    for (int t = 0; t < c.count; ++t) {
      const int64_t at = c.gate(t, d);
      const C a = c.x.g ? exp(c.x.g[at]) : C(1);
      to.a[at] = a;
      to.b[at] = product *= a;
    }
    product = 1;
    for (int t = c.count - 1; t >= 0; --t) {
      const int64_t at = c.gate(t, d);
      to.f[at] = product;
      product *= to.a[at];
    }
  }
}

// P and A. A team has token i: it lets k[i] decay from token to token, and multiplies it with the
// query and the key of each. Only the team's threads write and read its columns.
template <class T, class C = compute_t<T>>
__device__ void form_products(const Chunk<T>& c, C* p, C* s) {
  const int i = static_cast<int>(threadIdx.x) / kTeam, part = static_cast<int>(threadIdx.x) % kTeam;
  for (int t = part; t < kChunk; t += kTeam) p[t * kChunk + i] = s[t * kChunk + i] = 0;
  __syncwarp();
  for (int tile = 0; tile < c.x.sizes.depth; tile += kTile) {
    C key[kShare];
#pragma unroll
    for (int j = 0; j < kShare; ++j) key[j] = c.key(i, tile + part + kTeam * j);
    for (int t = 0; t < c.count; ++t) {
      C with_query = 0, with_key = 0;
      if (t >= i) {
#pragma unroll
        for (int j = 0; j < kShare; ++j) {
          const int d = tile + part + kTeam * j;
          if (t > i) key[j] *= c.a(t, d);
          with_query += c.query(t, d) * key[j];
          with_key += c.key(t, d) * key[j];
        }
      }
      with_query = sum_over_lanes<kTeam>(with_query);
      with_key = sum_over_lanes<kTeam>(with_key);
      if (part == 0 && t >= i) p[t * kChunk + i] += with_query;
      if (part == 0 && t > i) s[t * kChunk + i] += with_key;
    }
  }
}

// N = (I + beta A)^-1, a column by a team: N[t, i] = -beta[t] sum of A[t, j] N[j, i] for i <= j <
// t.
template <class T, class C = compute_t<T>>
__device__ void invert(const Chunk<T>& c, const C* s, C* n) {
  const int i = static_cast<int>(threadIdx.x) / kTeam, part = static_cast<int>(threadIdx.x) % kTeam;
  for (int t = 0; t < c.count; ++t) {
    C sum = 0;
    for (int j = i + part; j < t; j += kTeam) sum += s[t * kChunk + j] * n[j * kChunk + i];
    sum = sum_over_lanes<kTeam>(sum);
    if (part == 0) n[t * kChunk + i] = t < i ? C(0) : t == i ? C(1) : -c.beta(t) * sum;
    __syncwarp();
  }
}

/// A block for each chunk of each value head.
template <class T, class C = compute_t<T>>
__global__ void __launch_bounds__(kThreads) score_kernel(Operands<T> x) {
  const int heads = x.sizes.value_heads, block = static_cast<int>(blockIdx.x);
  const Chunk<T> c(x, x.sizes.place_of_slot(block / heads), block % heads);
  if (c.count == 0) return;
  C *const p = x.scratch.p + c.matrix, *const s = x.scratch.s + c.matrix;
  form_decays(c);
  __syncthreads();
  form_products(c, p, s);
  if (!x.beta) return;
  __syncthreads();
  invert(c, s, x.scratch.n + c.matrix);
}

}  // namespace

template <class T>
void form_scores(const KernelContext& context, const Operands<T>& x) {
  run(context, score_kernel<T>, x.sizes.slots * x.sizes.value_heads, x);
}

template void form_scores(const KernelContext&, const Operands<float>&);
template void form_scores(const KernelContext&, const Operands<double>&);
template void form_scores(const KernelContext&, const Operands<__half>&);
template void form_scores(const KernelContext&, const Operands<__nv_bfloat16>&);

}  // namespace sash::cuda::delta
