#include "gemm.h"

#include <algorithm>

#include "../../../core/parallel.h"
#include "eigen_product.h"
#include "few_rows.h"
#include "micro_kernel.h"
#include "packed_product.h"

namespace sash::cpu {
namespace {

using Index = int64_t;

constexpr Index kSmallTask = Index{1} << 18;  // multiply-adds

template <class T>
using RowMajorMap = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
                               Eigen::OuterStride<>>;

// C = bias, 0 or beta C: the value to which the product is added.
template <class T>
void start(const Product<T>& p) {
  RowMajorMap<T> c(p.c.data, p.m, p.n, Eigen::OuterStride<>(p.c.row_stride));
  if (p.bias) {
    c.rowwise() = Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>>(p.bias, p.n);
  } else if (p.beta == T(0)) {
    c.setZero();
  } else if (p.beta != T(1)) {
    c *= p.beta;
  }
}

// The rows and columns from (i, j) on of one product.
template <class T>
Product<T> part(const Product<T>& product, Index i, Index j, Index rows, Index cols) {
  Product<T> tile = product;
  tile.m = std::min(rows, product.m - i);
  tile.n = std::min(cols, product.n - j);
  tile.a.data = product.a.at(i, 0);
  tile.b.data = product.b.at(0, j);
  tile.c.data = product.c.at(i, j);
  if (product.bias) tile.bias = product.bias + j;
  return tile;
}

template <class T>
Product<T> item(const Product<T>& product, const Batch& batch, Index index) {
  Product<T> p = product;
  p.a.data += batch.offset(index, batch.a);
  p.b.data += batch.offset(index, batch.b);
  p.c.data += batch.offset(index, batch.c);
  return p;
}

// The depth from k0 on; bias and beta belong to the first part.
template <class T>
Product<T> deep_part(const Product<T>& product, Index k0, Index depth) {
  Product<T> p = product;
  p.k = std::min(depth, product.k - k0);
  p.a.data = product.a.at(0, k0);
  p.b.data = product.b.at(k0, 0);
  if (k0 > 0) {
    p.beta = 1;
    p.bias = nullptr;
  }
  return p;
}

// Runs tasks of `work` multiply-adds each; small ones go together.
template <class Body>
void for_each_task(Index tasks, Index work, Body&& body) {
  parallel_for_each(tasks, kSmallTask / std::max<Index>(work, 1), [&](Index task) { body(task); });
}

template <class T>
void multiply_by_eigen(const KernelContext& context, const Product<T>& product,
                       const Batch& batch) {
  const Index count = numel(batch.shape);
  const Grid grid(eigen::kLimits, count, product.m, product.n, product.k);
  for_each_task(count * grid.tiles(), grid.rows * grid.cols * product.k, [&](Index task) {
    const Index i = task % grid.tiles() / grid.col_tiles * grid.rows;
    const Index j = task % grid.col_tiles * grid.cols;
    const Product<T> tile =
        part(item(product, batch, task / grid.tiles()), i, j, grid.rows, grid.cols);
    start(tile);
    if (tile.k > 0 && tile.alpha != T(0)) eigen::add_product(context, tile);
  });
}

// One row times a large matrix that is stored by rows: these are read once, in order. Chunks of
// them are summed apart.
template <class T>
bool is_row_by_rows(const Product<T>& p, const Batch& batch) {
  constexpr Index kLeast = Index{1} << 21;  // elements: more than caches hold
  return p.m == 1 && p.b.col_stride == 1 && p.n * p.k >= kLeast && numel(batch.shape) == 1;
}

template <class T>
void multiply_row(const KernelContext& context, const Product<T>& p) {
  constexpr Index kTogether = 8, kMostChunks = 16;
  const Index depth = even_piece(p.k, pieces(p.k, kMostChunks), kTogether);
  const Index chunks = pieces(p.k, depth);
  const Workspace partial(context, chunks * p.n * static_cast<Index>(sizeof(T)));
  for_each_task(chunks, depth * p.n, [&](Index chunk) {
    T* __restrict const to = partial.ptr<T>() + chunk * p.n;
    std::fill_n(to, p.n, T(0));
    const Index past = std::min((chunk + 1) * depth, p.k);
    Index k = chunk * depth;
    for (; k + kTogether <= past; k += kTogether) {
      T a[kTogether];
      for (Index i = 0; i < kTogether; ++i) a[i] = *p.a.at(0, k + i);
      const T* const b = p.b.at(k, 0);
      const Index step = p.b.row_stride;
      for (Index j = 0; j < p.n; ++j) {
        T sum = to[j];
#pragma GCC unroll 8
        for (Index i = 0; i < kTogether; ++i) sum += a[i] * b[i * step + j];
        to[j] = sum;
      }
    }
    for (; k < past; ++k) {
      const T a = *p.a.at(0, k);
      const T* const b = p.b.at(k, 0);
      for (Index j = 0; j < p.n; ++j) to[j] += a * b[j];
    }
  });
  start(p);
  for (Index chunk = 0; chunk < chunks; ++chunk) {
    const T* const from = partial.ptr<T>() + chunk * p.n;
    for (Index j = 0; j < p.n; ++j) p.c.data[j] += p.alpha * from[j];
  }
}

#if SASH_MICRO_KERNEL

// Panels that tiles share are packed at first, about this many elements and columns at a time.
constexpr Index kSharedPanels = Index{1} << 20, kSharedCols = 2048;
// An element is packed in the time of so many multiply-adds.
constexpr Index kPackingWork = 16;
constexpr Index kSmallProduct = 3 << 13;  // multiply-adds

template <class T>
void multiply_shared(const KernelContext& context, const Product<T>& p, Index rows, Index cols,
                     Index block) {
  using Packed = PackedProduct<T>;
  constexpr Index kCols = MicroKernel<T>::kCols, kPart = 8 * kCols;
  const Index width = round_up(p.n, kCols);
  const Workspace memory(context, p.k * width * static_cast<Index>(sizeof(T)));
  T* const packed = memory.ptr<T>();
  const Index parts = pieces(p.n, kPart), blocks = pieces(p.k, block);
  for_each_task(parts * blocks, block * kPart * kPackingWork, [&](Index task) {
    const Index k0 = task / parts * block, j = task % parts * kPart;
    const Index depth = std::min(block, p.k - k0);
    const Matrix<const T> from{p.b.at(0, j), p.b.row_stride, p.b.col_stride};
    Packed::pack_panels(from, std::min(kPart, p.n - j), k0, depth, packed + k0 * width + j * depth);
  });
  const Index col_tiles = pieces(p.n, cols);
  for_each_task(pieces(p.m, rows) * col_tiles, rows * cols * p.k, [&](Index task) {
    const Index i = task / col_tiles * rows, j = task % col_tiles * cols;
    Packed::run(context, part(p, i, j, rows, cols), block, i, p.m,
                [&](Index k0, Index depth) { return packed + k0 * width + j * depth; });
  });
}

template <class T>
void add_chunks(const Product<T>& p, const T* partial, Index chunks) {
  using Row = Eigen::Array<T, Eigen::Dynamic, 1>;
  for_each_task(p.m, p.n * chunks * 8, [&](Index i) {
    Eigen::Map<Row> to(p.c.at(i, 0), p.n);
    for (Index chunk = 0; chunk < chunks; ++chunk) {
      to += Eigen::Map<const Row>(partial + (chunk * p.m + i) * p.n, p.n);
    }
  });
}

template <class T>
void multiply_few_rows(const Product<T>& product, const Batch& batch) {
  const Index count = numel(batch.shape);
  constexpr Index kCols = 64;
  const Index tiles = pieces(product.n, kCols);
  // They wait for memory.
  for_each_task(count * tiles, kCols * product.k * kPackingWork, [&](Index task) {
    const Product<T> p = item(product, batch, task / tiles);
    const Product<T> tile = part(p, 0, task % tiles * kCols, p.m, kCols);
    FewRows<T>::run(tile, tile.b.data);
  });
}

template <class T>
void multiply(const KernelContext& context, const Product<T>& product, const Batch& batch) {
  using Kernel = MicroKernel<T>;
  if (FewRows<T>::fits(product)) return multiply_few_rows(product, batch);
  if (product.m == 1) return multiply_by_eigen(context, product, batch);
  // Packing would cost more than it saves, or most of a panel would be padding.
  const Index size_of_c = product.m * product.n;
  const bool small =
      size_of_c <= Kernel::kPacket * Kernel::kPacket || size_of_c * product.k <= kSmallProduct;
  if (small || product.n < Kernel::kPacket) return multiply_by_eigen(context, product, batch);
  using Packed = PackedProduct<T>;
  const Index count = numel(batch.shape);
  const DeepGrid grid(Kernel::kRows, Kernel::kCols, count, product.m, product.n, product.k);
  const Index block = Packed::block_depth(grid.depth);
  if (count == 1 && grid.chunks == 1 && grid.row_tiles > 2) {
    const Index cols = std::min(product.n, even_piece(product.n, kSharedCols, grid.cols));
    const Index depth = std::max<Index>(1, kSharedPanels / (cols * block)) * block;
    for (Index j = 0; j < product.n; j += cols) {
      for (Index k0 = 0; k0 < product.k; k0 += depth) {
        Product<T> p = part(item(product, batch, 0), 0, j, product.m, cols);
        multiply_shared(context, deep_part(p, k0, depth), grid.rows, grid.cols, block);
      }
    }
    return;
  }
  const Index size = product.m * product.n, tiles = grid.row_tiles * grid.col_tiles;
  const Workspace partial(context, (grid.chunks - 1) * size * static_cast<Index>(sizeof(T)));
  const Index work = grid.rows * grid.cols * grid.depth;
  for_each_task(count * grid.tiles(), work, [&](Index task) {
    const Index chunk = task / tiles % grid.chunks;
    const Index i = task % tiles / grid.col_tiles * grid.rows;
    const Index j = task % grid.col_tiles * grid.cols;
    Product<T> p = item(product, batch, task / grid.tiles());
    if (chunk > 0) p.c = {partial.ptr<T>() + (chunk - 1) * size, p.n, 1};
    p = deep_part(part(p, i, j, grid.rows, grid.cols), chunk * grid.depth, grid.depth);
    if (chunk > 0) p.beta = 0;
    const Index width = Packed::panels_in_place(p) ? 0 : round_up(p.n, Kernel::kCols);
    const Workspace packed(context, block * width * static_cast<Index>(sizeof(T)));
    Packed::run(context, p, block, i, product.m, [&](Index k0, Index depth) {
      if (width > 0) Packed::pack_panels(p.b, p.n, k0, depth, packed.ptr<T>());
      return packed.ptr<const T>();
    });
  });
  if (grid.chunks == 1) return;
  add_chunks(item(product, batch, 0), partial.ptr<const T>(), grid.chunks - 1);
}

#else

template <class T>
void multiply(const KernelContext& context, const Product<T>& product, const Batch& batch) {
  multiply_by_eigen(context, product, batch);
}

#endif

// An axis of extent 1 may have any stride. It gets the unit stride that kernels look for.
template <class T>
void set_unit_stride(Matrix<T>& x, Index cols) {
  if (x.row_stride == 1 || x.col_stride == 1) return;
  (cols <= 1 ? x.col_stride : x.row_stride) = 1;
}

}  // namespace

template <class T>
void gemm(const KernelContext& context, const Product<T>& given, const Batch& batch) {
  Product<T> product = given;
  set_unit_stride(product.a, product.k);
  set_unit_stride(product.b, product.n);
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
  const bool empty = product.k == 0 || product.alpha == T(0);
  if (empty || product.n == 1) return multiply_by_eigen(context, product, batch);
  if (is_row_by_rows(product, batch)) return multiply_row(context, item(product, batch, 0));
  multiply(context, product, batch);
}

template void gemm(const KernelContext&, const Product<float>&, const Batch&);
template void gemm(const KernelContext&, const Product<double>&, const Batch&);

}  // namespace sash::cpu
