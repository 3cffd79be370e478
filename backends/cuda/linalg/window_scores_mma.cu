#include "window_matmul_mma.cuh"

/// Memory: a block reads its 64 rows of q once, and the keys of its tiles once; it writes each
/// slot once.
namespace sash::cuda {
namespace window {
namespace {

constexpr int kMostChunks = 8;
template <class T>
constexpr int kStagedBytes = Staged<T>::kBytes* kBlock / kWarp;

template <class T>
int shared_bytes(int64_t chunks) {
  return kStagedBytes<T> + kStages * kSquareBytes + static_cast<int>(chunks) * kSquareBytes;
}

template <class T>
struct Scores {
  WindowDims dims;
  Rows<const T> q, k;
  T* a;
  float fill;
  int row_blocks, tiles, groups;  ///< tiles of keys, in groups of one block each
  int chunks;                     ///< of 64 features
};

/// Stores a part of tile `tile`, whose rows begin at row `row`: 8 slots at a time if kWidth is 8,
/// when all of a row's vectors are aligned.
template <int kWidth, class T>
__device__ void store(const T* part, T* a, const WindowDims& p, int head, int row, int tile) {
  Staged<T>::template for_each<kWidth>(part, [&](int r, int c, const Vector<T, kWidth>& vector) {
    const int i = row + part_row() + r;
    const int slot = tile * kTile + part_column() + c - part_row() - r;
    if (i >= p.m || slot + kWidth <= 0 || slot >= p.slots) return;
    T* const to = a + (static_cast<int64_t>(head) * p.m + i) * p.slots + slot;
    if (slot >= 0 && slot + kWidth <= p.slots) {
      *reinterpret_cast<Vector<T, kWidth>*>(to) = vector;
      return;
    }
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if (slot + e >= 0 && slot + e < p.slots) to[e] = vector.element[e];
    }
  });
}

/// `in_registers`: all features of the queries stay in registers, which 64 features allow.
/// `columns`: the keys are stored as [N, M].
template <class T, bool in_registers, bool columns, int kWidth>
__global__ void __launch_bounds__(kBlock, 4) scores_kernel(const __grid_constant__ Scores<T> x) {
  using X = Square<T>;
  extern __shared__ __align__(128) unsigned char shared[];
  T* const part = reinterpret_cast<T*>(shared + warp() * Staged<T>::kBytes);
  const uint32_t keys = shared_address(shared) + kStagedBytes<T>;  // [kStages] squares
  const uint32_t queries = keys + kStages * kSquareBytes;          // [chunks] squares

  const WindowDims& p = x.dims;
  const int group = static_cast<int>(blockIdx.x) % x.groups;
  const int rest = static_cast<int>(blockIdx.x) / x.groups;
  const int head = rest / x.row_blocks, b = head / p.heads, h = head % p.heads;
  const int row = rest % x.row_blocks * kTile;
  const int tile_end = static_cast<int>(int64_t{x.tiles} * (group + 1) / x.groups);
  int tile = static_cast<int>(int64_t{x.tiles} * group / x.groups);
  const int key_end = visible_keys(p, b);
  const Rows<const T> q = x.q.at(b, h), k = x.k.at(b, h);

  const int chunks = in_registers ? 1 : x.chunks;
  const int steps = (tile_end - tile) * chunks;
  const auto read_step = [&](int step) {
    if (step < steps) {
      const int first = row - p.left + (tile + step / chunks) * kTile;
      if (first < key_end && first + kTile > 0) {
        const uint32_t to = keys + static_cast<uint32_t>(step % kStages * kSquareBytes);
        const int feature = step % chunks * kTile;
        if constexpr (columns) {
          read_square(to, k, feature, p.n, first);
        } else {
          read_square(to, k, first, key_end, feature);
        }
      }
    }
    mma::end_group();
  };
  // `tile` stays the first one while steps are read.
  for (int c = 0; c < chunks; ++c) {
    read_square(queries + static_cast<uint32_t>(c * kSquareBytes), q, row, p.m, c * kTile);
  }
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) read_step(step);

  const auto left = [&](uint32_t(&a)[2][4], int chunk, int depth) {
    const uint32_t place = X::left(queries + static_cast<uint32_t>(chunk * kSquareBytes));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      mma::load_matrices(a[i], X::moved(place, part_row() + 16 * i, 2 * depth));
    }
  };
  uint32_t loaded[in_registers ? 4 : 1][2][4];
  PartSums sum;
  for (int step = 0; step < steps; ++step) {
    const int chunk = step % chunks, now = tile + step / chunks;
    wait_for_group();
    __syncthreads();  // the step's square is there, and that of the last step is free
    read_step(step + kStages - 1);
    if constexpr (in_registers) {
      if (step == 0) {
#pragma unroll
        for (int depth = 0; depth < 4; ++depth) left(loaded[depth], 0, depth);
      }
    }
    if (chunk == 0) sum = {};
    const int key = row - p.left + now * kTile;
    // The slots of this warp's part begin with those of its last row.
    const int slot = now * kTile + part_column() - part_row() - (kPart - 1);
    if (slot >= p.slots || slot + 2 * kPart - 1 <= 0) continue;
    if (key < key_end && key + kTile > 0) {
      const uint32_t square = keys + static_cast<uint32_t>(step % kStages * kSquareBytes);
      const uint32_t place = columns ? X::right_rows(square) : X::right(square);
#pragma unroll
      for (int depth = 0; depth < 4; ++depth) {
        uint32_t a[2][4];
        if constexpr (!in_registers) left(a, chunk, depth);
#pragma unroll
        for (int j = 0; j < kPart; j += 16) {
          uint32_t right[4];
          if constexpr (columns) {
            mma::load_transposed(right, X::moved(place, 16 * depth, (part_column() + j) / 8));
          } else {
            mma::load_matrices(right, X::moved(place, part_column() + j, 2 * depth));
          }
          if constexpr (in_registers) {
            multiply<T>(sum, loaded[depth], right, j / 8);
          } else {
            multiply<T>(sum, a, right, j / 8);
          }
        }
      }
    }
    if (chunk + 1 < chunks) continue;
    if (key < 0 || key + kTile > key_end) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int at = key + part_column() + 8 * j + lane() % 4 * 2 + e % 2;
          if (at >= 0 && at < key_end) continue;
          sum.of[0][j][e] = sum.of[1][j][e] = x.fill;
        }
      }
    }
    Staged<T>::put(part, sum);
    store<kWidth>(part, x.a, p, head, row, now);
  }
}

template <class T>
void scores(KernelContext& context, View q, View k, const kernels::WindowParams& window,
            double fill, View a) {
  constexpr int64_t kWantedBlocks = 1024;
  const WindowDims dims(q, window);
  const int64_t heads = q.shape[0] * q.shape[1], blocks = heads * dims.blocks(kTile);
  const int64_t tiles = dims.tiles(kTile);
  const int64_t groups = std::clamp<int64_t>(kWantedBlocks / blocks, 1, tiles);
  const int chunks = (dims.n + kTile - 1) / kTile;
  // Element (r, c) of a tile is number r (slots - 1) + c after a multiple of 64, of each head.
  const int64_t odd = (dims.slots - 1) | (heads > 1 ? int64_t{dims.m} * dims.slots : 0);
  const bool by_columns = odd % 8 == 0 && has_key_columns(k, window);
  const Readable queries(context, q, has_unit_rows(q));
  const Readable keys(context, k, by_columns || has_unit_rows(k));
  const Scores<T> call{dims,
                       rows_of<const T>(queries.view()),
                       by_columns ? key_columns<T>(k) : rows_of<const T>(keys.view()),
                       a.ptr<T>(),
                       static_cast<float>(fill),
                       static_cast<int>(dims.blocks(kTile)),
                       static_cast<int>(tiles),
                       static_cast<int>(groups),
                       chunks};
  const auto run = [&]<bool in_registers, bool columns, int kWidth>() {
    const int most =
        in_registers ? shared_bytes<T>(1)
                     : std::min(shared_bytes<T>(kMostChunks), shared_memory_limit(context.device));
    launch<scores_kernel<T, in_registers, columns, kWidth>>(
        context, blocks * groups, kBlock, SharedBytes(shared_bytes<T>(chunks), most), call);
  };
  const auto with_width = [&]<bool in_registers>() {
    if (by_columns) return run.template operator()<in_registers, true, 8>();
    if (odd % 8 == 0) return run.template operator()<in_registers, false, 8>();
    if (odd % 2 == 0) return run.template operator()<in_registers, false, 2>();
    run.template operator()<in_registers, false, 1>();
  };
  if (chunks == 1) return with_width.template operator()<true>();
  with_width.template operator()<false>();
}

}  // namespace
}  // namespace window

bool window_scores_mma_takes(View q) {
  const int64_t chunks = (q.shape[3] + window::kTile - 1) / window::kTile;
  return chunks > 0 && chunks <= window::kMostChunks &&
         window::shared_bytes<__half>(chunks) <= shared_memory_limit(q.device);
}

void window_scores_mma(KernelContext& context, View q, View k, const kernels::WindowParams& window,
                       double fill, View a) {
  dispatch_device_halves(a.dtype, "window_matmul", [&]<class T>(TypeTag<T>) {
    window::scores<T>(context, q, k, window, fill, a);
  });
}

}  // namespace sash::cuda
