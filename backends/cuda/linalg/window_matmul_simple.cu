#include "../attention/common/launch.cuh"
#include "../elementwise/compute.cuh"
#include "tile_sums.cuh"
#include "window_matmul.h"

/// Windowed products without tensor cores: a block computes a tile of 64 x 64 results, a thread
/// 4 x 4 of them, from tiles of depth 16 in shared memory.
namespace sash::cuda {
namespace {

constexpr int kTile = TileSums<float>::kTile, kBlock = TileSums<float>::kBlock;

/// Element [b, h, i, n], by strides.
template <class T>
struct Elements {
  const T* data;
  int64_t batch, head, row, col;

  explicit Elements(View x)
      : data(x.ptr<const T>()),
        batch(x.strides[0]),
        head(x.strides[1]),
        row(x.strides[2]),
        col(x.strides[3]) {}
  __device__ Elements at(int b, int h) const {
    Elements x = *this;
    x.data += b * batch + h * head;
    return x;
  }
  __device__ compute_t<T> operator()(int i, int n) const { return widen(data[i * row + n * col]); }
};

__device__ int visible_keys(const WindowDims& p, int b) {
  return p.lengths ? max(0, min(p.lengths[b], p.m)) : p.m;
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    scores_kernel(const WindowDims p, const Elements<T> q, const Elements<T> k, T* a,
                  compute_t<T> fill, int row_tiles, int key_tiles) {
  const int tile = static_cast<int>(blockIdx.x) % key_tiles;
  const int rest = static_cast<int>(blockIdx.x) / key_tiles;
  const int head = rest / row_tiles, b = head / p.heads, h = head % p.heads;
  const int row = rest % row_tiles * kTile;
  const int key = row - p.left + tile * kTile, keys = visible_keys(p, b);
  TileSums<compute_t<T>> sums;
  if (key < keys && key + kTile > 0) {
    const Elements<T> rows = q.at(b, h), columns = k.at(b, h);
    sums.add(
        0, p.n, [&](int r, int n) { return row + r < p.m ? rows(row + r, n) : compute_t<T>(0); },
        rows.col == 1,
        [&](int n, int c) {
          const int j = key + c;
          return j >= 0 && j < keys ? columns(j, n) : compute_t<T>(0);
        },
        columns.col == 1);
  }
  sums.for_each([&](int r, int c, compute_t<T> sum) {
    const int slot = tile * kTile + c - r, j = key + c;
    if (row + r >= p.m || slot < 0 || slot >= p.slots) return;
    a[(static_cast<int64_t>(head) * p.m + row + r) * p.slots + slot] =
        narrow<T>(j >= 0 && j < keys ? sum : fill);
  });
}

template <class T, bool transposed>
__global__ void __launch_bounds__(kBlock)
    sums_kernel(const WindowDims p, const T* a, const Elements<T> v, T* o, int right, int row_tiles,
                int feature_tiles) {
  const int feature = static_cast<int>(blockIdx.x) % feature_tiles * kTile;
  const int rest = static_cast<int>(blockIdx.x) / feature_tiles;
  const int head = rest / row_tiles, b = head / p.heads, h = head % p.heads;
  const int first = rest % row_tiles * kTile, keys = visible_keys(p, b);
  const T* const band = a + static_cast<int64_t>(head) * p.m * p.slots;
  // The weight of row i at key j.
  const auto weight = [&](int i, int j) {
    const int slot = j - i + p.left;
    const bool inside = i < p.m && j < keys && slot >= 0 && slot < p.slots;
    return inside ? widen(band[static_cast<int64_t>(i) * p.slots + slot]) : compute_t<T>(0);
  };
  const Elements<T> values = v.at(b, h);
  const auto value = [&](int j, int c) {
    return feature + c < p.n ? values(j, feature + c) : compute_t<T>(0);
  };
  TileSums<compute_t<T>> sums;
  if constexpr (transposed) {
    if (first < keys) {
      sums.add(
          max(0, first - right), min(p.m, first + kTile + p.left),
          [&](int r, int i) { return weight(i, first + r); }, false, value, values.col != 1);
    }
  } else {
    sums.add(
        max(0, first - p.left), min(keys, first + kTile + right),
        [&](int r, int j) { return weight(first + r, j); }, true, value, values.col != 1);
  }
  sums.for_each([&](int r, int c, compute_t<T> sum) {
    if (first + r >= p.m || feature + c >= p.n) return;
    if (!isfinite(sum)) {
      const auto in_column = [&](int j) { return values(j, feature + c); };
      sum = window_sum<transposed>(p, keys, first + r, weight, in_column);
    }
    o[(static_cast<int64_t>(head) * p.m + first + r) * p.n + feature + c] = narrow<T>(sum);
  });
}

}  // namespace

void window_scores_simple(KernelContext& context, View q, View k,
                          const kernels::WindowParams& window, double fill, View a) {
  const WindowDims dims(q, window);
  dispatch_device_floating(a.dtype, "window_matmul", [&]<class T>(TypeTag<T>) {
    launch_tiles(context, q.shape[0] * q.shape[1] * dims.blocks(kTile) * dims.tiles(kTile), kBlock,
                 0, scores_kernel<T>, dims, Elements<T>(q), Elements<T>(k), a.ptr<T>(), fill,
                 dims.blocks(kTile), dims.tiles(kTile));
  });
}

void window_sums_simple(KernelContext& context, View a, View v, const kernels::WindowParams& window,
                        bool transposed, View o) {
  const WindowDims dims(v, window);
  const int64_t feature_tiles = (dims.n + kTile - 1) / kTile;
  dispatch_device_floating(o.dtype, "unwindow_matmul", [&]<class T>(TypeTag<T>) {
    const auto kernel = transposed ? sums_kernel<T, true> : sums_kernel<T, false>;
    launch_tiles(context, v.shape[0] * v.shape[1] * dims.blocks(kTile) * feature_tiles, kBlock, 0,
                 kernel, dims, a.ptr<const T>(), Elements<T>(v), o.ptr<T>(), dims.right(),
                 dims.blocks(kTile), feature_tiles);
  });
}

}  // namespace sash::cuda
