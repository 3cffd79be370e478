#include "block_sparse.h"
#include "block_tiles.cuh"
#include "sampled_shares.cuh"

/// Blocks of a' b on tensor cores. A group, up to 256 / block neighbours of a block row, shares the
/// tokens of a that its row needs.
namespace sash::cuda::sparse {
namespace {

template <class T>
struct Params : SampledShares<T> {
  const T* a;
  const T* b;
  int64_t a_width, b_width;
};

/// The shape of a group's result: warps of up to 32 rows and kWarpColumns columns.
template <int kBlock>
struct Tile {
  static constexpr int kGroup = static_cast<int>(kernels::blocks_per_group(kBlock));
  static constexpr int kColumns = kBlock * kGroup;
  static constexpr int kWarpRows = kBlock < 32 ? kBlock : 32, kDown = kBlock / kWarpRows;
  static constexpr int kWarpColumns = kColumns / (kWarps / kDown);
  static constexpr int kChunks = kBlock / 8;  // of a row of a block
  static constexpr uint32_t kBlockBytes = kDepth * kBlock * 2;
  static constexpr uint32_t kStageBytes = kBlockBytes * (1 + kGroup);
  static constexpr uint32_t kBytes = kStages * kStageBytes;
  static constexpr int kElements = kBlock * kColumns;
};

/// Copies kDepth tokens of a's block column and of those of b: tiles [kDepth][kBlock].
template <class T, int kBlock>
class Loader {
  using X = Tile<kBlock>;
  static constexpr int kLeft = (kDepth * X::kChunks + kBlockThreads - 1) / kBlockThreads;
  static constexpr int kRight = kDepth * X::kChunks * X::kGroup / kBlockThreads;

 public:
  __device__ Loader(const Params<T>& p, const kernels::BlockGroup& group, int64_t first_token,
                    uint32_t shared)
      : shared_(shared),
        left_(static_cast<int>(min(p.tokens - first_token, int64_t{1} << 30))),
        a_width_(p.a_width),
        b_width_(p.b_width) {
    const T* const a = p.a + first_token * p.a_width + group.row * int64_t{kBlock};
#pragma unroll
    for (int i = 0; i < kLeft; ++i) a_[i] = a + token(i) * p.a_width + 8 * chunk(i);
#pragma unroll
    for (int i = 0; i < kRight; ++i) {
      const int64_t column = block(i) < group.count ? p.columns[group.first + block(i)] : -1;
      const T* const b = p.b + (first_token + token(i)) * p.b_width + column * kBlock;
      b_[i] = column < 0 ? nullptr : b + 8 * chunk(i);
    }
  }

  /// Steps are loaded in order.
  __device__ __forceinline__ void operator()(int, int stage) {
    const uint32_t left = shared_ + static_cast<uint32_t>(stage) * X::kStageBytes;
#pragma unroll
    for (int i = 0; i < kLeft; ++i) {
      if (X::kChunks * kDepth % kBlockThreads != 0 && index(i) >= X::kChunks * kDepth) break;
      copy(left, i, a_[i], a_width_);
    }
#pragma unroll
    for (int i = 0; i < kRight; ++i) {
      if (!b_[i]) break;
      copy(left + static_cast<uint32_t>(1 + block(i)) * X::kBlockBytes, i, b_[i], b_width_);
    }
    left_ -= kDepth;
  }

 private:
  /// Number i of this thread's chunks, and where in the step it is.
  static __device__ int index(int i) { return static_cast<int>(threadIdx.x) + i * kBlockThreads; }
  static __device__ int block(int i) { return index(i) / (kDepth * X::kChunks); }
  static __device__ int token(int i) { return index(i) / X::kChunks % kDepth; }
  static __device__ int chunk(int i) { return index(i) % X::kChunks; }

  __device__ __forceinline__ void copy(uint32_t tile, int i, const T*& from, int64_t width) const {
    // Past the last token nothing is read, but the address has to be one.
    mma::copy_async(chunk_at<X::kChunks>(tile, token(i), chunk(i)), from, token(i) < left_);
    if (left_ > kDepth) from += kDepth * width;
  }

  uint32_t shared_;
  int left_;  ///< tokens from the next step on
  int64_t a_width_, b_width_;
  const T* a_[kLeft];
  const T* b_[kRight];
};

/// A warp's sums [kWarpRows, kWarpColumns].
template <class T, int kBlock>
struct Sums {
  using X = Tile<kBlock>;
  static constexpr int kRows = X::kWarpRows / 16, kPairs = X::kWarpColumns / 16;
  float sum[kRows][2 * kPairs][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * kPairs; ++j) {
#pragma unroll
        for (float& x : sum[i][j]) x = 0;
      }
    }
  }

  __device__ __forceinline__ void multiply(uint32_t stage, int row, int column, int lane) {
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      uint32_t a[kRows][4];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        load_left_transposed<X::kChunks>(a[i], stage, 16 * k, row / 8 + 2 * i, lane);
      }
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int at = column + 16 * j;
        const uint32_t tile = stage + static_cast<uint32_t>(1 + at / kBlock) * X::kBlockBytes;
        uint32_t b[4];
        load_right_transposed<X::kChunks>(b, tile, 16 * k, at % kBlock / 8, lane);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          mma::Operand<T>::multiply(sum[i][2 * j], a[i], b[0], b[1]);
          mma::Operand<T>::multiply(sum[i][2 * j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  /// Calls `store(row, column, two neighbours)` for all sums.
  template <class Store>
  __device__ __forceinline__ void each(int row, int column, int lane, Store&& store) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * kPairs; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          store(row + 16 * i + 8 * half + lane / 4, column + 8 * j + lane % 4 * 2,
                make_float2(sum[i][j][2 * half], sum[i][j][2 * half + 1]));
        }
      }
    }
  }
};

template <class T, int kBlock>
__global__ void __launch_bounds__(kBlockThreads, 2)
    sampled_kernel(const __grid_constant__ Params<T> p) {
  using X = Tile<kBlock>;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t address = mma::shared_address(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = warp % X::kDown * X::kWarpRows, column = warp / X::kDown * X::kWarpColumns;
  Sums<T, kBlock> sums;
  for (Segment s = p.first_segment(); s.steps > 0; s = p.next(s)) {
    const kernels::BlockGroup group = p.groups[s.group];
    Loader<T, kBlock> load(p, group, s.first * kDepth, address);
    sums.clear();
    const bool idle = column / kBlock >= group.count;
    run_stages(s.steps, load, [&](int stage) {
      if (!idle) {
        sums.multiply(address + static_cast<uint32_t>(stage) * X::kStageBytes, row, column, lane);
      }
    });
    if (idle) continue;
    if (s.steps == p.steps) {
      sums.each(row, column, lane, [&](int i, int j, float2 two) {
        if (j / kBlock >= group.count) return;
        const int64_t position = p.positions[group.first + j / kBlock];
        T* const to = p.data + position * kBlock * kBlock + i * kBlock + j % kBlock;
        *reinterpret_cast<uint32_t*>(to) = mma::Operand<T>::pack(two.x, two.y);
      });
    } else {
      float* const part = p.part(s, X::kElements);
      sums.each(row, column, lane, [&](int i, int j, float2 two) {
        *reinterpret_cast<float2*>(part + i * X::kColumns + j) = two;
      });
    }
  }
}

template <class T, int kBlock>
void launch(const KernelContext& context, Params<T> p) {
  using X = Tile<kBlock>;
  const Workspace parts(context, p.deal(kDepth) * X::kElements * int64_t{sizeof(float)});
  p.parts = parts.ptr<float>();
  launch_large_kernel(context, p.count(), kBlockThreads, X::kBytes, sampled_kernel<T, kBlock>, p);
  add_parts<T, kBlock>(context, p);
}

}  // namespace

void sample_halves(const KernelContext& context, View a, View b,
                   const kernels::BlockPatternView& pattern, View data) {
  dispatch_device_halves(data.dtype, "sampled_matmul", [&]<class T>(TypeTag<T>) {
    const Params<T> params{
        {pattern, a.shape[0], data}, a.ptr<const T>(), b.ptr<const T>(), a.shape[1], b.shape[1]};
    with_block(pattern.block, [&](auto block) { launch<T, block()>(context, params); });
  });
}

}  // namespace sash::cuda::sparse
