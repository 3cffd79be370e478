#include "../../../ops/kernels/attention_step.h"

#include <cooperative_groups.h>

#include "../norm/rows.cuh"
#include "../runtime/dependent_launch.cuh"
#include "../runtime/extent.h"

namespace sash::cuda {
namespace {

constexpr int kStepThreads = 256;
constexpr int kMostQueries = 4;  // of one key head, in a block
constexpr int kStepAhead = 4;    // keys that a team of lanes reads at a time
constexpr int kWidestBytes = 512;
constexpr int64_t kSlotsPerBlock = 128, kFewBlocks = 128;
constexpr unsigned kMostParts = 8;  // blocks that share the slots, a cluster

/// q and out [B, H, D], k and v [B, H_kv, D] by strides of batch and head; keys and values
/// [B, H_kv, slots, D].
template <class T>
struct StepCall {
  const T *q, *k, *v, *sinks;
  T *keys, *values, *out;
  const float *cos, *sin;
  const int64_t* position;
  int64_t q_stride[2], k_stride[2], v_stride[2], out_stride[2];
  int64_t slots;
  int kv_heads, group, width, pairs;
  int64_t recent, first;
  float scale, softcap;
  bool interleaved;

  /// Element e of the head x, turned by the angle at position p.
  __device__ T turned(const T* x, int e, int64_t p) const {
    if (!cos || e >= 2 * pairs) return x[e];
    const int pair = interleaved ? e / 2 : e % pairs;
    const bool second = interleaved ? e % 2 == 1 : e >= pairs;
    const float a = widen(x[interleaved ? 2 * pair : pair]);
    const float b = widen(x[interleaved ? 2 * pair + 1 : pair + pairs]);
    const float c = cos[p * pairs + pair], s = sin[p * pairs + pair];
    return narrow<T>(second ? a * s + b * c : a * c - b * s);
  }
  __device__ float score(float dot) const {
    const float s = scale * dot;
    return softcap > 0 ? softcap * tanhf(s / softcap) : s;
  }
};

/// exp(a - b), or 0 if a = -inf, even if b = -inf.
__device__ float factor(float a, float b) { return a == -kInfinity<float> ? 0.f : __expf(a - b); }

/// What the blocks of a cluster found in their slots, for each of Q queries.
template <int Q>
struct StepPart {
  float max[Q];
  float sum[Q];  // of exp(s - max)
  float out[Q][kWidestBytes / 2];
};

/// This block's share of the slots that contain tokens up to position p.
struct StepSlots {
  int64_t begin, end;
  template <class T>
  __device__ StepSlots(const StepCall<T>& call, int64_t p) {
    int64_t used = call.recent > 0 ? min(p + 1, call.first + call.recent) : p + 1;
    used = max(min(used, call.slots), int64_t{0});
    const unsigned share = (static_cast<unsigned>(used) + gridDim.x - 1) / gridDim.x;
    begin = int64_t{blockIdx.x} * share;
    end = min(begin + share, used);
  }
};

/// Prefetches rows [begin, end) of x to the L2 cache.
template <class T>
__device__ void prefetch_rows(const T* x, int64_t begin, int64_t end, int width) {
  constexpr int kLine = 128 / sizeof(T);
  for (int64_t at = begin * width + static_cast<int>(threadIdx.x) * kLine; at < end * width;
       at += kStepThreads * kLine) {
    prefetch(x + at);
  }
}

/// Block (part, key head and Q of its queries, batch) computes the queries' scores with a part of
/// the slots. A team of L lanes processes a slot at a time, and each lane a vector of it.
template <int Q, int L, class T>
__global__ void __launch_bounds__(kStepThreads, Q == 1 ? 2 : 1)
    attention_step_kernel(const __grid_constant__ StepCall<T> call) {
  constexpr int V = 16 / sizeof(T), kTeams = kStepThreads / L;
  __shared__ __align__(16) T query[Q][kWidestBytes / sizeof(T)];
  __shared__ __align__(16) T new_key[kWidestBytes / sizeof(T)], new_value[kWidestBytes / sizeof(T)];
  __shared__ float team_max[Q][kTeams], team_sum[Q][kTeams];
  __shared__ __align__(16) float team_out[kTeams][Q][L * V];
  __shared__ StepPart<Q> part;

  const int groups = (call.group + Q - 1) / Q;
  const int key_head = static_cast<int>(blockIdx.y) / groups;
  const int before = static_cast<int>(blockIdx.y) % groups * Q;
  const int queries = min(Q, call.group - before);
  const int head = key_head * call.group + before;
  const auto b = static_cast<int64_t>(blockIdx.z);
  const int width = call.width;
  T* const keys = call.keys + (b * call.kv_heads + key_head) * call.slots * width;
  T* const values = call.values + (b * call.kv_heads + key_head) * call.slots * width;
  start_next_kernel();
  {
    // Prefetches the rows of earlier tokens while the previous kernel runs. An old position does no
    // harm.
    const StepSlots likely(call, *static_cast<const volatile int64_t*>(call.position));
    prefetch_rows(keys, likely.begin, likely.end, width);
    prefetch_rows(values, likely.begin, likely.end, width);
  }
  wait_for_previous_kernel();

  const int64_t p = *call.position;
  const bool turns = call.recent > 0 && p >= call.first;
  const int64_t slot = turns ? call.first + (p - call.first) % call.recent : p;
  const auto [begin, end] = StepSlots(call, p);
  const int lane = static_cast<int>(threadIdx.x) % L, team = static_cast<int>(threadIdx.x) / L;
  const bool holds = lane * V < width;
  int4 k[kStepAhead], v[kStepAhead];
  const auto load = [&](int64_t first) {
#pragma unroll
    for (int u = 0; u < kStepAhead; ++u) {
      const int64_t j = first + u * kTeams;
      k[u] = v[u] = {};
      if (j >= end || j == slot || !holds) continue;
      k[u] = *reinterpret_cast<const int4*>(keys + j * width + lane * V);
      v[u] = *reinterpret_cast<const int4*>(values + j * width + lane * V);
    }
  };
  load(begin + team);

  const T* const new_k = call.k + b * call.k_stride[0] + key_head * call.k_stride[1];
  const T* const new_v = call.v + b * call.v_stride[0] + key_head * call.v_stride[1];
  for (int i = static_cast<int>(threadIdx.x); i < Q * width; i += kStepThreads) {
    const int g = i / width, e = i % width;
    const T* const x = call.q + b * call.q_stride[0] + (head + g) * call.q_stride[1];
    query[g][e] = g < queries ? call.turned(x, e, p) : narrow<T>(0.f);
  }
  const bool stores = blockIdx.x == 0 && before == 0 && slot < call.slots;
  for (int e = static_cast<int>(threadIdx.x); e < width; e += kStepThreads) {
    new_key[e] = call.turned(new_k, e, p);
    new_value[e] = new_v[e];
    if (!stores) continue;
    keys[slot * width + e] = new_key[e];
    values[slot * width + e] = new_value[e];
  }
  __syncthreads();

  float q[Q][V] = {};
  if (holds) {
#pragma unroll
    for (int g = 0; g < Q; ++g) {
      const auto wide = read<V>(&query[g][lane * V]);
#pragma unroll
      for (int i = 0; i < V; ++i) q[g][i] = wide.element[i];
    }
  }
  float max[Q], sum[Q] = {}, out[Q][V] = {};
#pragma unroll
  for (float& m : max) m = -kInfinity<float>;
  for (int64_t first = begin + team; first < end; first += kTeams * kStepAhead) {
#pragma unroll
    for (int u = 0; u < kStepAhead; ++u) {
      // The rows of the new token are not read from memory, because another block writes them.
      if (first + u * kTeams != slot || slot >= end || !holds) continue;
      k[u] = *reinterpret_cast<const int4*>(new_key + lane * V);
      v[u] = *reinterpret_cast<const int4*>(new_value + lane * V);
    }
    float s[kStepAhead][Q];
#pragma unroll
    for (int u = 0; u < kStepAhead; ++u) {
      const auto wide = widened<T>(k[u]);
#pragma unroll
      for (int g = 0; g < Q; ++g) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < V; ++i) dot += q[g][i] * wide.element[i];
        dot = reduce_warp<L>(dot, Plus{});
        s[u][g] = first + u * kTeams < end ? call.score(dot) : -kInfinity<float>;
      }
    }
#pragma unroll
    for (int g = 0; g < Q; ++g) {
      float highest = max[g];
#pragma unroll
      for (int u = 0; u < kStepAhead; ++u) highest = fmaxf(highest, s[u][g]);
      const float kept = factor(max[g], highest);
      max[g] = highest;
      sum[g] *= kept;
#pragma unroll
      for (int i = 0; i < V; ++i) out[g][i] *= kept;
#pragma unroll
      for (int u = 0; u < kStepAhead; ++u) {
        const float weight = factor(s[u][g], highest);
        const auto wide = widened<T>(v[u]);
        sum[g] += weight;
#pragma unroll
        for (int i = 0; i < V; ++i) out[g][i] += weight * wide.element[i];
      }
    }
    load(first + kTeams * kStepAhead);
  }

  // Merges the parts of the teams.
#pragma unroll
  for (int g = 0; g < Q; ++g) {
    if (lane == 0) {
      team_max[g][team] = max[g];
      team_sum[g][team] = sum[g];
    }
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      *reinterpret_cast<float4*>(&team_out[team][g][lane * V + i]) = {out[g][i], out[g][i + 1],
                                                                      out[g][i + 2], out[g][i + 3]};
    }
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (warp < Q) {  // a warp per query: the teams' maxima become their factors
    const int in_warp = static_cast<int>(threadIdx.x) % kWarp;
    float highest = -kInfinity<float>, total = 0;
    for (int t = in_warp; t < kTeams; t += kWarp) highest = fmaxf(highest, team_max[warp][t]);
    highest = reduce_warp(highest, Larger{});
    for (int t = in_warp; t < kTeams; t += kWarp) {
      const float weight = factor(team_max[warp][t], highest);
      team_max[warp][t] = weight;
      total += weight * team_sum[warp][t];
    }
    total = reduce_warp(total, Plus{});
    if (in_warp == 0) {
      part.max[warp] = highest;
      part.sum[warp] = total;
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < Q * width; i += kStepThreads) {
    const int g = i / width, e = i % width;
    float total = 0;
#pragma unroll 8
    for (int t = 0; t < kTeams; ++t) total += team_max[g][t] * team_out[t][g][e];
    part.out[g][e] = total;
  }

  // Merges the parts of the cluster. Each block processes some elements.
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  const auto parts = static_cast<int>(gridDim.x);
  if (parts > 1) {
    cluster.sync();
  } else {
    __syncthreads();
  }
  const auto part_of = [&](int r) {
    return parts > 1 ? cluster.map_shared_rank(&part, static_cast<unsigned>(r)) : &part;
  };
#else
  constexpr int parts = 1;
  __syncthreads();
  const auto part_of = [&](int) { return &part; };
#endif
  T* const result = call.out + b * call.out_stride[0];
  for (int i = static_cast<int>(blockIdx.x * kStepThreads + threadIdx.x); i < queries * width;
       i += parts * kStepThreads) {
    const int g = i / width, e = i % width;
    // All parts are loaded before the first is used, because they are in the memory of other
    // blocks.
    float of_max[kMostParts], of_sum[kMostParts], of_out[kMostParts];
#pragma unroll
    for (int r = 0; r < static_cast<int>(kMostParts); ++r) {
      of_max[r] = -kInfinity<float>;
      of_sum[r] = of_out[r] = 0;
      if (r >= parts) continue;
      const StepPart<Q>& other = *part_of(r);
      of_max[r] = other.max[g];
      of_sum[r] = other.sum[g];
      of_out[r] = other.out[g][e];
    }
    const float sink = call.sinks ? widen(call.sinks[head + g]) : -kInfinity<float>;
    float highest = sink;
#pragma unroll
    for (const float max_of : of_max) highest = fmaxf(highest, max_of);
    float total = factor(sink, highest), y = 0;
#pragma unroll
    for (int r = 0; r < static_cast<int>(kMostParts); ++r) {
      const float weight = factor(of_max[r], highest);
      total += weight * of_sum[r];
      y += weight * of_out[r];
    }
    result[(head + g) * call.out_stride[1] + e] = narrow<T>(y / total);
  }
#if __CUDA_ARCH__ >= 900
  if (parts > 1) cluster.sync();  // other blocks have read the part of this block
#endif
}

template <class T>
StepCall<T> call_of(View q, View k, View v, View keys, View values, View position,
                    const kernels::AttentionStepParams& params, View out) {
  StepCall<T> call{};
  call.q = q.ptr<T>();
  call.k = k.ptr<T>();
  call.v = v.ptr<T>();
  call.sinks = params.sink_logits ? params.sink_logits->ptr<T>() : nullptr;
  call.keys = keys.ptr<T>();
  call.values = values.ptr<T>();
  call.out = out.ptr<T>();
  call.position = position.ptr<int64_t>();
  for (int i = 0; i < 2; ++i) {
    call.q_stride[i] = q.strides[i];
    call.k_stride[i] = k.strides[i];
    call.v_stride[i] = v.strides[i];
    call.out_stride[i] = out.strides[i];
  }
  call.slots = keys.shape[2];
  call.kv_heads = extent("attention_step", keys.shape[1]);
  call.group = static_cast<int>(q.shape[1] / keys.shape[1]);
  call.width = static_cast<int>(q.shape[3]);
  if (params.cos) {
    call.cos = params.cos->ptr<float>();
    call.sin = params.sin->ptr<float>();
    call.pairs = static_cast<int>(params.cos->shape[1]);
  }
  call.recent = params.recent;
  call.first = params.first;
  call.scale = static_cast<float>(params.scale);
  call.softcap = static_cast<float>(params.softcap);
  call.interleaved = params.interleaved;
  return call;
}

/// Depends on the size of the buffer, because the number of slots in use is known only on the
/// device.
unsigned parts_for(int64_t slots) {
  unsigned parts = 1;
  if (card_generation() < 9) return parts;
  while (parts < kMostParts && parts * kSlotsPerBlock < slots) parts *= 2;
  return parts;
}

void attention_step(KernelContext& context, View q, View k, View v, View keys, View values,
                    View position, const kernels::AttentionStepParams& params, View out) {
  if (q.numel() == 0) return;
  sash::detail::dispatch_over<float, float16, bfloat16>(
      q.dtype, "attention_step", [&]<class S>(TypeTag<S>) {
        using T = device_t<S>;
        const StepCall<T> call = call_of<T>(q, k, v, keys, values, position, params, out);
        const CardGuard guard(context.device.index);
        const unsigned parts = parts_for(call.slots);
        // If there are few queries, each has a block, which ends earlier.
        const bool alone = call.group == 1 || q.shape[0] * q.shape[1] * parts <= kFewBlocks;
        const auto launch_for = [&]<int Q, int L>(std::integer_sequence<int, Q, L>) {
          const auto groups = static_cast<unsigned>((call.group + Q - 1) / Q);
          const dim3 grid(parts, block_count(int64_t{call.kv_heads} * groups),
                          block_count(q.shape[0]));
          constexpr auto kernel = attention_step_kernel<Q, L, T>;
          allow_shared_memory<kernel>(context.device.index, 0);
          launch_dependent(context, {.grid = grid, .threads = kStepThreads, .cluster = parts},
                           kernel, call);
        };
        const auto launch = [&]<int L>(std::integral_constant<int, L>) {
          if (alone) return launch_for(std::integer_sequence<int, 1, L>{});
          launch_for(std::integer_sequence<int, kMostQueries, L>{});
        };
        const int vectors = call.width * static_cast<int>(sizeof(T)) / 16;
        if (vectors <= 4) return launch(std::integral_constant<int, 4>{});
        if (vectors <= 8) return launch(std::integral_constant<int, 8>{});
        if (vectors <= 16) return launch(std::integral_constant<int, 16>{});
        launch(std::integral_constant<int, 32>{});
      });
}

}  // namespace

void register_attention_step() { kernels::attention_step.set(DeviceType::cuda, attention_step); }

}  // namespace sash::cuda
