#include <algorithm>
#include <cmath>
#include <limits>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../../../ops/kernels/linalg.h"
#include "../shape/in_float.h"
#include "gemm.h"
#include "operand.h"

/// Windowed products by blocks of rows: each block is a dense product of its rows with the keys
/// that any of them sees, which a band is copied out of, or into.
namespace sash::cpu {
namespace {

using kernels::WindowParams;

constexpr int64_t kFewestRows = 16, kMostRows = 128;

struct Range {
  int64_t first, past;

  int64_t count() const { return std::max<int64_t>(past - first, 0); }
};

/// The shape of a call [B, H, M, .] with its window.
class Band {
 public:
  Band(View rows, const WindowParams& window)
      : heads_(rows.shape[1]),
        rows_(rows.shape[2]),
        window_(window),
        // Half as many rows as slots: a block then computes about 1.5 products for each slot.
        block_(std::clamp((window.slots() + 15) / 16 * 8, kFewestRows, kMostRows)) {}

  int64_t slots() const { return window_.slots(); }
  int64_t block() const { return block_; }
  /// Keys below this are visible in batch b.
  int64_t keys(int64_t b) const {
    if (!window_.lengths) return rows_;
    return std::clamp<int64_t>(window_.lengths->ptr<const int32_t>()[b], 0, rows_);
  }
  /// The keys that some row of [first, past) sees, and those rows that see some key of it.
  Range seen_by(Range rows, int64_t keys) const {
    return {std::max<int64_t>(rows.first - window_.left, 0),
            std::min(keys, rows.past + window_.right)};
  }
  Range seeing(Range keys) const {
    return {std::max<int64_t>(keys.first - window_.right, 0),
            std::min(rows_, keys.past + window_.left)};
  }
  /// The key of slot 0 of row i, which may be below 0.
  int64_t first_key(int64_t i) const { return i - window_.left; }

  /// `body(b, h, rows)` for each block of rows of each head, in parallel.
  template <class Body>
  void for_each_block(int64_t batches, Body&& body) const {
    const int64_t blocks = (rows_ + block_ - 1) / block_;
    parallel_for_each(batches * heads_ * blocks, 1, [&](int64_t task) {
      const int64_t head = task / blocks, first = task % blocks * block_;
      body(head / heads_, head % heads_, Range{first, std::min(rows_, first + block_)});
    });
  }

 private:
  int64_t heads_, rows_;
  const WindowParams& window_;
  int64_t block_;
};

/// The matrix of rows [first, ...) of head (b, h).
template <class T>
Matrix<const T> rows_of(const MatrixOperand<T>& x, int64_t b, int64_t h, int64_t first) {
  const Matrix<const T> all = x.matrix();
  return {all.data + b * x.strides()[0] + h * x.strides()[1] + first * all.row_stride,
          all.row_stride, all.col_stride};
}

/// The part of row i's slots whose keys are in `keys`: their range, and where they begin in a row
/// that starts with keys.first.
struct Overlap {
  int64_t slot, key, count;

  Overlap(const Band& band, int64_t i, Range keys) {
    const int64_t first = band.first_key(i);
    const Range both{std::max(first, keys.first), std::min(first + band.slots(), keys.past)};
    slot = both.count() ? both.first - first : 0;
    key = both.count() ? both.first - keys.first : 0;
    count = both.count();
  }
};

template <class T>
void scores(KernelContext& context, View q, View k, const WindowParams& window, T fill, View a) {
  const MatrixOperand<T> queries(context, q), keys(context, k);
  const Band band(q, window);
  const int64_t heads = q.shape[1], m = q.shape[2], n = q.shape[3], slots = band.slots();
  band.for_each_block(q.shape[0], [&](int64_t b, int64_t h, Range rows) {
    const Range seen = band.seen_by(rows, band.keys(b));
    const int64_t width = seen.count();
    const Workspace scratch(context, rows.count() * width * static_cast<int64_t>(sizeof(T)));
    T* const products = scratch.ptr<T>();
    if (width > 0) {
      gemm<T>(context, {.m = rows.count(),
                        .n = width,
                        .k = n,
                        .a = rows_of(queries, b, h, rows.first),
                        .b = rows_of(keys, b, h, seen.first).transposed(),
                        .c = {products, width, 1}});
    }
    T* to = a.ptr<T>() + ((b * heads + h) * m + rows.first) * slots;
    for (int64_t i = rows.first; i < rows.past; ++i, to += slots) {
      const Overlap part(band, i, seen);
      const T* const from = products + (i - rows.first) * width + part.key;
      std::fill_n(to, part.slot, fill);
      std::copy_n(from, part.count, to + part.slot);
      std::fill(to + part.slot + part.count, to + slots, fill);
    }
  });
}

/// Rows [first, past) of a band as a matrix over `keys`, 0 where a slot is hidden.
template <class T>
void unfold(const Band& band, const T* a, Range rows, Range keys, T* matrix) {
  const int64_t width = keys.count();
  std::fill_n(matrix, rows.count() * width, T(0));
  for (int64_t i = rows.first; i < rows.past; ++i) {
    const Overlap part(band, i, keys);
    std::copy_n(a + i * band.slots() + part.slot, part.count,
                matrix + (i - rows.first) * width + part.key);
  }
}

template <class T>
bool all_finite(const T* x, int64_t count) {
  bool all = true;
  for (int64_t i = 0; i < count; ++i) all &= std::abs(x[i]) <= std::numeric_limits<T>::max();
  return all;
}

/// o = weights v, where elements of v that are infinite or NaN reach only those results i that see
/// their row k of v: visible(i, k). A weight of 0 outside the window would make them NaN.
template <class T, class Visible>
void sums_of_not_finite(KernelContext& context, Product<T> product, const Visible& visible) {
  const int64_t n = product.n;
  const Workspace scratch(context, product.k * n * static_cast<int64_t>(sizeof(T)));
  T* const finite = scratch.ptr<T>();
  const Matrix<const T> v = product.b;
  for (int64_t i = 0; i < product.k * n; ++i) {
    const T x = *v.at(i / n, i % n);
    finite[i] = std::isfinite(x) ? x : T(0);
  }
  product.b = {finite, n, 1};
  gemm<T>(context, product);
  for (int64_t k = 0; k < product.k; ++k) {
    for (int64_t c = 0; c < n; ++c) {
      const T x = *v.at(k, c);
      if (std::isfinite(x)) continue;
      for (int64_t i = 0; i < product.m; ++i) {
        if (visible(i, k)) *product.c.at(i, c) += *product.a.at(i, k) * x;
      }
    }
  }
}

template <class T>
void sums(KernelContext& context, View a, View v, const WindowParams& window, bool transposed,
          View o) {
  const MatrixOperand<T> values(context, v);
  const Band band(v, window);
  const int64_t heads = v.shape[1], m = v.shape[2], n = v.shape[3];
  band.for_each_block(v.shape[0], [&](int64_t b, int64_t h, Range block) {
    // The block's rows of o are keys if the band is transposed.
    const int64_t limit = band.keys(b);
    const Range keys =
        transposed ? Range{block.first, std::min(block.past, limit)} : band.seen_by(block, limit);
    const Range rows = transposed ? band.seeing(keys) : block;
    const int64_t width = keys.count(), depth = transposed ? rows.count() : width;
    T* const to = o.ptr<T>() + ((b * heads + h) * m + block.first) * n;
    if (width == 0 || rows.count() == 0) return void(std::fill_n(to, block.count() * n, T(0)));
    const Workspace scratch(context, rows.count() * width * static_cast<int64_t>(sizeof(T)));
    T* const matrix = scratch.ptr<T>();
    unfold(band, a.ptr<const T>() + (b * heads + h) * m * band.slots(), rows, keys, matrix);
    const Matrix<const T> weights{matrix, width, 1};
    const int64_t made = transposed ? width : block.count();
    const int64_t first_v = transposed ? rows.first : keys.first;
    const Product<T> product{.m = made,
                             .n = n,
                             .k = depth,
                             .a = transposed ? weights.transposed() : weights,
                             .b = rows_of(values, b, h, first_v),
                             .c = {to, n, 1}};
    gemm<T>(context, product);
    if (!all_finite(to, made * n)) {
      sums_of_not_finite(context, product, [&](int64_t i, int64_t k) {
        const int64_t after = first_v + k - block.first - i;  // from the result's row to that of v
        const int64_t slot = (transposed ? -after : after) + window.left;
        return slot >= 0 && slot < band.slots();
      });
    }
    std::fill_n(to + made * n, (block.count() - made) * n, T(0));
  });
}

void window_matmul(KernelContext& context, View q, View k, const WindowParams& window, double fill,
                   View a) {
  if (a.numel() == 0) return;
  dispatch_floating(a.dtype, "window_matmul", [&]<class T>(TypeTag<T>) {
    scores<T>(context, q, k, window, static_cast<T>(fill), a);
  });
}

void unwindow_matmul(KernelContext& context, View a, View v, const WindowParams& window,
                     bool transposed, View o) {
  if (o.numel() == 0) return;
  dispatch_floating(o.dtype, "unwindow_matmul",
                    [&]<class T>(TypeTag<T>) { sums<T>(context, a, v, window, transposed, o); });
}

}  // namespace

void register_window_matmul() {
  kernels::window_matmul.set(DeviceType::cpu, in_float<window_matmul, 4>);
  kernels::unwindow_matmul.set(DeviceType::cpu, in_float<unwindow_matmul, 4>);
}

}  // namespace sash::cpu
