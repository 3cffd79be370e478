#include "../../../ops/kernels/sparse_products.h"

#include <algorithm>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../shape/in_float.h"
#include "dot.h"

namespace sash::cpu {
namespace {

// Lists [G, N, K] of entries for N rows of D elements each, for G heads that read tables of S rows.
struct Lists {
  Lists(View list, View table) : index(list.ptr<int64_t>()) {
    heads = list.shape[0], rows = list.shape[1], entries = list.shape[2];
    table_rows = table.shape[1], width = table.shape[2];
    heads_per_table = heads / std::max<int64_t>(1, table.shape[0]);
  }

  const int64_t* index;
  int64_t heads, rows, entries, width, table_rows, heads_per_table;

  // Offset of the table that row number `row` of all heads reads.
  int64_t table_of(int64_t row) const { return row / rows / heads_per_table * table_rows * width; }
};

template <class F>
void over_rows(const Lists& lists, F&& f) {
  const int64_t work = std::max<int64_t>(1, lists.entries * lists.width);
  parallel_for(lists.heads * lists.rows, std::max<int64_t>(1, 32768 / work),
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = begin; row < end; ++row) f(row);
               });
}

template <class T>
void add_scaled(T* to, const T* from, T scale, int64_t n) {
  for (int64_t d = 0; d < n; ++d) to[d] += scale * from[d];
}

void sparse_dot(KernelContext&, const TensorView& x, const TensorView& table,
                const TensorView& index, const TensorView& w) {
  const Lists lists(index, table);
  dispatch_floating(w.dtype, "sparse_dot_product", [&]<class T>(TypeTag<T>) {
    over_rows(lists, [&](int64_t row) {
      const T* const query = x.ptr<T>() + row * lists.width;
      const T* const keys = table.ptr<T>() + lists.table_of(row);
      for (int64_t at = row * lists.entries; at < (row + 1) * lists.entries; ++at) {
        const int64_t key = lists.index[at];
        w.ptr<T>()[at] = key < 0 ? T(0) : dot_of(query, keys + key * lists.width, lists.width);
      }
    });
  });
}

void sparse_rows(KernelContext&, const TensorView& w, const TensorView& table,
                 const TensorView& index, const TensorView& x) {
  const Lists lists(index, table);
  dispatch_floating(x.dtype, "sparse_weighted_average", [&]<class T>(TypeTag<T>) {
    over_rows(lists, [&](int64_t row) {
      T* const to = x.ptr<T>() + row * lists.width;
      const T* const values = table.ptr<T>() + lists.table_of(row);
      std::fill_n(to, lists.width, T(0));
      for (int64_t at = row * lists.entries; at < (row + 1) * lists.entries; ++at) {
        const int64_t key = lists.index[at];
        if (key >= 0) add_scaled(to, values + key * lists.width, w.ptr<T>()[at], lists.width);
      }
    });
  });
}

// A task has a range of columns of one table and visits all its rows in order.
void sparse_table(KernelContext&, const TensorView& w, const TensorView& x, const TensorView& index,
                  const TensorView& table) {
  constexpr int64_t kColumns = 32;
  const Lists lists(index, table);
  const int64_t parts = (lists.width + kColumns - 1) / kColumns;
  dispatch_floating(table.dtype, "sparse_products", [&]<class T>(TypeTag<T>) {
    parallel_for(table.shape[0] * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t part = task % parts, width = lists.width;
        const int64_t first = part * kColumns, count = std::min(kColumns, width - first);
        T* const to = table.ptr<T>() + task / parts * lists.table_rows * width + first;
        for (int64_t s = 0; s < lists.table_rows; ++s) std::fill_n(to + s * width, count, T(0));
        const int64_t rows = lists.heads_per_table * lists.rows;
        for (int64_t row = task / parts * rows; row < (task / parts + 1) * rows; ++row) {
          const T* const from = x.ptr<T>() + row * width + first;
          for (int64_t at = row * lists.entries; at < (row + 1) * lists.entries; ++at) {
            const int64_t key = lists.index[at];
            if (key >= 0) add_scaled(to + key * width, from, w.ptr<T>()[at], count);
          }
        }
      }
    });
  });
}

}  // namespace

void register_sparse_products() {
  kernels::sparse_dot.set(DeviceType::cpu, in_float<sparse_dot, 3>);
  kernels::sparse_rows.set(DeviceType::cpu, in_float<sparse_rows, 3>);
  kernels::sparse_table.set(DeviceType::cpu, in_float<sparse_table, 3>);
}

}  // namespace sash::cpu
