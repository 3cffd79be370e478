#include "../../../ops/kernels/norm.h"

#include "norm_backward.cuh"

namespace sash::cuda {
namespace {

// The parameters' gradients of rows that are read twice are first summed over chunks of them.
constexpr int64_t kChunks = 256, kShortestChunk = 32;

/// Launches of one call's kernels. `f.weight` and so on have `rows` rows of n elements.
template <class T>
class BackwardCall {
  using A = compute_t<T>;
  static constexpr int kVector = 16 / sizeof(T);

 public:
  BackwardCall(const KernelContext& context, const NormGradient<T, true>& f, int64_t rows,
               int64_t n)
      : context_(context),
        f_(f),
        rows_(rows),
        n_(n),
        vectors_(rows_take_vectors<T>(n, {f.x, f.weight, f.g, f.dsum, f.dx, f.dbranch})),
        once_(vectors_ && RowChunks::take(n, kVector)),
        once_chunks_(rows, n, kVector, 3),
        chunk_(chunk_of(rows, n)),
        chunks_(ceil_div(rows, chunk_)) {}

  /// `partial` [chunks, 2, n]: the parameters' gradients of each chunk; null if not wanted.
  void run(A* partial) const {
    if (rows_ > 0 && n_ > 0) once_ ? once(partial) : twice(partial);
  }

  /// Rows of a chunk.
  static int64_t chunk_of(int64_t rows, int64_t n) {
    if (RowChunks::take(n, kVector)) return RowChunks(rows, n, kVector, 3).rows;
    return std::max(kShortestChunk, ceil_div(rows, kChunks));
  }

 private:
  void once(A* partial) const {
    launch_kernel(context_, chunks_, once_chunks_.threads, once_chunks_.shared,
                  norm_gradient_rows<kVector, T, true>, f_, partial, rows_, n_, chunk_);
  }

  /// Long rows, and rows that allow no vectors: x and g are read twice.
  void twice(A* partial) const {
    if (f_.dx) {
      over_rows<T>(context_, f_, rows_, n_, {f_.x, f_.weight, f_.g, f_.dsum, f_.dx, f_.dbranch});
    }
    if (!partial) return;
    with_vector_width<kVector>(vectors_, [&]<int V>(std::integral_constant<int, V>) {
      launch_kernel(context_, {ceil_div(n_, kWarp * V), chunks_}, kThreads, 0,
                    sum_chunks_of_rows<V, NormGradient<T, true>>, f_, partial, rows_, n_, chunk_);
    });
  }

  const KernelContext& context_;
  NormGradient<T, true> f_;
  int64_t rows_, n_;
  bool vectors_, once_;
  RowChunks once_chunks_;
  int64_t chunk_, chunks_;
};

void dropout_add_layer_norm_backward(KernelContext& context, View sum, View weight, View mean,
                                     View rstd, View g, View dsum,
                                     const kernels::BranchDropout& dropout, View dresidual,
                                     View dbranch, View sums) {
  dispatch_device_floating(sum.dtype, "layer_norm", [&]<class T>(TypeTag<T>) {
    using A = compute_t<T>;
    const NormGradient<T, true> f{
        sum.ptr<T>(),       weight.ptr<T>(),  mean.ptr<A>(),
        rstd.ptr<A>(),      g.ptr<T>(),       dsum.ptr<T>(),
        dresidual.ptr<T>(), dbranch.ptr<T>(), DropoutFactors<A>(dropout.p, dropout.state)};
    BackwardCall<T>(context, f, sum.shape[0], sum.shape[1]).run(sums.ptr<A>());
  });
}

void layer_norm_backward(KernelContext& context, View x, View weight, View mean, View rstd, View g,
                         View dx, View sums) {
  dropout_add_layer_norm_backward(context, x, weight, mean, rstd, g, {}, {}, dx, {}, sums);
}

void layer_norm_chunks(KernelContext&, View x, int64_t& chunks) {
  dispatch_any_floating(x.dtype, "layer_norm", [&]<class S>(TypeTag<S>) {
    chunks = ceil_div(x.shape[0], BackwardCall<device_t<S>>::chunk_of(x.shape[0], x.shape[1]));
  });
}

void add_layer_norm_chunks(KernelContext& context, View sums, View dweight, View dbias) {
  const int64_t chunks = sums.shape[0], n = sums.shape[2];
  if (n == 0) return;
  const DType dtype = dweight.data ? dweight.dtype : dbias.dtype;
  dispatch_device_floating(dtype, "layer_norm", [&]<class T>(TypeTag<T>) {
    launch_add_chunks(context, sums.ptr<const compute_t<T>>(), chunks, 2, n,
                      ColumnSums<T>{{dweight.ptr<T>(), dbias.ptr<T>()}});
  });
}

}  // namespace

void register_layer_norm_backward() {
  kernels::layer_norm_chunks.set(DeviceType::cuda, layer_norm_chunks);
  kernels::add_layer_norm_chunks.set(DeviceType::cuda, add_layer_norm_chunks);
  kernels::layer_norm_backward.set(DeviceType::cuda, layer_norm_backward);
  kernels::dropout_add_layer_norm_backward.set(DeviceType::cuda, dropout_add_layer_norm_backward);
}

}  // namespace sash::cuda
