#pragma once

#include "../elementwise/strided.cuh"

/// Copies between layouts whose innermost axes differ, through square tiles in shared memory, so
/// that both sides are read and written in whole lines.
namespace sash::cuda {

inline constexpr int kTile = 64;

/// The axes of a tile: `down` is the innermost axis of x, `across` is the innermost axis of y.
/// `others` walks over all other axes.
struct Transposition {
  Walk<2> others;  // of y and x
  int64_t down = 0, across = 0;
  int64_t y_step = 0, x_step = 0;  ///< of y along `down`, of x along `across`
  int64_t tiles_down = 0, tiles_across = 0;
};

template <class Word>
__global__ void __launch_bounds__(kThreads)
    transpose_tiles(const __grid_constant__ Transposition t, const Word* x, Word* y) {
  constexpr int kLines = kThreads / kTile;
  // Lines have a word of padding, so that neighbours in a column are in different banks.
  __shared__ Word tile[kTile][kTile + (sizeof(Word) < 4 ? 4 / sizeof(Word) : 1)];
  const int64_t tiles = t.tiles_down * t.tiles_across, outer = blockIdx.x / tiles;
  const int64_t inner = blockIdx.x - outer * tiles, j = inner / t.tiles_down;
  const int64_t down = (inner - j * t.tiles_down) * kTile, across = j * kTile;
  int64_t at[2];
  t.others.find(outer, 1, at);
  const int place = static_cast<int>(threadIdx.x) % kTile;
  const int first = static_cast<int>(threadIdx.x) / kTile;
  const Word* const from = x + at[1] + across * t.x_step + down + place;
#pragma unroll
  for (int line = first; line < kTile; line += kLines) {
    if (across + line < t.across && down + place < t.down) {
      tile[line][place] = from[line * t.x_step];
    }
  }
  __syncthreads();
  Word* const to = y + at[0] + down * t.y_step + across + place;
#pragma unroll
  for (int line = first; line < kTile; line += kLines) {
    if (down + line < t.down && across + place < t.across) to[line * t.y_step] = tile[place][line];
  }
}

/// Copies x to y if their innermost axes differ and are long enough. Returns whether it did.
template <class Word>
bool copy_transposed(const KernelContext& context, View x, View y) {
  constexpr int64_t kShortest = 16;
  Transposition t{.others = make_walk<2>({&y, &x}, Order::memory)};
  Walk<2>& walk = t.others;
  const int last = walk.rank - 1;
  if (walk.count == 0 || walk.stride[0][last] != 1 || walk.stride[1][last] <= 1) return false;
  int axis = last - 1;
  while (axis >= 0 && walk.stride[1][axis] != 1) --axis;
  if (axis < 0 || walk.extent[axis] < kShortest || walk.extent[last] < kShortest) return false;
  t.down = walk.extent[axis];
  t.across = walk.extent[last];
  t.y_step = walk.stride[0][axis];
  t.x_step = walk.stride[1][last];
  t.tiles_down = ceil_div(t.down, kTile);
  t.tiles_across = ceil_div(t.across, kTile);
  walk.count /= t.down * t.across;
  // Makes both axes single elements. `axis` stays in its place, the last axis becomes the walk's
  // vectors.
  walk.extent[axis] = walk.extent[last] = walk.vectors = 1;
  const int64_t blocks = walk.count * t.tiles_down * t.tiles_across;
  if (blocks > INT32_MAX) return false;
  launch_kernel(context, blocks, kThreads, 0, transpose_tiles<Word>, t, x.ptr<Word>(),
                y.ptr<Word>());
  return true;
}

}  // namespace sash::cuda
