#include "backward.cuh"
#include "selected.h"

/// The backward pass on tensor cores: first the statistics of rows, then the gradients.
namespace sash::cuda::selected {
namespace {

constexpr int kThreads = 256;

template <class T>
__device__ float dot_of(const uint4& a, const uint4& b) {
  const auto *const x = reinterpret_cast<const T*>(&a), *const y = reinterpret_cast<const T*>(&b);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += static_cast<float>(x[i]) * static_cast<float>(y[i]);
  return sum;
}

/// `depth` / 8 lanes for each row of out and g.
template <class T, int depth>
__global__ void __launch_bounds__(kThreads)
    stats_kernel(Backward<T> x, Rows<const T> out, const float* lse, const float* g_lse) {
  constexpr int lanes = depth / 8;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / lanes;
  const Dims& dims = x.dims;
  const int64_t rows = static_cast<int64_t>(dims.batches) * dims.heads * dims.queries;
  const int64_t row = min(at, rows - 1), head = row / dims.queries, query = row % dims.queries;
  const int column = static_cast<int>(threadIdx.x) % lanes * 8;
  const auto chunk = [&](const Rows<const T>& from) {
    return *reinterpret_cast<const uint4*>(from.at(head / dims.heads, head % dims.heads).data +
                                           query * from.row + column);
  };
  const float dot = sum_over_lanes<lanes>(dot_of<T>(chunk(out), chunk(x.g)));
  if (column > 0 || at >= rows) return;
  x.stats[row] = {lse[row] * kLog2E, g_lse ? dot - g_lse[row] : dot};
}

}  // namespace

void tensor_core_backward(const KernelContext& context, const AttentionInputs& x,
                          const SelectedAttentionParams& params,
                          const AttentionGradients& gradients) {
  const auto run = [&]<class T>(TypeTag<T>) {
    const int64_t rows = x.q.shape[0] * x.q.shape[1] * x.q.shape[2];
    const Workspace stats(context, rows * static_cast<int64_t>(sizeof(RowStats)));
    const Backward<T> call{.dims = Dims(x, params),
                           .k = tensor_map(x.k, 64),
                           .v = tensor_map(x.v, 64),
                           .q_heads = tensor_map(x.q, 64, 1, 16),
                           .g_heads = tensor_map(gradients.g, 64, 1, 16),
                           .q = rows_of<const T>(x.q),
                           .g = rows_of<const T>(gradients.g),
                           .dq = rows_of<T>(gradients.dq),
                           .dk = rows_of<T>(gradients.dk),
                           .dv = rows_of<T>(gradients.dv),
                           .stats = stats.ptr<RowStats>()};
    const int64_t depth = x.q.shape[3];
    launch_kernel(context, ceil_div(rows * depth / 8, kThreads), kThreads, 0,
                  depth == 64 ? stats_kernel<T, 64> : stats_kernel<T, 128>, call,
                  rows_of<const T>(gradients.out), gradients.lse.ptr<const float>(),
                  gradients.g_lse ? gradients.g_lse->ptr<const float>() : nullptr);
    backward_gradients(context, call);
  };
  if (x.q.dtype == DType::bfloat16) {
    run(TypeTag<__nv_bfloat16>());
  } else {
    run(TypeTag<__half>());
  }
}

}  // namespace sash::cuda::selected
