#include "backward.cuh"
#include "selected.h"

/// The backward pass on tensor cores: first the statistics of rows, then both gradients.
namespace sash::cuda::selected {
namespace {

constexpr int kThreads = 256;

/// A warp for each row of out and g.
template <class T>
__global__ void __launch_bounds__(kThreads)
    stats_kernel(Backward<T> x, Rows<const T> out, const float* lse, const float* g_lse) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + warp();
  const Dims& dims = x.dims;
  if (row >= static_cast<int64_t>(dims.batches) * dims.heads * dims.queries) return;
  const int64_t head = row / dims.queries, query = row % dims.queries;
  const T* const a = out.at(head / dims.heads, head % dims.heads).data + query * out.row;
  const T* const b = x.g.at(head / dims.heads, head % dims.heads).data + query * x.g.row;
  float dot = 0;
  for (int i = lane(); i < dims.width; i += kWarp) {
    dot += static_cast<float>(a[i]) * static_cast<float>(b[i]);
  }
  dot = sum_over_lanes(dot);
  if (lane() == 0) x.stats[row] = {lse[row] * kLog2E, g_lse ? dot - g_lse[row] : dot};
}

}  // namespace

void tensor_core_backward(const KernelContext& context, const AttentionInputs& x,
                          const SelectedAttentionParams& params,
                          const AttentionGradients& gradients) {
  const auto run = [&]<class T>(TypeTag<T>) {
    const int64_t rows = x.q.shape[0] * x.q.shape[1] * x.q.shape[2];
    const Workspace stats(context, rows * static_cast<int64_t>(sizeof(RowStats)));
    const Backward<T> call{.dims = Dims(x, params),
                           .flag = index_flag(context.device.index),
                           .k = tensor_map(x.k, 64),
                           .v = tensor_map(x.v, 64),
                           .q = rows_of<const T>(x.q),
                           .g = rows_of<const T>(gradients.g),
                           .k_rows = rows_of<const T>(x.k),
                           .v_rows = rows_of<const T>(x.v),
                           .dq = rows_of<T>(gradients.dq),
                           .dk = rows_of<T>(gradients.dk),
                           .dv = rows_of<T>(gradients.dv),
                           .stats = stats.ptr<RowStats>()};
    launch_kernel(context, ceil_div(rows, kThreads / kWarp), kThreads, 0, stats_kernel<T>, call,
                  rows_of<const T>(gradients.out), gradients.lse.ptr<const float>(),
                  gradients.g_lse ? gradients.g_lse->ptr<const float>() : nullptr);
    backward_queries(context, call);
    backward_keys(context, call);
  };
  if (x.q.dtype == DType::bfloat16) {
    run(TypeTag<__nv_bfloat16>());
  } else {
    run(TypeTag<__half>());
  }
}

}  // namespace sash::cuda::selected
