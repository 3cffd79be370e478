#include "gemm.h"

#include <Eigen/Core>

#include <algorithm>

#include "../../../core/parallel.h"

namespace sash::cpu {
namespace {

using Eigen::ColMajor;
using Eigen::Dynamic;
using Eigen::RowMajor;
using Index = int64_t;

// Tile sizes are multiples of these, so that Eigen's register blocks are full. Eigen computes the
// transpose of a row-major result: it takes our columns in panels of up to 48, our rows in fours.
constexpr Index kRowStep = 8;
constexpr Index kColStep = 48;

// The largest tile, and the size of the packed blocks: about 1.2 MB, for the L2 cache. They are
// constants, so that results do not depend on the machine's cache sizes.
constexpr Index kMaxRows = 512;
constexpr Index kMaxCols = 768;
constexpr Index kBlockRows = 256;
template <class T>
constexpr Index kBlockDepth = 1536 / static_cast<Index>(sizeof(T));

// Tiles larger than kSmallTile are split until there are kWantedTiles of them, for load balance.
constexpr Index kWantedTiles = 8;
constexpr Index kSmallTile = Index{1} << 23;  // multiply-adds
constexpr Index kSmallTask = Index{1} << 18;

Index round_up(Index value, Index step) { return (value + step - 1) / step * step; }
Index pieces(Index extent, Index piece) { return (extent + piece - 1) / piece; }

// The size of equal pieces of `extent`, each at most `most`, rounded up to a multiple of `step`.
Index even_piece(Index extent, Index most, Index step) {
  return round_up(pieces(extent, pieces(extent, most)), step);
}

struct Grid {
  Index rows, cols;            // of a tile
  Index row_tiles, col_tiles;  // of a product

  Grid(Index batch, Index m, Index n, Index k)
      : rows(even_piece(m, kMaxRows, kRowStep)), cols(even_piece(n, kMaxCols, kColStep)) {
    count(m, n);
    while (batch * tiles() < kWantedTiles && rows * cols * k > kSmallTile) {
      const bool even = cols % (2 * kColStep) == 0;
      if (rows >= cols || (!even && rows > kColStep)) {
        rows = even_piece(rows, pieces(rows, 2), kRowStep);
      } else {
        cols = even_piece(cols, pieces(cols, 2), kColStep);
      }
      const Index before = tiles();
      count(m, n);
      if (tiles() == before) break;
    }
  }
  Index tiles() const { return row_tiles * col_tiles; }

 private:
  void count(Index m, Index n) {
    row_tiles = pieces(m, rows);
    col_tiles = pieces(n, cols);
  }
};

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

template <class T>
using RowMajorMap =
    Eigen::Map<Eigen::Array<T, Dynamic, Dynamic, RowMajor>, 0, Eigen::OuterStride<>>;

// C = bias, 0 or beta C: the value to which the product is added.
template <class T>
void start(const Product<T>& p) {
  RowMajorMap<T> c(p.c.data, p.m, p.n, Eigen::OuterStride<>(p.c.row_stride));
  if (p.bias) {
    c.rowwise() = Eigen::Map<const Eigen::Array<T, 1, Dynamic>>(p.bias, p.n);
  } else if (p.beta == T(0)) {
    c.setZero();
  } else if (p.beta != T(1)) {
    c *= p.beta;
  }
}

// C += alpha A B for a row-major C.
template <class T, int kOrderA, int kOrderB>
void add_product(const KernelContext& context, const Product<T>& p, Index lda, Index ldb) {
  constexpr int kLeft = kOrderB == RowMajor ? ColMajor : RowMajor;
  constexpr int kRight = kOrderA == RowMajor ? ColMajor : RowMajor;
  const Index depth = even_piece(p.k, kBlockDepth<T>, kRowStep);
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

template <class T>
void run_tile(const KernelContext& context, const Product<T>& p) {
  start(p);
  if (p.k == 0 || p.alpha == T(0)) return;
  if (p.m == 1 || p.n == 1) return add_vector_product(p);
  const bool a_rows = p.a.col_stride == 1 || p.k == 1;
  const bool b_rows = p.b.col_stride == 1;
  const Index lda = a_rows ? p.a.row_stride : p.a.col_stride;
  const Index ldb = b_rows ? p.b.row_stride : p.b.col_stride;
  if (a_rows && b_rows) return add_product<T, RowMajor, RowMajor>(context, p, lda, ldb);
  if (a_rows) return add_product<T, RowMajor, ColMajor>(context, p, lda, ldb);
  if (b_rows) return add_product<T, ColMajor, RowMajor>(context, p, lda, ldb);
  add_product<T, ColMajor, ColMajor>(context, p, lda, ldb);
}

Index offset_of(Index index, const Shape& shape, const Strides& strides) {
  Index offset = 0;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    offset += index % shape[axis] * strides[axis];
    index /= shape[axis];
  }
  return offset;
}

}  // namespace

template <class T>
void gemm(const KernelContext& context, const Product<T>& product, const Batch& batch) {
  const Index count = numel(batch.shape);
  if (count == 0 || product.m == 0 || product.n == 0) return;
  if (product.c.col_stride != 1 && product.n > 1) {
    Product<T> swapped = product;
    std::swap(swapped.m, swapped.n);
    swapped.a = product.b.transposed();
    swapped.b = product.a.transposed();
    swapped.c = product.c.transposed();
    return gemm(context, swapped, {batch.shape, batch.b, batch.a, batch.c});
  }
  const Grid grid(count, product.m, product.n, product.k);
  const Index work = std::max<Index>(1, grid.rows * grid.cols * product.k);
  const Index per_task = std::max<Index>(1, kSmallTask / work);
  parallel_for(count * grid.tiles(), per_task, [&](Index begin, Index end) {
    for (Index task = begin; task < end; ++task) {
      const Index item = task / grid.tiles();
      const Index i = task % grid.tiles() / grid.col_tiles * grid.rows;
      const Index j = task % grid.col_tiles * grid.cols;
      Product<T> tile = product;
      tile.m = std::min(grid.rows, product.m - i);
      tile.n = std::min(grid.cols, product.n - j);
      tile.a.data = product.a.at(i, 0) + offset_of(item, batch.shape, batch.a);
      tile.b.data = product.b.at(0, j) + offset_of(item, batch.shape, batch.b);
      tile.c.data = product.c.at(i, j) + offset_of(item, batch.shape, batch.c);
      if (product.bias) tile.bias = product.bias + j;
      run_tile(context, tile);
    }
  });
}

template void gemm(const KernelContext&, const Product<float>&, const Batch&);
template void gemm(const KernelContext&, const Product<double>&, const Batch&);

}  // namespace sash::cpu
