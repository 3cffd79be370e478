#include "../../../ops/kernels/linalg.h"

#include "../../../tensor/kernels/memory.h"
#include "../elementwise/compute.cuh"
#include "operand.h"

namespace sash::cuda {
namespace {

/// The batch axes of a product, with strides of a, b and c; adjacent axes are merged if possible.
struct Batch {
  int rank = 0;
  int64_t extent[kMaxRank] = {};
  int64_t stride[3][kMaxRank] = {};

  Batch(View a, View b, View c) {
    for (int axis = 0; axis < c.rank() - 2; ++axis) {
      const int64_t size = c.shape[axis];
      if (size == 1) continue;
      const int64_t step[3] = {a.strides[axis], b.strides[axis], c.strides[axis]};
      bool merge = rank > 0;
      for (int k = 0; k < 3; ++k) merge = merge && stride[k][rank - 1] == step[k] * size;
      if (!merge) ++rank;
      extent[rank - 1] = merge ? extent[rank - 1] * size : size;
      for (int k = 0; k < 3; ++k) stride[k][rank - 1] = step[k];
    }
  }

  /// Removes the longest axis, which becomes cuBLAS's batch axis. Returns its extent and, in
  /// `step`, its strides.
  int64_t take_longest(int64_t (&step)[3]) {
    if (rank == 0) return 1;
    const auto at = static_cast<int>(std::max_element(extent, extent + rank) - extent);
    const int64_t longest = extent[at];
    --rank;
    for (int k = 0; k < 3; ++k) {
      step[k] = stride[k][at];
      std::copy(stride[k] + at + 1, stride[k] + rank + 1, stride[k] + at);
    }
    std::copy(extent + at + 1, extent + rank + 1, extent + at);
    return longest;
  }

  int64_t count() const {
    int64_t n = 1;
    for (int axis = 0; axis < rank; ++axis) n *= extent[axis];
    return n;
  }
  int64_t offset(int64_t flat, int k) const {
    int64_t at = 0;
    for (int axis = rank - 1; axis >= 0; --axis) {
      at += flat % extent[axis] * stride[k][axis];
      flat /= extent[axis];
    }
    return at;
  }
};

void multiply(const KernelContext& context, View a, View b, View c, double alpha, double beta) {
  Product product{.dtype = a.dtype,
                  .m = c.shape[c.rank() - 2],
                  .n = c.shape[c.rank() - 1],
                  .k = a.shape[a.rank() - 1],
                  .a = *as_matrix(a),
                  .b = *as_matrix(b),
                  .c = *as_matrix(c),
                  .alpha = alpha,
                  .beta = beta,
                  .wide = c.dtype == DType::float32};
  Batch batch(a, b, c);
  int64_t step[3] = {};
  product.batch = batch.take_longest(step);
  const TensorView* views[3] = {&a, &b, &c};
  Matrix* matrices[3] = {&product.a, &product.b, &product.c};
  for (int k = 0; k < 3; ++k) {
    matrices[k]->batch_stride = step[k];
    matrices[k]->alignment = alignment(*views[k]);
  }
  for (int64_t i = 0; i < batch.count(); ++i) {
    for (int k = 0; k < 3; ++k) {
      matrices[k]->data = views[k]->ptr<char>() + batch.offset(i, k) * size_of(views[k]->dtype);
    }
    gemm(context, product);
  }
}

/// c = a b of int64, modulo 2^64: a thread for each element of c.
__global__ void __launch_bounds__(kThreads)
    integer_product_kernel(const __grid_constant__ Walk<3> walk, int64_t k, int64_t a_step,
                           int64_t b_step, const uint64_t* a, const uint64_t* b, uint64_t* c) {
  const int64_t flat = thread_index();
  if (flat >= walk.count) return;
  int64_t at[3];
  walk.find(flat, 1, at);
  uint64_t sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += a[at[1] + i * a_step] * b[at[2] + i * b_step];
  c[at[0]] = sum;
}

void integer_product(const KernelContext& context, View a, View b, View c) {
  const int row = c.rank() - 2, col = c.rank() - 1;
  TensorView rows = a, columns = b;  // broadcast to c
  rows.shape[col] = columns.shape[row] = 1;
  const Walk<3> walk = make_walk<3>({&c, &rows, &columns}, Order::memory);
  launch_kernel(context, blocks_for(walk.count), kThreads, 0, integer_product_kernel, walk,
                a.shape[col], a.strides[col], b.strides[row], a.ptr<const uint64_t>(),
                b.ptr<const uint64_t>(), c.ptr<uint64_t>());
}

template <class T>
struct Scale {
  T factor;
  __device__ T operator()(T x) const { return factor * x; }
};

/// c = beta c: the product if k = 0.
void scale(KernelContext& context, View c, double beta) {
  if (beta == 0) return kernels::fill(context, c, 0);
  dispatch_any_floating(c.dtype, "matmul", [&]<class T>(TypeTag<T>) {
    using C = operand_t<T>;
    compute<T, T>(context, Scale<C>{static_cast<C>(beta)}, c, c);
  });
}

void matmul(KernelContext& context, View a, View b, View c, double alpha, double beta) {
  if (c.numel() == 0) return;
  if (c.dtype == DType::int64) return integer_product(context, a, b, c);
  if (!is_floating(c.dtype)) throw DTypeError("matmul", "a floating dtype", name(c.dtype));
  if (a.shape[a.rank() - 1] == 0) return scale(context, c, beta);
  const Operand left(context, a), right(context, b);
  const std::optional<Matrix> out = as_matrix(c);
  if (out->transposed) {
    // c' = b' a': `gemm` needs C that is not transposed.
    multiply(context, transposed(right.view()), transposed(left.view()), transposed(c), alpha,
             beta);
  } else {
    multiply(context, left.view(), right.view(), c, alpha, beta);
  }
}

}  // namespace

void register_matmul() { kernels::matmul.set(DeviceType::cuda, matmul); }

}  // namespace sash::cuda
