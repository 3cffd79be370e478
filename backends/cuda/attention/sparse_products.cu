#include "../../../ops/kernels/sparse_products.h"

#include "../index/sorted_sums.cuh"
#include "../runtime/index_flag.h"

namespace sash::cuda {
namespace {

/// a / b; 64-bit division is several times slower, and rarely needed.
__device__ int64_t quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

/// Lists of `entries` for each of `rows` rows of `width` elements, for heads that read tables of
/// `table_rows` rows.
struct Lists {
  const int64_t* index;
  int64_t heads, rows, entries, width, table_rows, heads_per_table;

  Lists(View list, View table)
      : index(list.ptr<int64_t>()),
        heads(list.shape[0]),
        rows(list.shape[1]),
        entries(list.shape[2]),
        width(table.shape[2]),
        table_rows(table.shape[1]),
        heads_per_table(heads / std::max<int64_t>(1, table.shape[0])) {}

  int64_t count() const { return heads * rows * entries; }
  /// The first table row, among all tables, that row number `row` of x reads.
  __device__ int64_t table_of(int64_t row) const {
    return quotient(quotient(row, rows), heads_per_table) * table_rows;
  }
  /// The key of an entry; -1 if it is wrong, which is reported.
  __device__ int64_t key(int64_t entry, IndexFlag* flag) const {
    const int64_t key = index[entry];
    if (key == -1 || in_range(flag, IndexOp::sparse_products, key, table_rows, entry)) return key;
    return -1;
  }
};

/// Threads that share one dot product.
constexpr int kTeam = 8;

template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    dot_kernel(const Lists lists, const T* x, const T* table, T* w, int64_t count,
               IndexFlag* flag) {
  const int64_t entry = thread_index() / kTeam;
  const int lane = static_cast<int>(threadIdx.x) % kTeam;
  const int64_t key = entry < count ? lists.key(entry, flag) : -1;
  compute_t<T> sum = 0;
  if (key >= 0) {
    const int64_t row = quotient(entry, lists.entries);
    const T* const a = x + row * lists.width;
    const T* const b = table + (lists.table_of(row) + key) * lists.width;
#pragma unroll 2
    for (int64_t d = lane * V; d < lists.width; d += kTeam * V) {
      const auto p = read<V>(a + d), q = read<V>(b + d);
#pragma unroll
      for (int i = 0; i < V; ++i) sum += p.element[i] * q.element[i];
    }
  }
#pragma unroll
  for (int step = kTeam / 2; step > 0; step /= 2) sum += shuffle_xor(sum, step);
  if (lane == 0 && entry < count) w[entry] = narrow<T>(sum);
}

/// `lanes` threads share one row.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const Lists lists, const T* w, const T* table, T* x, int lanes, IndexFlag* flag) {
  const int64_t thread = thread_index();
  const int64_t row = quotient(thread, lanes);
  if (row >= lists.heads * lists.rows) return;
  const int64_t first = row * lists.entries;
  const T* const values_of = table + lists.table_of(row) * lists.width;
  for (int64_t d = (thread - row * lanes) * V; d < lists.width; d += int64_t{lanes} * V) {
    Vector<compute_t<T>, V> total{};
#pragma unroll 4
    for (int64_t entry = first; entry < first + lists.entries; ++entry) {
      const int64_t key = lists.key(entry, flag);
      if (key < 0) continue;
      const compute_t<T> weight = widen(w[entry]);
      const auto values = read<V>(values_of + key * lists.width + d);
#pragma unroll
      for (int i = 0; i < V; ++i) total.element[i] += weight * values.element[i];
    }
    write<V>(x + row * lists.width + d, total);
  }
}

/// keys[e] = the table row of entry e among all tables, or `none`, the largest key; places[e] = e.
__global__ void __launch_bounds__(kThreads)
    make_keys(const Lists lists, int64_t count, uint64_t none, uint64_t* keys, int64_t* places,
              IndexFlag* flag) {
  const int64_t entry = thread_index();
  if (entry >= count) return;
  const int64_t key = lists.key(entry, flag);
  const int64_t table = lists.table_of(quotient(entry, lists.entries));
  keys[entry] = key < 0 ? none : static_cast<uint64_t>(table + key);
  places[entry] = entry;
}

/// Entry `place` times its row of x.
template <class T>
struct WeightedRow {
  const T* w;
  const T* x;
  int64_t entries;
  int64_t width;

  template <int V>
  __device__ Vector<compute_t<T>, V> at(int64_t place, int64_t column) const {
    auto row = read<V>(x + quotient(place, entries) * width + column);
    const compute_t<T> weight = widen(w[place]);
#pragma unroll
    for (auto& e : row.element) e *= weight;
    return row;
  }
};

/// Calls `launch` with how many elements are read at once.
template <class T, class F>
void with_vectors(int64_t width, std::initializer_list<const void*> data, F&& launch) {
  with_vector_width<16 / sizeof(T)>(rows_take_vectors<T>(width, data), launch);
}

void sparse_dot(KernelContext& context, View x, View table, View index, View w) {
  const Lists lists(index, table);
  if (lists.count() == 0) return;
  dispatch_device_floating(w.dtype, "sparse_dot_product", [&]<class T>(TypeTag<T>) {
    with_vectors<T>(lists.width, {x.data, table.data}, [&]<int V>(std::integral_constant<int, V>) {
      launch_kernel(context, blocks_for(lists.count() * kTeam), kThreads, 0, dot_kernel<V, T>,
                    lists, x.ptr<T>(), table.ptr<T>(), w.ptr<T>(), lists.count(),
                    index_flag(context.device.index));
    });
  });
}

void sparse_rows(KernelContext& context, View w, View table, View index, View x) {
  const Lists lists(index, table);
  const int64_t rows = lists.heads * lists.rows;
  if (rows == 0 || lists.width == 0) return;
  dispatch_device_floating(x.dtype, "sparse_weighted_average", [&]<class T>(TypeTag<T>) {
    with_vectors<T>(lists.width, {x.data, table.data}, [&]<int V>(std::integral_constant<int, V>) {
      const int64_t lanes = std::min<int64_t>(kWarp, ceil_div(lists.width, V));
      launch_kernel(context, blocks_for(rows * lanes), kThreads, 0, rows_kernel<V, T>, lists,
                    w.ptr<T>(), table.ptr<T>(), x.ptr<T>(), lanes,
                    index_flag(context.device.index));
    });
  });
}

void sparse_table(KernelContext& context, View w, View x, View index, View table) {
  const Lists lists(index, table);
  const int64_t count = lists.count(), rows = table.shape[0] * table.shape[1];
  if (table.numel() == 0) return;
  SortedKeys sorted(context, count);
  if (count > 0) {
    launch_kernel(context, blocks_for(count), kThreads, 0, make_keys, lists, count, rows,
                  sorted.keys(), sorted.places(), index_flag(context.device.index));
  }
  sorted.sort(static_cast<uint64_t>(rows));
  dispatch_device_floating(table.dtype, "sparse_products", [&]<class T>(TypeTag<T>) {
    const WeightedRow<T> source{w.ptr<T>(), x.ptr<T>(), std::max<int64_t>(1, lists.entries),
                                lists.width};
    sum_by_key(context, sorted, source, {x.data}, table.ptr<T>(), rows, lists.width);
  });
}

}  // namespace

void register_sparse_products() {
  kernels::sparse_dot.set(DeviceType::cuda, sparse_dot);
  kernels::sparse_rows.set(DeviceType::cuda, sparse_rows);
  kernels::sparse_table.set(DeviceType::cuda, sparse_table);
}

}  // namespace sash::cuda
