#pragma once

#include "../attention/hopper/launch.cuh"
#include "../hopper/tensor_map.h"
#include "../hopper/wgmma.cuh"
#include "hopper.cuh"

/// Operands of wgmma on Hopper: how chunks get to shared memory and to registers, and how results
/// get to memory.
namespace sash::cuda::delta {

/// Groups of warps that have states.
template <int kWidth>
inline constexpr int kHalves = kWidth / kChainWidth;

/// An operand of products, in shared memory: a panel, or a tile [64][kDepth] as TMA swizzles it.
template <int kDepth, bool kSwizzled = false>
class Matrix {
 public:
  __device__ explicit Matrix(const void* shared)
      : low_(hopper::uniform(shared_address(shared) >> 4)) {}

  /// Columns [16 k, 16 k + 16), of which rows are multiplied with rows.
  __device__ uint64_t rows(int k) const {
    if constexpr (kSwizzled) return descriptor(k / 4 * kSlab + k % 4 * 32, kSlab, kGroup);
    return descriptor(k * 256, 128, kDepth * 16);
  }
  /// Rows [16 k, 16 k + 16), of which columns are multiplied.
  __device__ uint64_t columns(int k) const {
    if constexpr (kSwizzled) return descriptor(k * 2 * kGroup, kSlab, kGroup);
    return descriptor(k * kDepth * 32, kDepth * 16, 128);
  }

 private:
  static constexpr int kSlab = kChunk * 128, kGroup = 8 * 128;

  /// `bytes` from the start; the distances of matrices.
  __device__ uint64_t descriptor(int bytes, int leading, int stride) const {
    const uint32_t high = static_cast<uint32_t>(stride >> 4) | (kSwizzled ? 1u << 30 : 0);
    return uint64_t{high} << 32 | (low_ + static_cast<uint32_t>(bytes >> 4 | leading >> 4 << 16));
  }

  uint32_t low_;
};

inline constexpr std::type_identity<Half> kHalf{};

/// x, of which the compiler knows nothing: else it computes all addresses that depend on a lane
/// before a loop, and lacks registers for them.
__device__ inline int hidden(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// sum = left right', or left right; += if `add`.
template <bool add, class Right, int n>
__device__ void multiply_by_rows(float (&sum)[32], const uint32_t (&left)[n], const Right& right) {
#pragma unroll
  for (int k = 0; k < n / 4; ++k) {
    hopper::detail::multiply_16<false>(kHalf, sum, left + 4 * k, right.rows(k), add || k > 0);
  }
}
template <bool add, class Right, int n>
__device__ void multiply_by_columns(float (&sum)[n], const uint32_t (&left)[16],
                                    const Right& right) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    hopper::detail::multiply_16<true>(kHalf, sum, left + 4 * k, right.columns(k), add || k > 0);
  }
}

/// This lane's row of the first four matrices of a panel [64][kDepth] in shared memory.
template <int kDepth>
__device__ uint32_t left_row(const void* panel) {
  const int from = lane() / 8;
  return shared_address(panel) +
         static_cast<uint32_t>(Panel<kDepth>::matrix(warp() % 4 * 2 + from % 2, from / 2) +
                               lane() % 8 * 16);
}
/// Stores columns [16 k, 16 k + 16) of a left operand to such a panel.
template <int n>
__device__ void store_left_16(uint32_t row, const uint32_t (&left)[n], int k) {
  const uint32_t* const x = left + 4 * k;
  hopper::store_matrices<false>(row + static_cast<uint32_t>(k * 256), x[0], x[1], x[2], x[3]);
}
/// Stores all of it, for products and copies that other warps start.
template <int n>
__device__ void share_left(unsigned char* to, const uint32_t (&left)[n]) {
  const uint32_t row = left_row<4 * n>(to);
#pragma unroll
  for (int k = 0; k < n / 4; ++k) store_left_16(row, left, k);
  hopper::fence_proxy_async();
}

/// Writes `count` rows and `columns` columns of sums [64][kColumns] of a group to `to`, rows
/// `stride` apart. Rows pass through shared memory, so that they are written whole; no other warp
/// uses the group's 128 kColumns bytes there.
template <int kColumns>
__device__ void write_rows(const float (&sum)[kColumns / 2], unsigned char* memory, Half* to,
                           int stride, int count, int columns) {
  // As slabs [64][64], in which the number of a 16-byte chunk is xored with row % 8.
  constexpr int slab = kChunk * 128, across = kColumns / 8, down = kWarp / across;
  const int own = hidden(lane()), first = warp() % 4 * 16;
  unsigned char* const rows = memory + first * 128;
  const uint32_t left = shared_address(rows + own % 16 * 128);
  const auto swap = static_cast<uint32_t>((own / 16 ^ own % 8) * 16);
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    uint32_t words[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) words[e] = pack({sum[8 * k + 2 * e], sum[8 * k + 2 * e + 1]});
    hopper::store_matrices<false>(
        left + static_cast<uint32_t>(k / 4 * slab) + (swap ^ static_cast<uint32_t>(k % 4 * 32)),
        words[0], words[1], words[2], words[3]);
  }
  __syncwarp();
  const int top = own / across, chunk = own % across;
  const unsigned char* const from = rows + top * 128 + chunk / 8 * slab;
  const int inside = 8 * chunk < columns ? count - first - top : 0;
  to += int64_t{first + top} * stride + 8 * chunk;
#pragma unroll
  for (int i = 0; i < 16; i += down) {
    const int place = i * 128 + ((chunk % 8 ^ top) * 16 ^ i % 8 * 16);
    if (i < inside) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from + place);
    }
    to += down * stride;
  }
}

/// Factors of the tokens that word i of a left operand has.
__device__ inline float2 factor_pair(const float* factors, int i) {
  return *reinterpret_cast<const float2*>(factors + i / 2 * 8 + lane() % 4 * 2);
}

/// The copies to a stage of what belongs to a chunk. One warp makes them.
template <int kWidth>
class StageCopies {
 public:
  static constexpr int kTile = kChunk * kWidth * 2;

  __device__ StageCopies(const Sizes& s, const Place& at, int64_t index, hopper::Barrier& full)
      : at_(at),
        index_(static_cast<int>(index)),
        full_(full),
        cut_(at.count < kChunk && at.first + at.count < s.length) {}

  /// Copies rows of the chunk, and zeros after them, if TMA would copy rows of the next text.
  __device__ void rows(const Rows<const Half>& x, unsigned char* to) const {
    if (!cut_) return;
    auto& tile = *reinterpret_cast<hopper::Tile<Half, kWidth, kChunk>*>(to);
#pragma unroll 4
    for (int i = lane(); i < kChunk * kWidth / 8; i += kWarp) {
      const int row = i / (kWidth / 8), chunk = i % (kWidth / 8);
      const Half* const from = x.data + (at_.first + row) * x.row + 8 * chunk;
      tile.at(row, chunk) =
          row < at_.count && 8 * chunk < x.width ? *reinterpret_cast<const uint4*>(from) : uint4{};
    }
  }
  /// All lanes arrive. Returns true on the one which then starts the copies: of so many `tiles`,
  /// and of `bytes` besides.
  __device__ bool begin(int bytes, int tiles) const {
    if (cut_) {
      hopper::fence_proxy_async();
      __syncwarp();
    }
    if (!hopper::elect_one()) {
      full_.arrive();
      return false;
    }
    full_.arrive_and_expect_tx(static_cast<uint32_t>(bytes + (cut_ ? 0 : tiles) * kTile));
    return true;
  }
  __device__ void tile(unsigned char (&to)[kTile], const CUtensorMap& map, int head) const {
    if (cut_) return;
    hopper::copy_rows(reinterpret_cast<hopper::Tile<Half, kWidth, kChunk>&>(to), 0, map, at_.first,
                      head, at_.b, full_);
  }
  /// A panel of the array `all`. `map` has rows of 1,024 bytes, from `first` on.
  template <int bytes>
  __device__ void panel(unsigned char (&to)[bytes], const CUtensorMap& map, const Half* first,
                        const Half* all) const {
    panel(to, map, first, all, index_);
  }
  template <int bytes>
  __device__ void panel(unsigned char (&to)[bytes], const CUtensorMap& map, const Half* first,
                        const Half* all, int64_t index) const {
    copy<bytes>(to, map, (all - first) / 512 + index * (bytes / 1024));
  }
  /// Tile `number` of an array whose map has rows of 1,024 bytes.
  __device__ void tile_at(unsigned char* to, const CUtensorMap& map, int64_t number) const {
    copy<kTile>(to, map, number * (kTile / 1024));
  }
  __device__ void factors(float* to, const CUtensorMap& map) const {
    hopper::copy_row(to, map, index_ * 2, full_);
  }

 private:
  template <int bytes>
  __device__ void copy(unsigned char* to, const CUtensorMap& map, int64_t row) const {
#pragma unroll
    for (int i = 0; i < bytes / 8192; ++i) {
      hopper::copy_row(to + i * 8192, map, static_cast<int>(row) + 8 * i, full_);
    }
  }

  const Place& at_;
  int index_;
  hopper::Barrier& full_;
  bool cut_;
};

/// Launches `kernel`, which waits for the previous kernel itself.
template <auto kernel, class... Arguments>
void launch_next(const KernelContext& context, int64_t blocks, int threads, int shared,
                 const Arguments&... arguments) {
  if (blocks == 0) return;
  const CardGuard guard(context.device.index);
  allow_shared_memory<kernel>(context.device.index, shared);
  launch_dependent(context, {.grid = blocks, .threads = threads, .shared = shared}, kernel,
                   arguments...);
}

}  // namespace sash::cuda::delta
