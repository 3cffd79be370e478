#include "../../../ops/kernels/attention_step.h"

#include <cooperative_groups.h>

#include "../norm/rows.cuh"
#include "../runtime/dependent_launch.cuh"

namespace sash::cuda {
namespace {

constexpr int kStepThreads = 256;
constexpr int kStepQueries = 4;  // of one key head, in a block
constexpr int kStepAhead = 4;    // keys that a team of lanes reads at a time
constexpr int kWidestBytes = 512;
constexpr int64_t kSlotsPerBlock = 128;
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

/// exp(a - b), and 0 for a = -inf, also beside b = -inf.
__device__ float factor(float a, float b) { return a == -kInfinity<float> ? 0.f : __expf(a - b); }

/// What the blocks of a cluster found in their slots, for each query.
struct StepPart {
  float max[kStepQueries];
  float sum[kStepQueries];  // of exp(s - max)
  float out[kStepQueries][kWidestBytes / 2];
};

/// Block (part, key head and group of queries, batch) has the queries' scores with a part of the
/// slots; a team of L lanes has a slot at a time, each lane a vector of it.
template <int L, class T>
__global__ void __launch_bounds__(kStepThreads)
    attention_step_kernel(const __grid_constant__ StepCall<T> call) {
  constexpr int V = 16 / sizeof(T), kTeams = kStepThreads / L;
  __shared__ __align__(16) T query[kStepQueries][kWidestBytes / sizeof(T)];
  __shared__ __align__(16) T new_key[kWidestBytes / sizeof(T)], new_value[kWidestBytes / sizeof(T)];
  __shared__ float team_max[kStepQueries][kTeams], team_sum[kStepQueries][kTeams];
  __shared__ float team_out[kTeams][kStepQueries][L * V];
  __shared__ StepPart part;
  start_next_kernel();
  wait_for_previous_kernel();

  const int groups = (call.group + kStepQueries - 1) / kStepQueries;
  const int key_head = static_cast<int>(blockIdx.y) / groups;
  const int before = static_cast<int>(blockIdx.y) % groups * kStepQueries;
  const int queries = min(kStepQueries, call.group - before);
  const int head = key_head * call.group + before;
  const auto b = static_cast<int64_t>(blockIdx.z);
  const int width = call.width;
  const int64_t p = *call.position;
  const bool turns = call.recent > 0 && p >= call.first;
  const int64_t slot = turns ? call.first + (p - call.first) % call.recent : p;
  const int64_t used = call.recent > 0 ? min(p + 1, call.first + call.recent) : p + 1;

  const T* const new_k = call.k + b * call.k_stride[0] + key_head * call.k_stride[1];
  const T* const new_v = call.v + b * call.v_stride[0] + key_head * call.v_stride[1];
  for (int i = static_cast<int>(threadIdx.x); i < kStepQueries * width; i += kStepThreads) {
    const int g = i / width, e = i % width;
    const T* const x = call.q + b * call.q_stride[0] + (head + g) * call.q_stride[1];
    query[g][e] = g < queries ? call.turned(x, e, p) : narrow<T>(0.f);
  }
  T* const keys = call.keys + (b * call.kv_heads + key_head) * call.slots * width;
  T* const values = call.values + (b * call.kv_heads + key_head) * call.slots * width;
  const bool stores = blockIdx.x == 0 && before == 0 && slot < call.slots;
  for (int e = static_cast<int>(threadIdx.x); e < width; e += kStepThreads) {
    new_key[e] = call.turned(new_k, e, p);
    new_value[e] = new_v[e];
    if (!stores) continue;
    keys[slot * width + e] = new_key[e];
    values[slot * width + e] = new_value[e];
  }
  __syncthreads();

  const int64_t share = (min(used, call.slots) + gridDim.x - 1) / gridDim.x;
  const int64_t begin = blockIdx.x * share, end = min(begin + share, min(used, call.slots));
  const int lane = static_cast<int>(threadIdx.x) % L, team = static_cast<int>(threadIdx.x) / L;
  const bool holds = lane * V < width;
  float q[kStepQueries][V] = {};
  if (holds) {
#pragma unroll
    for (int g = 0; g < kStepQueries; ++g) {
      const auto wide = read<V>(&query[g][lane * V]);
#pragma unroll
      for (int i = 0; i < V; ++i) q[g][i] = wide.element[i];
    }
  }
  float max[kStepQueries], sum[kStepQueries] = {}, out[kStepQueries][V] = {};
#pragma unroll
  for (float& m : max) m = -kInfinity<float>;
  for (int64_t first = begin + team; first < end; first += kTeams * kStepAhead) {
    Vector<T, V> k[kStepAhead] = {}, v[kStepAhead] = {};
#pragma unroll
    for (int u = 0; u < kStepAhead; ++u) {
      const int64_t j = first + u * kTeams;
      if (j >= end || !holds) continue;
      // The new token's are not read from memory, where another block writes them.
      const T* const from_k = j == slot ? new_key : keys + j * width;
      const T* const from_v = j == slot ? new_value : values + j * width;
      k[u] = *reinterpret_cast<const Vector<T, V>*>(from_k + lane * V);
      v[u] = *reinterpret_cast<const Vector<T, V>*>(from_v + lane * V);
    }
    float s[kStepAhead][kStepQueries];
#pragma unroll
    for (int u = 0; u < kStepAhead; ++u) {
      const auto wide = widened(k[u]);
#pragma unroll
      for (int g = 0; g < kStepQueries; ++g) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < V; ++i) dot += q[g][i] * wide.element[i];
        dot = reduce_warp<L>(dot, Plus{});
        s[u][g] = first + u * kTeams < end ? call.score(dot) : -kInfinity<float>;
      }
    }
#pragma unroll
    for (int g = 0; g < kStepQueries; ++g) {
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
        const auto wide = widened(v[u]);
        sum[g] += weight;
#pragma unroll
        for (int i = 0; i < V; ++i) out[g][i] += weight * wide.element[i];
      }
    }
  }

  // The teams' parts together.
#pragma unroll
  for (int g = 0; g < kStepQueries; ++g) {
    if (lane == 0) {
      team_max[g][team] = max[g];
      team_sum[g][team] = sum[g];
    }
#pragma unroll
    for (int i = 0; i < V; ++i) team_out[team][g][lane * V + i] = out[g][i];
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (warp < kStepQueries) {  // a warp per query: the teams' maxima become their factors
    const int own = static_cast<int>(threadIdx.x) % kWarp;
    float highest = -kInfinity<float>, total = 0;
    for (int t = own; t < kTeams; t += kWarp) highest = fmaxf(highest, team_max[warp][t]);
    highest = reduce_warp(highest, Larger{});
    for (int t = own; t < kTeams; t += kWarp) {
      const float weight = factor(team_max[warp][t], highest);
      team_max[warp][t] = weight;
      total += weight * team_sum[warp][t];
    }
    total = reduce_warp(total, Plus{});
    if (own == 0) {
      part.max[warp] = highest;
      part.sum[warp] = total;
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kStepQueries * width; i += kStepThreads) {
    const int g = i / width, e = i % width;
    float total = 0;
#pragma unroll 8
    for (int t = 0; t < kTeams; ++t) total += team_max[g][t] * team_out[t][g][e];
    part.out[g][e] = total;
  }

  // The cluster's parts together: each block has some elements.
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
    float highest = call.sinks ? widen(call.sinks[head + g]) : -kInfinity<float>;
    const float sink = highest;
    for (int r = 0; r < parts; ++r) highest = fmaxf(highest, part_of(r)->max[g]);
    float total = factor(sink, highest), y = 0;
    for (int r = 0; r < parts; ++r) {
      const float weight = factor(part_of(r)->max[g], highest);
      total += weight * part_of(r)->sum[g];
      y += weight * part_of(r)->out[g][e];
    }
    result[(head + g) * call.out_stride[1] + e] = narrow<T>(y / total);
  }
#if __CUDA_ARCH__ >= 900
  if (parts > 1) cluster.sync();  // the others have read this block's part
#endif
}

template <class T>
StepCall<T> call_of(const TensorView& q, const TensorView& k, const TensorView& v,
                    const TensorView& keys, const TensorView& values, const TensorView& position,
                    const kernels::AttentionStepParams& params, const TensorView& out) {
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
  call.kv_heads = static_cast<int>(keys.shape[1]);
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

/// By the buffer's size, not by the slots in use: those are known on the device alone.
unsigned parts_for(int64_t slots) {
  unsigned parts = 1;
  if (card_generation() < 9) return parts;
  while (parts < kMostParts && parts * kSlotsPerBlock < slots) parts *= 2;
  return parts;
}

void attention_step(KernelContext& context, const TensorView& q, const TensorView& k,
                    const TensorView& v, const TensorView& keys, const TensorView& values,
                    const TensorView& position, const kernels::AttentionStepParams& params,
                    const TensorView& out) {
  if (q.numel() == 0) return;
  sash::detail::dispatch_over<float, float16, bfloat16>(
      q.dtype, "attention_step", [&]<class S>(TypeTag<S>) {
        using T = device_t<S>;
        const StepCall<T> call = call_of<T>(q, k, v, keys, values, position, params, out);
        const CardGuard guard(context.device.index);
        const auto groups = static_cast<unsigned>((call.group + kStepQueries - 1) / kStepQueries);
        const unsigned parts = parts_for(call.slots);
        const dim3 grid(parts, static_cast<unsigned>(call.kv_heads) * groups,
                        static_cast<unsigned>(q.shape[0]));
        const auto launch = [&]<int L>(std::integral_constant<int, L>) {
          launch_dependent({.grid = grid, .threads = kStepThreads, .cluster = parts},
                           attention_step_kernel<L, T>,
                           static_cast<cudaStream_t>(context.stream.handle), call);
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
