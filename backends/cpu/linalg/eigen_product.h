#pragma once

#include <Eigen/Core>

#include "gemm.h"
#include "tiles.h"

/// Products with Eigen, for processors without a MicroKernel and for vectors.
namespace sash::cpu::eigen {

using Eigen::ColMajor;
using Eigen::Dynamic;
using Eigen::RowMajor;
using Index = int64_t;

// The largest tile, and the size of the packed blocks: about 1.2 MB, for the L2 cache. They are
// constants, so that results do not depend on the machine's cache sizes. Eigen computes the
// transpose of a row-major result: it takes our columns in panels of up to 48, our rows in fours.
inline constexpr Index kMaxCols = 768, kBlockRows = 256;
template <class T>
constexpr Index kBlockDepth = 1536 / static_cast<Index>(sizeof(T));
inline constexpr Grid::Limits kLimits{.rows = 512,
                                      .cols = kMaxCols,
                                      .row_step = 8,
                                      .col_step = 48,
                                      .wanted = 8,
                                      .least_work = Index{1} << 23};

template <class T>
struct Blocking : Eigen::internal::level3_blocking<T, T> {
  Blocking(Index left, Index right, Index depth, T* left_block, T* right_block) {
    this->m_mc = left;
    this->m_nc = right;
    this->m_kc = depth;
    this->m_blockA = left_block;
    this->m_blockB = right_block;
  }
};

template <class T, int kOrderA, int kOrderB>
void add_ordered(const KernelContext& context, const Product<T>& p, Index lda, Index ldb) {
  constexpr int kLeft = kOrderB == RowMajor ? ColMajor : RowMajor;
  constexpr int kRight = kOrderA == RowMajor ? ColMajor : RowMajor;
  const Index depth = even_piece(p.k, kBlockDepth<T>, Index{8});
  const Index left = std::min(p.n, kMaxCols), right = std::min(p.m, kBlockRows);
  const Index left_size = round_up(left * depth, 16);
  const Workspace packed(context, (left_size + right * depth) * static_cast<Index>(sizeof(T)));
  Blocking<T> blocking(left, right, depth, packed.ptr<T>(), packed.ptr<T>() + left_size);
  Eigen::internal::general_matrix_matrix_product<Index, T, kLeft, false, T, kRight, false, ColMajor,
                                                 1>::run(p.n, p.m, p.k, p.b.data, ldb, p.a.data,
                                                         lda, p.c.data, 1, p.c.row_stride, p.alpha,
                                                         blocking);
}

// y += alpha M x, where M [rows, cols] is row-major or column-major.
template <class T, int kOrder>
void add_matrix_vector(Index rows, Index cols, const T* m, Index ld, const T* x, Index x_step, T* y,
                       Index y_step, T alpha) {
  using Vector = Eigen::Matrix<T, Dynamic, 1>;
  using Step = Eigen::InnerStride<>;
  const Eigen::Map<const Eigen::Matrix<T, Dynamic, Dynamic, kOrder>, 0, Eigen::OuterStride<>>
      matrix(m, rows, cols, Eigen::OuterStride<>(ld));
  const Eigen::Map<const Vector, 0, Step> from(x, cols, Step(x_step));
  Eigen::Map<Vector, 0, Step> to(y, rows, Step(y_step));
  to.noalias() += alpha * (matrix * from);
}

template <class T>
void add_vector_product(const Product<T>& p) {
  if (p.n == 1) {
    if (p.a.col_stride == 1 || p.k == 1) {
      add_matrix_vector<T, RowMajor>(p.m, p.k, p.a.data, p.a.row_stride, p.b.data, p.b.row_stride,
                                     p.c.data, p.c.row_stride, p.alpha);
    } else {
      add_matrix_vector<T, ColMajor>(p.m, p.k, p.a.data, p.a.col_stride, p.b.data, p.b.row_stride,
                                     p.c.data, p.c.row_stride, p.alpha);
    }
  } else if (p.b.row_stride == 1 || p.k == 1) {
    add_matrix_vector<T, RowMajor>(p.n, p.k, p.b.data, p.b.col_stride, p.a.data, p.a.col_stride,
                                   p.c.data, 1, p.alpha);
  } else {
    add_matrix_vector<T, ColMajor>(p.n, p.k, p.b.data, p.b.row_stride, p.a.data, p.a.col_stride,
                                   p.c.data, 1, p.alpha);
  }
}

// C += alpha A B for a row-major C.
template <class T>
void add_product(const KernelContext& context, const Product<T>& p) {
  if (p.m == 1 || p.n == 1) return add_vector_product(p);
  const bool a_rows = p.a.col_stride == 1 || p.k == 1;
  const bool b_rows = p.b.col_stride == 1;
  const Index lda = a_rows ? p.a.row_stride : p.a.col_stride;
  const Index ldb = b_rows ? p.b.row_stride : p.b.col_stride;
  if (a_rows && b_rows) return add_ordered<T, RowMajor, RowMajor>(context, p, lda, ldb);
  if (a_rows) return add_ordered<T, RowMajor, ColMajor>(context, p, lda, ldb);
  if (b_rows) return add_ordered<T, ColMajor, RowMajor>(context, p, lda, ldb);
  add_ordered<T, ColMajor, ColMajor>(context, p, lda, ldb);
}

}  // namespace sash::cpu::eigen
