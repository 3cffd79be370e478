#include "../../../../core/backend/dispatch.h"
#include "../../elementwise/compute.cuh"
#include "../common/lanes.cuh"
#include "lists.h"
#include "selected.h"

/// Attention over selected blocks without tensor cores: a warp for each query of a head, and in the
/// backward pass another for each key. Lanes share the keys or queries for products, and the
/// features for sums.
namespace sash::cuda::selected {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kPerLane = static_cast<int>(kernels::kSelectedHeadDim) / kWarp;

template <class T>
struct Simple {
  using C = compute_t<T>;
  Dims dims;
  IndexFlag* flag;
  Rows<const T> q{}, k{}, v{}, g{}, out{};
  Rows<T> to_out{}, dq{}, dk{}, dv{};
  const C* lse = nullptr;
  C* to_lse = nullptr;
  const C* g_lse = nullptr;
  C* dots = nullptr;  ///< [B, H, S_q]: rowsum(g . out) - g_lse
};

template <class T>
__device__ compute_t<T> dot(const T* a, const T* b, int n) {
  compute_t<T> sum = 0;
  for (int i = 0; i < n; ++i)
    sum += static_cast<compute_t<T>>(a[i]) * static_cast<compute_t<T>>(b[i]);
  return sum;
}

/// The query of a warp.
struct QueryOfWarp {
  int b, h, query;
  int64_t row;  ///< in [B, H, S_q]

  __device__ explicit QueryOfWarp(const Dims& dims)
      : row(static_cast<int64_t>(blockIdx.x) * kWarps + warp()) {
    const int64_t head = row / dims.queries;
    b = static_cast<int>(head / dims.heads);
    h = static_cast<int>(head % dims.heads);
    query = static_cast<int>(row % dims.queries);
  }
  __device__ bool inside(const Dims& dims) const { return b < dims.batches; }
};

/// Calls f(first, past) for 32 keys or fewer at a time: those of the blocks that a query selects,
/// each block once, within its range.
template <class F>
__device__ void for_each_keys(const Dims& dims, IndexFlag* flag, const QueryOfWarp& at, F f) {
  const KeyRange range = dims.range(at.b, at.h, at.query);
  const int64_t row = dims.index_row(at.b, at.h / dims.heads_per, at.query / dims.queries_per_row);
  const int32_t* const index = dims.index + row * dims.entries;
  for (int i = 0; i < dims.entries; ++i) {
    const int32_t block = index[i];
    if (block == -1) continue;
    if (static_cast<uint32_t>(block) >= static_cast<uint32_t>(dims.blocks)) {
      if (lane() == 0) {
        report(flag, IndexOp::attention_selected, block, dims.blocks, row * dims.entries + i);
      }
      continue;
    }
    bool again = false;
    for (int before = lane(); before < i; before += kWarp) again |= index[before] == block;
    if (__any_sync(~0u, again)) continue;
    const int64_t begin = static_cast<int64_t>(block) * dims.block, end = begin + dims.block;
    const auto past = static_cast<int>(min(end, static_cast<int64_t>(range.past)));
    for (int key = max(static_cast<int>(begin), range.first); key < past; key += kWarp) {
      f(key, min(key + kWarp, past));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(const __grid_constant__ Simple<T> x) {
  using C = compute_t<T>;
  const Dims& dims = x.dims;
  const QueryOfWarp at(dims);
  if (!at.inside(dims)) return;
  const int kv = at.h / (dims.heads / dims.key_heads);
  const T* const q = x.q.at(at.b, at.h).data + at.query * x.q.row;
  const Rows<const T> k = x.k.at(at.b, kv), v = x.v.at(at.b, kv);
  C sum[kPerLane] = {}, total = 0, largest = -C(INFINITY);
  for_each_keys(dims, x.flag, at, [&](int first, int past) {
    const int key = first + lane();
    const bool inside = key < past;
    const C score = inside ? static_cast<C>(dims.scale) * dot(q, k.data + key * k.row, dims.depth)
                           : -C(INFINITY);
    C most = score;
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const C other = __shfl_xor_sync(~0u, most, step);
      most = other > most ? other : most;
    }
    most = most > largest ? most : largest;
    const C base = isinf(most) && most < 0 ? C(0) : most, factor = exp(largest - base);
    largest = most;
    const C weight = inside ? exp(score - base) : C(0);
    total = total * factor + sum_over_lanes(weight);
    for (C& own : sum) own *= factor;
    for (int i = 0; i < past - first; ++i) {
      const C p = __shfl_sync(~0u, weight, i);
      const T* const value = v.data + (first + i) * v.row;
#pragma unroll
      for (int n = 0; n < kPerLane; ++n) {
        if (n * kWarp + lane() < dims.width)
          sum[n] += p * static_cast<C>(value[n * kWarp + lane()]);
      }
    }
  });
  const bool none = total == 0;
  T* const out = x.to_out.at(at.b, at.h).data + at.query * x.to_out.row;
#pragma unroll
  for (int n = 0; n < kPerLane; ++n) {
    const int column = n * kWarp + lane();
    if (column < dims.width) out[column] = static_cast<T>(none ? C(0) : sum[n] / total);
  }
  if (lane() == 0) {
    x.to_lse[at.row] = none ? C(INFINITY) : largest + log(total);
  }
}

/// dq and the dots.
template <class T>
__global__ void __launch_bounds__(kThreads) queries_kernel(const __grid_constant__ Simple<T> x) {
  using C = compute_t<T>;
  const Dims& dims = x.dims;
  const QueryOfWarp at(dims);
  if (!at.inside(dims)) return;
  const int kv = at.h / (dims.heads / dims.key_heads);
  const T* const q = x.q.at(at.b, at.h).data + at.query * x.q.row;
  const T* const g = x.g.at(at.b, at.h).data + at.query * x.g.row;
  const T* const out = x.out.at(at.b, at.h).data + at.query * x.out.row;
  const Rows<const T> k = x.k.at(at.b, kv), v = x.v.at(at.b, kv);
  C mean = 0;
  for (int i = lane(); i < dims.width; i += kWarp) {
    mean += static_cast<C>(g[i]) * static_cast<C>(out[i]);
  }
  mean = sum_over_lanes(mean);
  if (x.g_lse) mean -= x.g_lse[at.row];
  if (lane() == 0) x.dots[at.row] = mean;
  const C scale = static_cast<C>(dims.scale), lse = x.lse[at.row];
  C sum[kPerLane] = {};
  for_each_keys(dims, x.flag, at, [&](int first, int past) {
    const int key = first + lane();
    C ds = 0;
    if (key < past) {
      const C p = exp(scale * dot(q, k.data + key * k.row, dims.depth) - lse);
      ds = scale * p * (dot(g, v.data + key * v.row, dims.width) - mean);
    }
    for (int i = 0; i < past - first; ++i) {
      const C d = __shfl_sync(~0u, ds, i);
      const T* const row = k.data + (first + i) * k.row;
#pragma unroll
      for (int n = 0; n < kPerLane; ++n) {
        if (n * kWarp + lane() < dims.depth) sum[n] += d * static_cast<C>(row[n * kWarp + lane()]);
      }
    }
  });
  T* const dq = x.dq.at(at.b, at.h).data + at.query * x.dq.row;
#pragma unroll
  for (int n = 0; n < kPerLane; ++n) {
    if (n * kWarp + lane() < dims.depth) dq[n * kWarp + lane()] = static_cast<T>(sum[n]);
  }
}

/// dk and dv: a warp for each key of a key head.
template <class T>
__global__ void __launch_bounds__(kThreads)
    keys_kernel(const __grid_constant__ Simple<T> x, const __grid_constant__ Lists lists) {
  using C = compute_t<T>;
  const Dims& dims = x.dims;
  const int64_t number = static_cast<int64_t>(blockIdx.x) * kWarps + warp();
  const auto key = static_cast<int>(number % dims.keys),
             kv = static_cast<int>(number / dims.keys % dims.key_heads);
  const auto b = static_cast<int>(number / dims.keys / dims.key_heads);
  if (b >= dims.batches) return;
  const int list = (b / (dims.batches / dims.index_batches) * lists.heads +
                    kv / (dims.key_heads / lists.heads)) *
                       dims.blocks +
                   key / dims.block;
  const int units = dims.units_of_key_head(), per_list = dims.index_heads / lists.heads;
  const T* const k = x.k.at(b, kv).data + key * x.k.row;
  const T* const v = x.v.at(b, kv).data + key * x.v.row;
  const C scale = static_cast<C>(dims.scale);
  C dk[kPerLane] = {}, dv[kPerLane] = {};
  for (int at = lists.start[list]; at < lists.start[list + 1]; ++at) {
    const int64_t of = lists.selectors[at].row;
    const int unit = kv * units + static_cast<int>(of / dims.rows % dims.index_heads) % per_list;
    const auto row = static_cast<int>(of % dims.rows);
    for (int first = 0; first < dims.group; first += kWarp) {
      const int count = min(kWarp, dims.group - first);
      const int2 place = dims.place(unit, row, min(first + lane(), dims.group - 1));
      C p = 0, ds = 0;
      if (lane() < count && place.x >= 0) {
        const KeyRange range = dims.range(b, place.y, place.x);
        if (key >= range.first && key < range.past) {
          const int64_t query = dims.row_of(b, place.y) + place.x;
          const T* const q = x.q.at(b, place.y).data + place.x * x.q.row;
          const T* const g = x.g.at(b, place.y).data + place.x * x.g.row;
          p = exp(scale * dot(q, k, dims.depth) - x.lse[query]);
          ds = scale * p * (dot(g, v, dims.width) - x.dots[query]);
        }
      }
      for (int i = 0; i < count; ++i) {
        const C weight = __shfl_sync(~0u, p, i), gradient = __shfl_sync(~0u, ds, i);
        const int2 from = dims.place(unit, row, first + i);
        if (from.x < 0) break;
        if (weight == 0 && gradient == 0) continue;
        const T* const q = x.q.at(b, from.y).data + from.x * x.q.row;
        const T* const g = x.g.at(b, from.y).data + from.x * x.g.row;
#pragma unroll
        for (int n = 0; n < kPerLane; ++n) {
          const int column = n * kWarp + lane();
          if (column < dims.depth) dk[n] += gradient * static_cast<C>(q[column]);
          if (column < dims.width) dv[n] += weight * static_cast<C>(g[column]);
        }
      }
    }
  }
  T* const to_k = x.dk.at(b, kv).data + key * x.dk.row;
  T* const to_v = x.dv.at(b, kv).data + key * x.dv.row;
#pragma unroll
  for (int n = 0; n < kPerLane; ++n) {
    const int column = n * kWarp + lane();
    if (column < dims.depth) to_k[column] = static_cast<T>(dk[n]);
    if (column < dims.width) to_v[column] = static_cast<T>(dv[n]);
  }
}

int64_t queries_of(const AttentionInputs& x) { return x.q.shape[0] * x.q.shape[1] * x.q.shape[2]; }

/// Calls f(tag) with the element type as kernels know it.
template <class F>
void with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::float64:
      return f(TypeTag<double>());
    case DType::bfloat16:
      return f(TypeTag<__nv_bfloat16>());
    case DType::float16:
      return f(TypeTag<__half>());
    default:
      return f(TypeTag<float>());
  }
}

}  // namespace

void simple_forward(const KernelContext& context, const AttentionInputs& x,
                    const SelectedAttentionParams& params, View out, View lse) {
  with_type(x.q.dtype, [&]<class T>(TypeTag<T>) {
    Simple<T> call{.dims = Dims(x, params), .flag = index_flag(context.device.index)};
    call.q = rows_of<const T>(x.q);
    call.k = rows_of<const T>(x.k);
    call.v = rows_of<const T>(x.v);
    call.to_out = rows_of<T>(out);
    call.to_lse = lse.ptr<compute_t<T>>();
    launch_kernel(context, ceil_div(queries_of(x), kWarps), kThreads, 0, forward_kernel<T>, call);
  });
}

void simple_backward(const KernelContext& context, const AttentionInputs& x,
                     const SelectedAttentionParams& params, const AttentionGradients& gradients) {
  with_type(x.q.dtype, [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    const Workspace dots(context, queries_of(x) * static_cast<int64_t>(sizeof(C)));
    Simple<T> call{.dims = Dims(x, params), .flag = index_flag(context.device.index)};
    call.q = rows_of<const T>(x.q);
    call.k = rows_of<const T>(x.k);
    call.v = rows_of<const T>(x.v);
    call.g = rows_of<const T>(gradients.g);
    call.out = rows_of<const T>(gradients.out);
    call.dq = rows_of<T>(gradients.dq);
    call.dk = rows_of<T>(gradients.dk);
    call.dv = rows_of<T>(gradients.dv);
    call.lse = gradients.lse.ptr<const C>();
    call.g_lse = gradients.g_lse ? gradients.g_lse->ptr<const C>() : nullptr;
    call.dots = dots.ptr<C>();
    launch_kernel(context, ceil_div(queries_of(x), kWarps), kThreads, 0, queries_kernel<T>, call);
    const ListMemory memory(context, call.dims);
    launch_kernel(context, ceil_div(x.k.shape[0] * x.k.shape[1] * x.k.shape[2], kWarps), kThreads,
                  0, keys_kernel<T>, call, memory.lists());
  });
}

}  // namespace sash::cuda::selected
