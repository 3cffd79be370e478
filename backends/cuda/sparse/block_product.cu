#include "block_sparse.h"
#include "block_tiles.cuh"

/// y = a W' + bias and y = a W on tensor cores. A block of threads computes a tile of y, kRows
/// tokens by one block row (column) of W: it takes the line's blocks one after the other, 32 of
/// their depth at a time, from a ring in shared memory. Lines of most blocks come first.
namespace sash::cuda::sparse {
namespace {

/// The shape of a tile of y: warps of 32 rows and up to 64 columns.
template <int kBlock>
struct Tile {
  static constexpr int kColumns = kBlock, kWarpColumns = kBlock < 64 ? kBlock : 64;
  static constexpr int kAcross = kColumns / kWarpColumns, kDown = kWarps / kAcross;
  static constexpr int kRows = 32 * kDown;
  static constexpr uint32_t kLeftBytes = kRows * kDepth * 2, kRightBytes = kColumns * kDepth * 2;
  static constexpr uint32_t kStageBytes = kLeftBytes + kRightBytes;
  /// The row length in bytes of a warp's part of y in shared memory. 16 bytes of padding prevent
  /// bank conflicts.
  static constexpr int kOutBytes = 2 * kWarpColumns + 16;
  static constexpr uint32_t kBytes = kStages * kStageBytes;
  static_assert(kWarps * 32 * kOutBytes <= static_cast<int>(kBytes));
};

/// Copies steps of kDepth of the line's depth.
template <class T, int kBlock, bool kTransposed>
class Loader {
  using X = Tile<kBlock>;
  static constexpr int kPerStep = kBlock < kDepth ? kDepth / kBlock : 1;  // blocks in a step
  static constexpr int kLeft = X::kRows * 4 / kBlockThreads;              // chunks of a thread
  static constexpr int kRight = (X::kColumns * 4 + kBlockThreads - 1) / kBlockThreads;

 public:
  __device__ Loader(const ProductParams<T>& p, int line, int64_t first_row, uint32_t shared)
      : p_(p), shared_(shared), first_(p.lines.starts[line]) {
    blocks_ = p.lines.starts[line + 1] - first_;
    const int row = static_cast<int>(threadIdx.x) / 4;
    from_ = p.a + (first_row + row) * p.a_width;
    left_ = p.rows - first_row - row;
    find(0);
  }

  __device__ int steps() const { return (blocks_ * kBlock + kDepth - 1) / kDepth; }

  /// Steps are loaded in order.
  __device__ void operator()(int step, int stage) {
    const int thread = static_cast<int>(threadIdx.x);
    const uint32_t left = shared_ + static_cast<uint32_t>(stage) * X::kStageBytes;
    const uint32_t right = left + X::kLeftBytes;
    {
      const int row = thread / 4, chunk = thread % 4;
      const int part = 8 * chunk / kBlock % kPerStep, at = (step * kDepth + 8 * chunk) % kBlock;
      const bool there = pick(position_, part) >= 0;
      const T* const from = from_ + static_cast<int64_t>(pick(other_, part)) * kBlock + at;
#pragma unroll
      for (int i = 0; i < kLeft; ++i) {
        const bool inside = there && 64 * i < left_;
        mma::copy_async(chunk_at<4>(left, row + 64 * i, chunk),
                        inside ? from + 64 * i * p_.a_width : p_.a, inside);
      }
    }
#pragma unroll
    for (int i = 0; i < kRight; ++i) {
      const int index = thread + i * kBlockThreads;
      if (X::kColumns * 4 % kBlockThreads != 0 && index >= X::kColumns * 4) break;
      if constexpr (kTransposed) {  // rows of the block are columns of y
        const int column = index / 4, chunk = index % 4;
        copy_right(chunk_at<4>(right, column, chunk), 8 * chunk / kBlock % kPerStep, column,
                   (step * kDepth + 8 * chunk) % kBlock);
      } else {
        constexpr int chunks = kBlock / 8;
        const int depth = index / chunks, chunk = index % chunks;
        copy_right(chunk_at<chunks>(right, depth, chunk), depth / kBlock % kPerStep,
                   (step * kDepth + depth) % kBlock, 8 * chunk);
      }
    }
    find(step + 1);
  }

 private:
  /// x[part], in a register.
  static __device__ int pick(const int (&x)[kPerStep], int part) {
    return kPerStep > 1 && part > 0 ? x[kPerStep - 1] : x[0];
  }

  /// The blocks of a step, one step ahead of their use.
  __device__ void find(int step) {
#pragma unroll
    for (int i = 0; i < kPerStep; ++i) {
      const int e = step * kDepth / kBlock + i;
      const bool there = e < blocks_;
      other_[i] = there ? p_.lines.other[first_ + e] : 0;
      position_[i] = there ? p_.lines.positions[first_ + e] : -1;
    }
  }

  __device__ void copy_right(uint32_t to, int part, int row, int column) const {
    const int position = pick(position_, part);
    const bool inside = position >= 0;
    const int64_t at =
        static_cast<int64_t>(inside ? position : 0) * kBlock * kBlock + row * kBlock + column;
    mma::copy_async(to, p_.data + at, inside);
  }

  const ProductParams<T>& p_;
  uint32_t shared_;
  int first_, blocks_;
  const T* from_;
  int64_t left_;  ///< rows from this thread's first on
  int other_[kPerStep], position_[kPerStep];
};

/// A warp's sums [32, kWarpColumns].
template <class T, int kBlock, bool kTransposed>
struct Sums {
  using X = Tile<kBlock>;
  static constexpr int kPairs = X::kWarpColumns / 16;
  float sum[2][2 * kPairs][4] = {};

  __device__ void multiply(uint32_t stage, int row, int column, int lane) {
    const uint32_t right = stage + X::kLeftBytes;
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) load_left<4>(a[i], stage, row + 16 * i, 2 * k, lane);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        uint32_t b[4];
        if constexpr (kTransposed) {
          load_right<4>(b, right, column + 16 * j, 2 * k, lane);
        } else {
          load_right_transposed<kBlock / 8>(b, right, 16 * k, column / 8 + 2 * j, lane);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma::Operand<T>::multiply(sum[i][2 * j], a[i], b[0], b[1]);
          mma::Operand<T>::multiply(sum[i][2 * j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  /// Through this warp's part of shared memory, so that rows leave in 16-byte words.
  __device__ void write(unsigned char* shared, const T* bias, T* y, int64_t y_width, int64_t left,
                        int lane) const {
#pragma unroll
    for (int j = 0; j < 2 * kPairs; ++j) {
      const int column = 8 * j + lane % 4 * 2;
      const float low = bias ? static_cast<float>(bias[column]) : 0;
      const float high = bias ? static_cast<float>(bias[column + 1]) : 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const c = &sum[i / 2][j][i % 2 * 2];
        const int row = 8 * i + lane / 4;
        *reinterpret_cast<uint32_t*>(shared + row * X::kOutBytes + 2 * column) =
            mma::Operand<T>::pack(c[0] + low, c[1] + high);
      }
    }
    __syncwarp();
    constexpr int chunks = X::kWarpColumns / 8, rows = 32 / chunks;
    const int chunk = lane % chunks;
#pragma unroll
    for (int i = 0; i < 32 / rows; ++i) {
      const int row = i * rows + lane / chunks;
      if (row >= left) break;
      *reinterpret_cast<uint4*>(y + row * y_width + 8 * chunk) =
          *reinterpret_cast<const uint4*>(shared + row * X::kOutBytes + 16 * chunk);
    }
  }
};

template <class T, int kBlock, bool kTransposed>
__global__ void __launch_bounds__(kBlockThreads, 2)
    product_kernel(const __grid_constant__ ProductParams<T> p) {
  using X = Tile<kBlock>;
  extern __shared__ __align__(128) unsigned char shared[];
  const int64_t lines = p.lines.count;
  const int line = p.lines.order[blockIdx.x % lines];
  const int64_t first_row = static_cast<int64_t>(blockIdx.x / lines) * X::kRows;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = warp % X::kDown * 32, column = warp / X::kDown * X::kWarpColumns;
  const uint32_t address = mma::shared_address(shared);

  Loader<T, kBlock, kTransposed> load(p, line, first_row, address);
  Sums<T, kBlock, kTransposed> sums;
  run_stages(load.steps(), load, [&](int stage) {
    sums.multiply(address + static_cast<uint32_t>(stage) * X::kStageBytes, row, column, lane);
  });
  const int64_t out = static_cast<int64_t>(line) * kBlock + column;
  sums.write(shared + warp * 32 * X::kOutBytes, p.bias ? p.bias + out : nullptr,
             p.y + (first_row + row) * p.y_width + out, p.y_width, p.rows - first_row - row, lane);
}

template <class T, int kBlock, bool kTransposed>
void launch(const KernelContext& context, const ProductCall& call) {
  using X = Tile<kBlock>;
  const ProductParams<T> params(call);
  launch_large_kernel(context, ceil_div(params.rows, X::kRows) * params.lines.count, kBlockThreads,
                      X::kBytes, product_kernel<T, kBlock, kTransposed>, params);
}

}  // namespace

void multiply_halves(const KernelContext& context, const ProductCall& call) {
  dispatch_device_halves(call.y.dtype, "block_sparse_matmul", [&]<class T>(TypeTag<T>) {
    with_product<16, 32, 64, 128>(call, [&](auto block, auto transposed) {
      launch<T, block(), transposed()>(context, call);
    });
  });
}

}  // namespace sash::cuda::sparse
