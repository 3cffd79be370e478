#include "../../../ops/kernels/normed_heads.h"

#include <algorithm>
#include <limits>

#include "../../../core/error.h"
#include "../norm/column_sums.cuh"

namespace sash::cuda {
namespace {

/// x, g and y (or dx) [tokens, heads, D]; the first `normed` heads are queries and keys.
template <class T>
struct HeadsCall {
  using A = compute_t<T>;
  const T *x, *g, *weights[2];  // of queries and of keys
  const A *cos, *sin;           // null: nothing is rotated
  T* y;
  A* rstd;               // [tokens, normed]
  int64_t angle_stride;  // from batch to batch
  // 32 bits: a thread has 64 bytes of a tensor.
  uint32_t tokens, length;
  int heads, queries, normed;
  A eps, offset;  // w = weight + offset
};

/// A lane's part of a head: the vector `lane` of each half.
template <int L, class T>
struct HeadPart {
  static constexpr int V = 16 / sizeof(T), kWidth = 2 * V * L;
  using A = compute_t<T>;
  using Values = Vector<A, V>;
  int4 half[2];  // elements that wait, as words

  static __device__ int at(int i) {
    return i * (kWidth / 2) + static_cast<int>(threadIdx.x) % L * V;
  }
  __device__ void load(const T* head) {
#pragma unroll
    for (int i = 0; i < 2; ++i) half[i] = *reinterpret_cast<const int4*>(head + at(i));
  }
  __device__ void store(T* head) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) *reinterpret_cast<int4*>(head + at(i)) = half[i];
  }
  __device__ Values values(int i) const { return widened<T>(half[i]); }
};

/// The cosines and sines of a lane's pairs, if there are angles.
template <int L, class T>
struct LaneAngles {
  static constexpr int V = HeadPart<L, T>::V;
  using A = compute_t<T>;
  using Values = Vector<A, V>;
  Values cos, sin;
  bool any;

  __device__ void load(const HeadsCall<T>& call, uint32_t token, A sign) {
    any = call.cos;
    if (!any) return;
    const uint32_t b = token / call.length, s = token - b * call.length;
    const int64_t first =
        b * call.angle_stride + int64_t{s} * (V * L) + static_cast<int>(threadIdx.x) % L * V;
    cos = *reinterpret_cast<const Values*>(call.cos + first);
    sin = *reinterpret_cast<const Values*>(call.sin + first);
#pragma unroll
    for (A& s_of : sin.element) s_of *= sign;
  }
  __device__ void turn(Values& first, Values& second) const {
    if (!any) return;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A a = first.element[i], b = second.element[i];
      first.element[i] = a * cos.element[i] - b * sin.element[i];
      second.element[i] = a * sin.element[i] + b * cos.element[i];
    }
  }
};

template <class A, int V>
__device__ A dot(const Vector<A, V>& a, const Vector<A, V>& b) {
  A sum = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) sum += a.element[i] * b.element[i];
  return sum;
}

constexpr int kHeadsOfTeam = 2;

/// A team of L lanes has every `groups`-th head of a token.
template <int L, class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const __grid_constant__ HeadsCall<T> call, uint32_t teams, uint32_t groups) {
  using Part = HeadPart<L, T>;
  using A = compute_t<T>;
  constexpr int V = Part::V;
  start_next_kernel();
  wait_for_previous_kernel();
  const uint32_t team = (blockIdx.x * kThreads + threadIdx.x) / L;
  if (team >= teams) return;
  const uint32_t token = team / groups;
  const auto group = static_cast<int>(team - token * groups);
  const int64_t first = int64_t{token} * call.heads;
  Part parts[kHeadsOfTeam];
#pragma unroll
  for (int k = 0; k < kHeadsOfTeam; ++k) {
    const int head = group + k * static_cast<int>(groups);
    if (head < call.heads) parts[k].load(call.x + (first + head) * Part::kWidth);
  }
  LaneAngles<L, T> angles;
  angles.load(call, token, A(1));
#pragma unroll
  for (int k = 0; k < kHeadsOfTeam; ++k) {
    const int head = group + k * static_cast<int>(groups);
    if (head >= call.heads) continue;
    T* const to = call.y + (first + head) * Part::kWidth;
    if (head >= call.normed) {
      parts[k].store(to);
      continue;
    }
    Vector<A, V> v[2] = {parts[k].values(0), parts[k].values(1)};
    const A squares = reduce_warp<L>(dot(v[0], v[0]) + dot(v[1], v[1]), Plus{});
    const A r = 1 / std::sqrt(squares / static_cast<A>(Part::kWidth) + call.eps);
    const T* const weight = call.weights[head < call.queries ? 0 : 1];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto w = read<V>(weight + Part::at(i));
#pragma unroll
      for (int e = 0; e < V; ++e) v[i].element[e] *= r * (w.element[e] + call.offset);
    }
    angles.turn(v[0], v[1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) write<V>(to + Part::at(i), v[i]);
    if (threadIdx.x % L == 0) call.rstd[int64_t{token} * call.normed + head] = r;
  }
}

/// With g turned back, z = x rstd and h = g w: dx = rstd (h - z mean(h z)), and sums of g z over
/// tokens, partial [blocks, 2, D] (of queries and of keys), if it is not null. A team of L lanes
/// has one head of every `stride`-th token.
template <int L, class T>
__global__ void __launch_bounds__(kThreads, 2)
    backward_kernel(const __grid_constant__ HeadsCall<T> call, compute_t<T>* partial,
                    uint32_t stride) {
  using Part = HeadPart<L, T>;
  using A = compute_t<T>;
  constexpr int V = Part::V, kTeams = kThreads / L, D = Part::kWidth;
  const auto normed = static_cast<uint32_t>(call.normed);
  const uint32_t team = blockIdx.x * kTeams + threadIdx.x / L;
  const uint32_t head = team % normed;
  const bool active = team < stride * normed;
  const uint32_t end = active ? call.tokens : 0;
  Part weight;
  weight.load(call.weights[static_cast<int>(head) < call.queries ? 0 : 1]);
  Vector<A, V> sums[2] = {};
  for (uint32_t token = team / normed; token < end; token += stride) {
    // All loads first, so that they wait for the memory together.
    const int64_t at = (int64_t{token} * call.heads + head) * D;
    Part x, g;
    x.load(call.x + at);
    g.load(call.g + at);
    const A r = call.rstd[int64_t{token} * normed + head];
    LaneAngles<L, T> angles;
    angles.load(call, token, A(-1));
    Vector<A, V> d[2] = {g.values(0), g.values(1)}, z[2] = {x.values(0), x.values(1)};
    angles.turn(d[0], d[1]);
    A product = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto w = weight.values(i);
#pragma unroll
      for (int e = 0; e < V; ++e) {
        z[i].element[e] *= r;
        sums[i].element[e] += d[i].element[e] * z[i].element[e];
        d[i].element[e] *= w.element[e] + call.offset;
      }
      product += dot(d[i], z[i]);
    }
    const A mean = reduce_warp<L>(product, Plus{}) / static_cast<A>(D);
    T* const to = call.y + at;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int e = 0; e < V; ++e) {
        d[i].element[e] = r * (d[i].element[e] - z[i].element[e] * mean);
      }
      write<V>(to + Part::at(i), d[i]);
    }
  }
  if (!partial) return;
  __shared__ __align__(16) A teams[kTeams][D];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    *reinterpret_cast<Vector<A, V>*>(&teams[threadIdx.x / L][Part::at(i)]) = sums[i];
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < 2 * D; e += kThreads) {
    A total = 0;
    for (uint32_t t = 0; t < kTeams; ++t) {
      const bool queries = (blockIdx.x * kTeams + t) % normed < static_cast<uint32_t>(call.queries);
      if (queries == (e < D)) total += teams[t][e % D];
    }
    partial[int64_t{blockIdx.x} * 2 * D + e] = total;
  }
}

/// The values' gradients, where dx is not g.
template <class T>
__global__ void __launch_bounds__(kThreads)
    copy_values(const __grid_constant__ HeadsCall<T> call, uint32_t per_head, uint32_t vectors) {
  const uint32_t flat = blockIdx.x * kThreads + threadIdx.x;
  if (flat >= vectors) return;
  const uint32_t per_token = per_head * static_cast<uint32_t>(call.heads - call.normed);
  const uint32_t token = flat / per_token;
  const int64_t at = (int64_t{token} * call.heads + call.normed) * per_head + flat % per_token;
  reinterpret_cast<int4*>(call.y)[at] = reinterpret_cast<const int4*>(call.g)[at];
}

template <class T>
HeadsCall<T> call_of(View x, View q_weight, View k_weight, View cos, View sin, View rstd, View y,
                     const kernels::NormedHeadsParams& params) {
  using A = compute_t<T>;
  HeadsCall<T> call{};
  call.x = x.ptr<T>();
  call.weights[0] = q_weight.ptr<T>();
  call.weights[1] = k_weight.ptr<T>();
  call.cos = cos.ptr<A>();
  call.sin = sin.ptr<A>();
  call.y = y.ptr<T>();
  call.rstd = rstd.ptr<A>();
  if (cos.data) call.angle_stride = cos.shape[0] == 1 ? 0 : cos.strides[0];
  if (x.numel() * int64_t{sizeof(T)} > int64_t{1} << 37) {  // kernels count lanes of 32 bytes
    throw NotImplemented("normed_heads", "x of more than 2^37 bytes on a card");
  }
  call.tokens = static_cast<uint32_t>(x.shape[0] * x.shape[1]);
  call.length = static_cast<uint32_t>(x.shape[1]);
  call.heads = static_cast<int>(x.shape[2]);
  call.queries = static_cast<int>(params.heads);
  call.normed = static_cast<int>(params.heads + params.kv_heads);
  call.eps = static_cast<A>(params.eps);
  call.offset = static_cast<A>(params.unit_offset ? 1 : 0);
  return call;
}

/// Calls `f` with the lanes that a head of the device type `T` takes.
template <class T, class F>
void with_lanes(int64_t width, F&& f) {
  const int64_t lanes = width * int64_t{sizeof(T)} / 32;
  const auto choose = [&]<int L>(std::integral_constant<int, L>, const auto& next) {
    if (lanes == L) return f(std::integral_constant<int, L>{});
    if constexpr (L < kWarp) next(std::integral_constant<int, 2 * L>{}, next);
  };
  choose(std::integral_constant<int, 1>{}, choose);
}

void forward(KernelContext& context, View x, View q_weight, View k_weight, View cos, View sin,
             View y, View rstd, const kernels::NormedHeadsParams& params) {
  if (x.numel() == 0) return;
  dispatch_device_floating(x.dtype, "normed_heads", [&]<class T>(TypeTag<T>) {
    const auto call = call_of<T>(x, q_weight, k_weight, cos, sin, rstd, y, params);
    const auto groups = static_cast<uint32_t>((call.heads + kHeadsOfTeam - 1) / kHeadsOfTeam);
    const uint32_t teams = call.tokens * groups;
    with_lanes<T>(x.shape[3], [&]<int L>(std::integral_constant<int, L>) {
      const int64_t blocks = blocks_for(int64_t{teams} * L);
      if (call.tokens <= kFewRows) {
        return launch_dependent(context, {.grid = blocks, .threads = kThreads},
                                forward_kernel<L, T>, call, teams, groups);
      }
      launch_kernel(context, blocks, kThreads, 0, forward_kernel<L, T>, call, teams, groups);
    });
  });
}

void backward(KernelContext& context, View x, View q_weight, View k_weight, View rstd, View cos,
              View sin, View g, View dx, View dq_weight, View dk_weight,
              const kernels::NormedHeadsParams& params) {
  constexpr int64_t kMostBlocks = 264;  // by the shape, not by the card
  dispatch_device_floating(x.dtype, "normed_heads", [&]<class T>(TypeTag<T>) {
    using A = compute_t<T>;
    auto call = call_of<T>(x, q_weight, k_weight, cos, sin, rstd, dx, params);
    call.g = g.ptr<T>();
    const int64_t width = x.shape[3];
    with_lanes<T>(width, [&]<int L>(std::integral_constant<int, L>) {
      constexpr int64_t kTeams = kThreads / L;
      const auto needed = [&](int64_t teams) { return (teams + kTeams - 1) / kTeams; };
      const int64_t most = std::max(kMostBlocks, needed(call.normed));
      const int64_t blocks = std::min(most, needed(int64_t{call.tokens} * call.normed));
      const bool sums = dq_weight.data;
      const Workspace scratch(context, sums ? blocks * 2 * width * int64_t{sizeof(A)} : 0);
      A* const partial = sums ? scratch.ptr<A>() : nullptr;
      if (blocks > 0) {
        launch_kernel(context, blocks, kThreads, 0, backward_kernel<L, T>, call, partial,
                      blocks * kTeams / call.normed);
      }
      if (!sums) return;
      launch_add_chunks(context, partial, blocks, 2, width,
                        ColumnSums<T>{{dq_weight.ptr<T>(), dk_weight.ptr<T>()}});
    });
    const int64_t per_head = width * int64_t{sizeof(T)} / 16;
    const int64_t per_token = per_head * (call.heads - call.normed);
    if (call.g == call.y || per_token == 0) return;
    // Some tokens at a time, whose vectors the kernel counts in 32 bits.
    const int64_t most = std::numeric_limits<uint32_t>::max() / per_token;
    for (int64_t first = 0; first < call.tokens; first += most) {
      const int64_t vectors = std::min(most, call.tokens - first) * per_token;
      HeadsCall<T> part = call;
      part.g += first * call.heads * width;
      part.y += first * call.heads * width;
      launch_kernel(context, blocks_for(vectors), kThreads, 0, copy_values<T>, part, per_head,
                    vectors);
    }
  });
}

}  // namespace

void register_normed_heads() {
  kernels::normed_heads_forward.set(DeviceType::cuda, forward);
  kernels::normed_heads_backward.set(DeviceType::cuda, backward);
}

}  // namespace sash::cuda
