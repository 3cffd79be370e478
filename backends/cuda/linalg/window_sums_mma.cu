#include "window_matmul_mma.cuh"

/// Memory: a block reads the weights of its 64 results and the rows of v within their windows once,
/// and writes its results once. Weights outside a tile's slots, and hidden weights, are replaced by
/// 0 in registers, so their memory may contain anything.
namespace sash::cuda {
namespace window {
namespace {

template <class T>
struct Weighted {
  WindowDims dims;
  const T* a;
  int64_t count;  ///< elements of a
  Rows<const T> v;
  Rows<T> o;
  int right, row_blocks, feature_tiles;
};

/// A tile of weights in shared memory: 64 segments of 64 weights that are neighbours in memory,
/// each the slots of one row. Segment n begins at slot `slot` - n. The segments begin at any
/// element, so 16-byte vectors around them are read, and `shift` is where a segment begins in its
/// first vector; 0 for all of them if `aligned`.
template <class T, bool transposed, bool aligned>
struct WeightTile {
  static constexpr int kPitch = kTile + 8;
  static constexpr int kBytes = kTile * kPitch * 2;

  const T* base;  ///< where segment 0 begins
  int slot, slots;
  uint32_t tile;

  __device__ int shift(int segment) const {
    if constexpr (aligned) return 0;
    const auto at = reinterpret_cast<uintptr_t>(base) / 2 +
                    static_cast<uint64_t>(int64_t{segment} * (slots - 1));
    return static_cast<int>(at % 8);
  }

  /// Segments outside [low, high) become 0, and vectors without a slot of their row. `end` is that
  /// of the memory.
  __device__ void read(int low, int high, const T* end) const {
    constexpr int vectors = (aligned ? kTile : kPitch) / 8;
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < kTile * vectors; i += kBlock) {
      const int segment = i / vectors, vector = i % vectors;
      const int at = vector * 8 - shift(segment), first = slot - segment + at;
      const bool inside = segment >= low && segment < high && first + 8 > 0 && first < slots;
      const T* const from = base + int64_t{segment} * (slots - 1) + at;
      const int64_t left = (end - from) * 2;
      copy_async_part(tile + static_cast<uint32_t>((segment * kPitch + vector * 8) * 2), from,
                      inside ? static_cast<int>(min(left, int64_t{16})) : 0);
    }
  }

  /// Rows [row, row + 16) and columns [column, column + 16), as a left operand.
  __device__ void load(uint32_t (&w)[4], int row, int column) const {
    if constexpr (aligned && !transposed) {
      mma::load_matrices(w, place(row + lane() % 16, column + lane() / 16 * 8));
    } else if constexpr (aligned) {
      mma::load_transposed(w,
                           place(column + lane() % 8 + lane() / 16 * 8, row + lane() / 8 % 2 * 8));
    } else {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int r = row + lane() / 4 + part % 2 * 8, c = column + lane() % 4 * 2 + part / 2 * 8;
        w[part] = element(r, c) | element(r, c + 1) << 16;
      }
    }
  }

 private:
  __device__ uint32_t place(int segment, int at) const {
    return tile + static_cast<uint32_t>((segment * kPitch + at) * 2);
  }
  __device__ uint32_t element(int r, int c) const {
    const int segment = transposed ? c : r, at = transposed ? r : c;
    uint16_t x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(place(segment, at + shift(segment))));
    return x;
  }
};

/// What is visible of the tile that begins at slot `slot`, as element (0, 0), and key `key`.
template <bool transposed>
struct Visible {
  int slot, slots, key, keys;

  /// Element (r, c).
  __device__ bool operator()(int r, int c) const {
    const int s = transposed ? slot + r - c : slot + c - r, j = key + (transposed ? r : c);
    return s >= 0 && s < slots && j >= 0 && j < keys;
  }
  __device__ bool all() const {
    return slot >= kTile - 1 && slot + kTile <= slots && key >= 0 && key + kTile <= keys;
  }
  __device__ void apply(uint32_t (&w)[4], int row, int column) const {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int r = row + lane() / 4 + part % 2 * 8, c = column + lane() % 4 * 2 + part / 2 * 8;
      w[part] &= ((*this)(r, c) ? 0xffffu : 0u) | ((*this)(r, c + 1) ? 0xffff0000u : 0u);
    }
  }
};

/// `columns`: v is stored as [N, M].
template <class T, bool transposed, bool aligned, bool columns>
__global__ void __launch_bounds__(kBlock, 4) sums_kernel(const __grid_constant__ Weighted<T> x) {
  using Weights = WeightTile<T, transposed, aligned>;
  constexpr int stage_bytes = kSquareBytes + Weights::kBytes;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t values = shared_address(shared);            // [kStages] squares
  const uint32_t weights = values + kStages * kSquareBytes;  // [kStages] tiles of weights
  static_assert(kStages * stage_bytes >= kBlock / kWarp * Staged<T>::kBytes);

  const WindowDims& p = x.dims;
  const int feature = static_cast<int>(blockIdx.x) % x.feature_tiles * kTile;
  const int rest = static_cast<int>(blockIdx.x) / x.feature_tiles;
  const int head = rest / x.row_blocks, b = head / p.heads, h = head % p.heads;
  const int first = rest % x.row_blocks * kTile;
  const int keys = visible_keys(p, b);
  const Rows<const T> v = x.v.at(b, h);

  // Tile t weighs the rows of v from `start` + 64 t on; those of [0, end) exist.
  const int start = first - (transposed ? x.right : p.left), end = transposed ? p.m : keys;
  const int begin_tile = start < 0 ? -start / kTile : 0;
  int end_tile = (p.slots + 2 * kTile - 2) / kTile;
  end_tile = end > start ? min(end_tile, (end - start + kTile - 1) / kTile) : begin_tile;
  if (transposed && first >= keys) end_tile = begin_tile;

  const auto weights_at = [&](int tile) {
    const int64_t row = int64_t{head} * p.m + (transposed ? start + tile * kTile : first);
    const int slot = transposed ? p.slots - 1 - tile * kTile : tile * kTile;
    return Weights{x.a + row * p.slots + slot, slot, p.slots,
                   weights + static_cast<uint32_t>(tile % kStages * Weights::kBytes)};
  };
  const auto read_tile = [&](int tile) {
    if (tile < end_tile) {
      const int row = start + tile * kTile;
      const uint32_t to = values + static_cast<uint32_t>(tile % kStages * kSquareBytes);
      if constexpr (columns) {
        read_square(to, v, feature, p.n, row);
      } else {
        read_square(to, v, row, end, feature);
      }
      const int low = transposed ? -row : 0, high = p.m - (transposed ? row : first);
      weights_at(tile).read(low, high, x.a + x.count);
    }
    mma::end_group();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) read_tile(begin_tile + i);

  using X = Square<T>;
  PartSums sum = {};
  for (int tile = begin_tile; tile < end_tile; ++tile) {
    wait_for_group();
    __syncthreads();  // the tile is there, and that of the last step is free
    read_tile(tile + kStages - 1);
    const Weights tile_weights = weights_at(tile);
    const Visible<transposed> visible{transposed ? p.slots - 1 - tile * kTile : tile * kTile,
                                      p.slots, transposed ? first : start + tile * kTile, keys};
    const bool all = visible.all();
    // This warp's part of the tile, of 32 rows and all columns.
    const int low = visible.slot + (transposed ? part_row() - kTile : -part_row() - kPart) + 1;
    if (low >= p.slots || low + kTile + kPart - 1 <= 0) continue;
    const uint32_t square = values + static_cast<uint32_t>(tile % kStages * kSquareBytes);
    const uint32_t place = columns ? X::right(square) : X::right_rows(square);
#pragma unroll
    for (int depth = 0; depth < kTile; depth += 16) {
      uint32_t w[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        tile_weights.load(w[i], part_row() + 16 * i, depth);
        if (!all) visible.apply(w[i], part_row() + 16 * i, depth);
      }
#pragma unroll
      for (int j = 0; j < kPart; j += 16) {
        uint32_t right[4];
        if constexpr (columns) {
          mma::load_matrices(right, X::moved(place, part_column() + j, depth / 8));
        } else {
          mma::load_transposed(right, X::moved(place, depth, (part_column() + j) / 8));
        }
        multiply<T>(sum, w, right, j / 8);
      }
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();  // all squares are free

  T* const part = reinterpret_cast<T*>(shared + warp() * Staged<T>::kBytes);
  Staged<T>::put(part, sum);
  const Rows<T> o = x.o.at(b, h);
  Staged<T>::template for_each<8>(part, [&](int r, int c, const Vector<T, 8>& vector) {
    const int row = first + part_row() + r, d = feature + part_column() + c;
    if (row >= p.m || d >= p.n) return;
    T* const to = o.data + row * o.row + d;
    bool finite = true;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      finite = finite && isfinite(widen(vector.element[e]));
      if (!o.vectors && d + e < p.n) to[e] = vector.element[e];
    }
    if (o.vectors) *reinterpret_cast<Vector<T, 8>*>(to) = vector;
    if (finite) return;
    const auto weight = [&](int i, int j) {
      return widen(x.a[(int64_t{head} * p.m + i) * p.slots + j - i + p.left]);
    };
#pragma unroll 1
    for (int e = 0; e < 8 && d + e < p.n; ++e) {
      if (isfinite(widen(to[e]))) continue;
      const auto value = [&](int j) {
        return widen(v.data[columns ? (d + e) * v.row + j : j * v.row + d + e]);
      };
      to[e] = narrow<T>(window_sum<transposed>(p, keys, row, weight, value));
    }
  });
}

template <class T>
void sums(KernelContext& context, View a, View v, const kernels::WindowParams& window,
          bool transposed, View o) {
  const WindowDims dims(v, window);
  const int64_t heads = v.shape[0] * v.shape[1], feature_tiles = (dims.n + kTile - 1) / kTile;
  // Where segments begin, but for multiples of 64.
  int64_t odd = static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.data) / 2) | (dims.slots - 1);
  if (heads > 1) odd |= int64_t{dims.m} * dims.slots;
  if (transposed) odd |= int64_t{dims.right()} * dims.slots;
  const bool by_columns = odd % 8 == 0 && !transposed && has_key_columns(v, window);
  const Readable values(context, v, by_columns || has_unit_rows(v));
  const Weighted<T> call{dims,
                         a.ptr<const T>(),
                         a.numel(),
                         by_columns ? key_columns<T>(v) : rows_of<const T>(values.view()),
                         rows_of<T>(o),
                         dims.right(),
                         static_cast<int>(dims.blocks(kTile)),
                         static_cast<int>(feature_tiles)};
  const auto run = [&]<bool turned, bool aligned, bool columns>() {
    constexpr int shared = kStages * (kSquareBytes + WeightTile<T, turned, aligned>::kBytes);
    static_assert(shared <= kLeastSharedMemory);
    launch<sums_kernel<T, turned, aligned, columns>>(
        context, heads * dims.blocks(kTile) * feature_tiles, kBlock, shared, call);
  };
  if (by_columns) return run.template operator()<false, true, true>();
  if (transposed && odd % 8 == 0) return run.template operator()<true, true, false>();
  if (transposed) return run.template operator()<true, false, false>();
  if (odd % 8 == 0) return run.template operator()<false, true, false>();
  run.template operator()<false, false, false>();
}

}  // namespace
}  // namespace window

void window_sums_mma(KernelContext& context, View a, View v, const kernels::WindowParams& window,
                     bool transposed, View o) {
  dispatch_device_halves(a.dtype, "unwindow_matmul", [&]<class T>(TypeTag<T>) {
    window::sums<T>(context, a, v, window, transposed, o);
  });
}

}  // namespace sash::cuda
