#include "../../../ops/kernels/index.h"

#include "../elementwise/compute.cuh"
#include "../runtime/index_flag.h"
#include "sorted_keys.h"

namespace sash::cuda {
namespace {

/// y[e] = x[e with index[e] on the indexed axis], or 0 for an index out of range. The walk is over
/// y, the index, and x at index 0. `step` is x's stride along the indexed axis.
template <int V, class Word>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const __grid_constant__ Walk<3> walk, const Word* x, int64_t step, int64_t extent,
                  const int64_t* index, Word* y, IndexFlag* flag) {
  const int64_t flat = thread_index();
  if (flat >= walk.count) return;
  int64_t offset[3];
  const int last = walk.rank - 1;
  const int64_t left = walk.extent[last] - walk.find(flat, V, offset);
  const int count = left < V ? static_cast<int>(left) : V;
  const int64_t at = from_start(flag, IndexOp::gather, index[offset[1]], extent, offset[1]);
  Vector<Word, V> values{};
  if (at >= 0) {
    values = load<V>(x + offset[2] + at * step, walk.stride[2][last], count);
  }
  store<V>(y + offset[0], values, walk.stride[0][last], count);
}

void gather(KernelContext& context, View x, View index, View y, int axis) {
  TensorView first = x;
  first.shape = y.shape;
  first.strides[axis] = 0;
  Walk<3> walk = make_walk<3>({&y, &index, &first}, Order::memory);
  if (walk.count == 0) return;
  const CardGuard guard(context.device.index);
  const int last = walk.rank - 1;
  const int64_t step = x.strides[axis];
  dispatch_words(x.dtype, [&]<class Word>(TypeTag<Word>) {
    constexpr int width = 16 / sizeof(Word);
    const bool vectors = walk.stride[1][last] == 0 && step % width == 0 &&
                         takes_vectors<Word>(walk, 0, y.data, width) &&
                         takes_vectors<Word>(walk, 2, x.data, width);
    with_vector_width<width>(vectors, [&]<int V>(std::integral_constant<int, V>) {
      walk.group(V);
      launch_kernel(context, blocks_for(walk.count), kThreads, 0, gather_kernel<V, Word>, walk,
                    x.ptr<Word>(), step, x.shape[axis], index.ptr<int64_t>(), y.ptr<Word>(),
                    index_flag(context.device.index));
    });
  });
}

/// The indexed axis: its extent in the index (`length`) and in y (`extent`), and its strides.
struct IndexedAxis {
  int64_t length;
  int64_t extent;
  int64_t src_step;
  int64_t index_step;
  int64_t y_step;
};

/// `scatter_add`, and with `Replace` `scatter`.
template <class T>
struct AddTo {
  static constexpr IndexOp op = IndexOp::scatter_add;
  using Total = compute_t<T>;
  __device__ static Total start(T y) { return widen(y); }
  __device__ static Total next(Total total, T x) { return total + widen(x); }
};
template <class T>
struct Replace {
  static constexpr IndexOp op = IndexOp::scatter;
  using Total = compute_t<T>;
  __device__ static Total start(T y) { return widen(y); }
  __device__ static Total next(Total, T x) { return widen(x); }
};

/// One thread per element of the other axes; it visits the indexed axis in order. The walk is over
/// src, the index and y, without the indexed axis.
template <template <class> class Write, class T>
__global__ void __launch_bounds__(kThreads)
    scatter_lines(const __grid_constant__ Walk<3> others, const IndexedAxis axis, const T* src,
                  const int64_t* index, T* y, IndexFlag* flag) {
  const int64_t flat = thread_index();
  if (flat >= others.count) return;
  int64_t offset[3];
  others.find(flat, 1, offset);
  for (int64_t j = 0; j < axis.length; ++j) {
    const int64_t from = offset[1] + j * axis.index_step;
    const int64_t at = from_start(flag, Write<T>::op, index[from], axis.extent, from);
    if (at < 0) continue;
    T& to = y[offset[2] + at * axis.y_step];
    to = narrow<T>(Write<T>::next(Write<T>::start(to), src[offset[0] + j * axis.src_step]));
  }
}

// For few long lines, and for halves, the indices are sorted by target instead. The other axes form
// two groups: the index varies along `outer` axes and is broadcast (stride 0) along `inner` axes. A
// sorted index is used for all inner elements.

/// For index (o, j): place = o length + j, and key = o extent + index, or outer.count extent, the
/// largest key, if the index is out of range.
__global__ void __launch_bounds__(kThreads)
    make_keys(const __grid_constant__ Walk<3> outer, const IndexedAxis axis, const int64_t* index,
              uint64_t* keys, int64_t* places, IndexFlag* flag, IndexOp op) {
  const int64_t place = thread_index();
  if (place >= outer.count * axis.length) return;
  const int64_t o = place / axis.length, j = place - o * axis.length;
  int64_t offset[3];
  outer.find(o, 1, offset);
  const int64_t from = offset[1] + j * axis.index_step;
  const int64_t at = from_start(flag, op, index[from], axis.extent, from);
  keys[place] =
      static_cast<uint64_t>((at < 0 ? outer.count : o) * axis.extent + max(at, int64_t{0}));
  places[place] = place;
}

/// One thread per sorted index and inner element. The thread of the first index of each key visits
/// the elements of all of them, in order.
template <template <class> class Write, class T>
__global__ void __launch_bounds__(kThreads)
    scatter_sorted(const __grid_constant__ Walk<3> outer, const __grid_constant__ Walk<3> inner,
                   const IndexedAxis axis, const uint64_t* keys, const int64_t* places,
                   const T* src, T* y) {
  const int64_t flat = thread_index();
  const int64_t count = outer.count * axis.length;
  const int64_t begin = flat / inner.count;
  if (begin >= count) return;
  const uint64_t key = keys[begin];
  if (key == static_cast<uint64_t>(outer.count * axis.extent)) return;
  if (begin > 0 && keys[begin - 1] == key) return;
  const int64_t o = static_cast<int64_t>(key) / axis.extent;
  const int64_t at = static_cast<int64_t>(key) - o * axis.extent;
  int64_t line[3], element[3];
  outer.find(o, 1, line);
  inner.find(flat - begin * inner.count, 1, element);
  T& to = y[line[2] + element[2] + at * axis.y_step];
  typename Write<T>::Total total = Write<T>::start(to);
#pragma unroll 4
  for (int64_t i = begin; i < count && keys[i] == key; ++i) {
    const int64_t j = places[i] - o * axis.length;
    total = Write<T>::next(total, src[line[0] + element[0] + j * axis.src_step]);
  }
  to = narrow<T>(total);
}

/// The walk over src, the index and y along the axes for which `wanted(axis)`.
template <class Wanted>
Walk<3> walk_along(View src, View index, View y, Wanted wanted) {
  TensorView views[3] = {src, index, y};
  for (int axis = index.rank() - 1; axis >= 0; --axis) {
    if (wanted(axis)) continue;
    for (TensorView& view : views) {
      view.shape.erase(axis);
      view.strides.erase(axis);
    }
  }
  views[2].shape = views[1].shape = views[0].shape;
  return make_walk<3>({&views[0], &views[1], &views[2]}, Order::memory);
}

template <template <class> class Write, class T>
void scatter_by_key(const KernelContext& context, const Walk<3>& outer, const Walk<3>& inner,
                    const IndexedAxis& axis, View src, View index, View y) {
  const int64_t count = outer.count * axis.length;
  SortedKeys sorted(context, count);
  launch_kernel(context, blocks_for(count), kThreads, 0, make_keys, outer, axis,
                index.ptr<int64_t>(), sorted.keys(), sorted.places(),
                index_flag(context.device.index), Write<T>::op);
  sorted.sort(static_cast<uint64_t>(outer.count * axis.extent));
  launch_kernel(context, blocks_for(count * inner.count), kThreads, 0, scatter_sorted<Write, T>,
                outer, inner, axis, sorted.keys(), sorted.places(), src.ptr<T>(), y.ptr<T>());
}

/// y, of the device type `T`, at `index` with src.
template <template <class> class Write, class T>
void scatter_as(const KernelContext& context, View y, View index, View src, int axis) {
  constexpr int64_t kShort = 64, kManyLines = 65536;
  if (index.numel() == 0) return;
  const IndexedAxis along{index.shape[axis], y.shape[axis], src.strides[axis], index.strides[axis],
                          y.strides[axis]};
  const CardGuard guard(context.device.index);
  const auto repeats = [&](int at) { return index.strides[at] == 0; };
  const Walk<3> others = walk_along(src, index, y, [&](int at) { return at != axis; });
  // `scatter_lines` sums in y. For halves that would round each addition, not only the result.
  const bool in_place = along.length == 1 || !kIsHalf<T>;
  if (in_place && (along.length <= kShort || others.count >= kManyLines)) {
    return launch_kernel(context, blocks_for(others.count), kThreads, 0, scatter_lines<Write, T>,
                         others, along, src.ptr<T>(), index.ptr<int64_t>(), y.ptr<T>(),
                         index_flag(context.device.index));
  }
  const Walk<3> outer =
      walk_along(src, index, y, [&](int at) { return at != axis && !repeats(at); });
  const Walk<3> inner =
      walk_along(src, index, y, [&](int at) { return at != axis && repeats(at); });
  scatter_by_key<Write, T>(context, outer, inner, along, src, index, y);
}

void scatter_add(KernelContext& context, View y, View index, View src, int axis) {
  dispatch_any_numeric(y.dtype, "scatter_add", [&]<class T>(TypeTag<T>) {
    scatter_as<AddTo, device_t<T>>(context, y, index, src, axis);
  });
}

void scatter(KernelContext& context, View y, View index, View src, int axis) {
  dispatch_words(y.dtype, [&]<class Word>(TypeTag<Word>) {
    scatter_as<Replace, Word>(context, y, index, src, axis);
  });
}

}  // namespace

void register_gather() {
  kernels::gather.set(DeviceType::cuda, gather);
  kernels::scatter_add.set(DeviceType::cuda, scatter_add);
  kernels::scatter.set(DeviceType::cuda, scatter);
}

}  // namespace sash::cuda
