#pragma once

#include <algorithm>
#include <cstdint>

#include "../shape/convert.h"
#include "micro_kernel.h"
#include "tiles.h"

/// The innermost parts of bfloat16 products, of processors with AVX-512 and more.
///
/// A *pair* is two neighbours along the depth. A *tile* is 16 x 16 pairs, 1 KiB: of A 16 rows with
/// 32 elements each, of B 16 pairs of rows with 16 columns each. A *step* is two tiles, which have
/// 32 rows or columns and 32 elements of the depth.
#if defined(__x86_64__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define SASH_BFLOAT16_BLOCKS 1

namespace sash::cpu::bfloat16_blocks {

using Pair = uint32_t;
inline constexpr int64_t kSide = 16, kTile = kSide * kSide, kBlock = 2 * kSide, kStep = 2 * kTile;

/// The shapes of the eight tile registers.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

[[gnu::target("amx-tile")]] inline void set_tile_shapes() {
  static constexpr TileShapes kShapes;
  _tile_loadconfig(&kShapes);
}
[[gnu::target("amx-tile")]] inline void release_tiles() { _tile_release(); }

/// A matrix as lines along the depth: the rows of A, or the columns of B.
struct Lines {
  const bfloat16* data;
  int64_t line_stride, depth_stride, lines, depth;  ///< one of the strides is 1

  const bfloat16* at(int64_t line, int64_t k) const {
    return data + line * line_stride + k * depth_stride;
  }
};

/// Packs the tile of the lines from `line` on and the elements from `k` on, with zeros past the
/// ends: pair (i, p) of line i at to[16 i + p] (`by_line`), else at to[16 p + i].
inline void pack_tile(const Lines& x, int64_t line, int64_t k, bool by_line, Pair* to) {
  const int64_t lines = std::clamp<int64_t>(x.lines - line, 0, kSide);
  const int64_t depth = std::min(x.depth - k, kBlock);
  Lines from{x.at(line, k), x.line_stride, x.depth_stride, lines, depth};
  bfloat16 edge[kSide * kBlock];
  const bool whole = lines == kSide && depth == kBlock, along = x.depth_stride == 1;
  if (!whole) {
    std::fill_n(edge, kSide * kBlock, bfloat16{});
    for (int64_t i = 0; i < lines; ++i) {
      for (int64_t j = 0; j < depth; ++j) {
        edge[along ? i * kBlock + j : j * kSide + i] = *from.at(i, j);
      }
    }
    from = {edge, along ? kBlock : 1, along ? 1 : kSide, kSide, kBlock};
  }
  const bool turned = along != by_line;
  Pair square[kTile];
  Pair* const rows = turned ? square : to;
  for (int64_t i = 0; i < kSide; ++i) {
    __m512i row;
    if (along) {
      row = _mm512_loadu_si512(from.at(i, 0));
    } else {
      const auto wide = [&](int64_t j) {
        const auto* const sixteen = reinterpret_cast<const __m256i*>(from.at(0, j));
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(sixteen));
      };
      row = _mm512_or_si512(wide(2 * i), _mm512_slli_epi32(wide(2 * i + 1), 16));
    }
    _mm512_storeu_si512(rows + i * kSide, row);
  }
  if (!turned) return;
  MicroKernel<float>::transpose(reinterpret_cast<const float*>(rows), kSide, kSide - 1,
                                reinterpret_cast<float*>(to), kSide);
}

/// Where blocks of a result go: C = alpha block + beta C, or alpha block + bias.
struct Result {
  void* data;
  bool is_float;
  int64_t row_stride, rows, cols;
  float alpha, beta;
  const bfloat16* bias;  ///< or null
};

inline __m512 floats_of(__m256i bfloat16s) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bfloat16s), 16));
}

/// Writes rows [first, past) of the block [32, 32] at row i and column j.
[[gnu::target("avx512bf16")]] inline void write_rows(const Result& to, const float* block,
                                                     int64_t i, int64_t j, int64_t first,
                                                     int64_t past) {
  past = std::min(to.rows - i, past);
  const __m512 alpha = _mm512_set1_ps(to.alpha), beta = _mm512_set1_ps(to.beta);
  for (int64_t half = 0; half < 2; ++half, j += kSide) {
    const int64_t cols = std::clamp<int64_t>(to.cols - j, 0, kSide);
    const auto mask = static_cast<__mmask16>((1U << cols) - 1);
    __m512 start = _mm512_setzero_ps();
    if (to.bias) start = floats_of(_mm256_maskz_loadu_epi16(mask, to.bias + j));
    for (int64_t row = first; row < past; ++row) {
      const int64_t at = (i + row) * to.row_stride + j;
      float* const wide = static_cast<float*>(to.data) + at;
      bfloat16* const narrow = static_cast<bfloat16*>(to.data) + at;
      if (to.beta != 0) {
        const __m512 c = to.is_float ? _mm512_maskz_loadu_ps(mask, wide)
                                     : floats_of(_mm256_maskz_loadu_epi16(mask, narrow));
        start = _mm512_mul_ps(beta, c);
      }
      const __m512 sum = _mm512_loadu_ps(block + row * kBlock + half * kSide);
      const __m512 value = _mm512_fmadd_ps(alpha, sum, start);
      if (to.is_float) {
        _mm512_mask_storeu_ps(wide, mask, value);
      } else {
        _mm256_mask_storeu_epi16(narrow, mask, (__m256i)_mm512_cvtneps_pbh(value));
      }
    }
  }
}

/// A finished block, or none.
struct Finished {
  const Result* to = nullptr;
  const float* block = nullptr;
  int64_t i = 0, j = 0;

  [[gnu::target("avx512bf16")]] void write(int64_t first, int64_t past) const {
    if (to) write_rows(*to, block, i, j, first, past);
  }
};

/// c [32, 32] = (add ? c : 0) + A B, of `steps` steps. Writes another block meanwhile.
using Multiply = void (*)(const Pair* a, const Pair* b, int64_t steps, bool add, float* c,
                          const Finished& other);

[[gnu::target("amx-tile,amx-bf16,avx512bf16")]] inline void multiply_amx(
    const Pair* a, const Pair* b, int64_t steps, bool add, float* c, const Finished& other) {
  constexpr int kLine = 4 * kBlock;  // bytes
  float* const below = c + kSide * kBlock;
  if (add) {
    _tile_loadd(0, c, kLine);
    _tile_loadd(1, c + kSide, kLine);
    _tile_loadd(2, below, kLine);
    _tile_loadd(3, below + kSide, kLine);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const int64_t rows = pieces(kBlock, steps);
  for (int64_t row = 0; steps > 0; --steps, a += kStep, b += kStep, row += rows) {
    // Loads lie between products, which hide them. B does not displace A in the L1 cache.
    _tile_loadd(4, a, 64);
    _tile_stream_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stream_loadd(7, b + kTile, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kTile, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    other.write(row, std::min(row + rows, kBlock));
  }
  _tile_stored(0, c, kLine);
  _tile_stored(1, c + kSide, kLine);
  _tile_stored(2, below, kLine);
  _tile_stored(3, below + kSide, kLine);
}

[[gnu::target("avx512bf16")]] inline void multiply_avx512(const Pair* a, const Pair* b,
                                                          int64_t steps, bool add, float* c,
                                                          const Finished& other) {
  other.write(0, kBlock);
  constexpr int kRows = 8;
  for (int64_t row = 0; row < kBlock; row += kRows, c += kRows * kBlock) {
    __m512 sum[kRows][2];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      sum[i][0] = add ? _mm512_loadu_ps(c + i * kBlock) : _mm512_setzero_ps();
      sum[i][1] = add ? _mm512_loadu_ps(c + i * kBlock + kSide) : _mm512_setzero_ps();
    }
    const Pair *left = a + row * kSide, *right = b;
    for (int64_t step = 0; step < steps; ++step, left += kStep, right += kStep) {
      for (int64_t k = 0; k < kSide; ++k) {
        const auto first = (__m512bh)_mm512_loadu_si512(right + k * kSide);
        const auto second = (__m512bh)_mm512_loadu_si512(right + kTile + k * kSide);
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
          const auto x = (__m512bh)_mm512_set1_epi32(static_cast<int>(left[i * kSide + k]));
          sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, first);
          sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, second);
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      _mm512_storeu_ps(c + i * kBlock, sum[i][0]);
      _mm512_storeu_ps(c + i * kBlock + kSide, sum[i][1]);
    }
  }
}

}  // namespace sash::cpu::bfloat16_blocks

#else
#define SASH_BFLOAT16_BLOCKS 0
#endif
