#include "../../../ops/kernels/norm.h"

#include "norm_backward.cuh"
#include "norm_forward.cuh"

namespace sash::cuda {
namespace {

template <class T>
void backward(const KernelContext& context, const NormGradient<T, false>& f, int64_t rows,
              int64_t n, T* dweight) {
  using A = compute_t<T>;
  constexpr int V = 16 / sizeof(T);
  if (rows == 0 || n == 0) return;
  const bool vectors = rows_take_vectors<T>(n, {f.x, f.weight, f.g, f.dsum, f.dx});
  if (!vectors || !RowChunks::take(n, V)) {  // x and g are read twice
    if (f.dx) over_rows<T>(context, f, rows, n, {f.x, f.weight, f.g, f.dsum, f.dx});
    if (!dweight) return;
    return sum_columns<T>(context, f, rows, n, dweight, {f.x, f.g});
  }
  const RowChunks chunks(rows, n, V, 3);
  const Workspace scratch(context, dweight ? chunks.count * n * int64_t{sizeof(A)} : 0);
  A* const partial = dweight ? scratch.ptr<A>() : nullptr;
  launch_kernel(context, chunks.count, chunks.threads, chunks.shared,
                norm_gradient_rows<V, T, false>, f, partial, rows, n, chunks.rows);
  if (!partial) return;
  launch_add_chunks(context, partial, chunks.count, 1, n, ColumnSums<T>{{dweight}});
}

void rms_norm_forward(KernelContext& context, View x, View residual, View weight, View sum, View y,
                      View rstd, double eps, bool unit_offset) {
  dispatch_device_floating(x.dtype, "rms_norm", [&]<class T>(TypeTag<T>) {
    using A = compute_t<T>;
    const SumNorm<T, false> forward{x.ptr<T>(),
                                    residual.ptr<T>(),
                                    sum.ptr<T>(),
                                    DropoutFactors<A>(0, {}),
                                    {.x = x.ptr<T>(),
                                     .weight = weight.ptr<T>(),
                                     .shift = static_cast<A>(unit_offset ? 1 : 0),
                                     .y = y.ptr<T>(),
                                     .mean = nullptr,
                                     .rstd = rstd.ptr<A>(),
                                     .eps = static_cast<A>(eps)}};
    over_rows_ahead<T>(context, forward, norm_rows<16 / sizeof(T), T, false>, x.shape[0],
                       x.shape[1], {x.data, residual.data, weight.data, sum.data, y.data});
  });
}

void rms_norm_backward(KernelContext& context, View x, View weight, View rstd, View g, View dsum,
                       View dx, View dweight, bool unit_offset) {
  dispatch_device_floating(x.dtype, "rms_norm", [&]<class T>(TypeTag<T>) {
    using A = compute_t<T>;
    const NormGradient<T, false> f{.x = x.ptr<T>(),
                                   .weight = weight.ptr<T>(),
                                   .mean = nullptr,
                                   .rstd = rstd.ptr<A>(),
                                   .g = g.ptr<T>(),
                                   .dsum = dsum.ptr<T>(),
                                   .dx = dx.ptr<T>(),
                                   .dbranch = nullptr,
                                   .dropout = DropoutFactors<A>(0, {}),
                                   .offset = static_cast<A>(unit_offset ? 1 : 0)};
    backward<T>(context, f, x.shape[0], x.shape[1], dweight.ptr<T>());
  });
}

}  // namespace

void register_rms_norm() {
  kernels::rms_norm_forward.set(DeviceType::cuda, rms_norm_forward);
  kernels::rms_norm_backward.set(DeviceType::cuda, rms_norm_backward);
}

}  // namespace sash::cuda
