#include "../../../ops/kernels/sparse.h"

#include <algorithm>
#include <optional>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../linalg/gemm.h"
#include "../shape/in_float.h"

/// Products with block-sparse matrices: a gemm per block. Each task owns a tile of the result, so
/// the sums do not depend on the number of threads. Halves are computed in float32.
namespace sash::cpu {
namespace {

using kernels::BlockLines;
using kernels::BlockPatternView;

// Rows of a task's tile: a slice of `a` [kRows, block] stays in the L2 cache.
constexpr int64_t kRows = 256;

template <class T>
Matrix<T> matrix(View x) {
  return {x.ptr<T>(), x.shape[1], 1};
}

/// The tile of y of block line `line`, rows [row, row + count): the sum over the line's blocks.
template <class T>
void add_line(const KernelContext& context, const BlockLines& lines, int64_t line, int64_t row,
              int64_t count, int64_t block, Matrix<const T> a, const T* data, const T* bias,
              bool transposed, Matrix<T> y) {
  Product<T> product{.m = count,
                     .n = block,
                     .k = block,
                     .a = a,
                     .b = {data, block, 1},
                     .c = {y.at(row, line * block), y.row_stride, 1}};
  if (bias) product.bias = bias + line * block;
  const int32_t begin = lines.starts[line], end = lines.starts[line + 1];
  if (begin == end) {
    product.k = 0;
    gemm(context, product);
  }
  for (int32_t e = begin; e < end; ++e) {
    product.a = {a.at(row, lines.other[e] * block), a.row_stride, 1};
    product.b = {data + lines.positions[e] * block * block, block, 1};
    if (transposed) product.b = product.b.transposed();
    gemm(context, product);
    product.bias = nullptr;
    product.beta = 1;
  }
}

void block_sparse_matmul(KernelContext& context, View a, View data, const TensorView* bias,
                         const BlockPatternView& pattern, bool transposed, View y) {
  const FloatOperand left(context, a), blocks(context, data);
  FloatResult out(context, y);
  std::optional<FloatOperand> row;
  if (bias) row.emplace(context, *bias);
  dispatch_floating(out.view().dtype, "block_sparse_matmul", [&]<class T>(TypeTag<T>) {
    const BlockLines& lines = transposed ? pattern.rows : pattern.columns;
    const int64_t chunks = (y.shape[0] + kRows - 1) / kRows;
    parallel_for_each(chunks * lines.count, 1, [&](int64_t task) {
      const int64_t first = task / lines.count * kRows;
      add_line<T>(context, lines, lines.order[task % lines.count], first,
                  std::min(kRows, y.shape[0] - first), pattern.block, matrix<const T>(left.view()),
                  blocks.view().ptr<const T>(), row ? row->view().ptr<const T>() : nullptr,
                  transposed, matrix<T>(out.view()));
    });
  });
  out.write();
}

void sampled_matmul(KernelContext& context, View a, View b, const BlockPatternView& pattern,
                    View data) {
  dispatch_floating(data.dtype, "sampled_matmul", [&]<class T>(TypeTag<T>) {
    const int64_t block = pattern.block, area = block * block;
    const auto of_a = matrix<const T>(a), of_b = matrix<const T>(b);
    parallel_for_each(pattern.group_count, 1, [&](int64_t g) {
      const kernels::BlockGroup& group = pattern.groups[g];
      for (int32_t e = group.first; e < group.first + group.count; ++e) {
        gemm<T>(
            context,
            {.m = block,
             .n = block,
             .k = a.shape[0],
             .a = Matrix<const T>{of_a.at(0, group.row * block), of_a.row_stride, 1}.transposed(),
             .b = {of_b.at(0, pattern.rows.other[e] * block), of_b.row_stride, 1},
             .c = {data.ptr<T>() + pattern.rows.positions[e] * area, block, 1}});
      }
    });
  });
}

}  // namespace

void register_block_sparse() {
  kernels::block_sparse_matmul.set(DeviceType::cpu, block_sparse_matmul);
  kernels::sampled_matmul.set(DeviceType::cpu, in_float<sampled_matmul, 3>);
}

}  // namespace sash::cpu
