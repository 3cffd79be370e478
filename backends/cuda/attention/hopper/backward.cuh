#pragma once

#include "../common/scores.cuh"
#include "call.cuh"
#include "mainloop.cuh"

/// What the two backward kernels share. Each recomputes P from the saved log-sum-exp, and dS, in
/// registers. So every sum has one owner and one order.
namespace sash::cuda::hopper {

/// Tiles of `width` features; `rows` blocks of 64 queries or keys a work tile, each with `split`
/// groups; one block of the other axis a step. Ring `b` may have half as many stages as ring `a`.
/// `overlap` and `resident`: see ForwardShape.
template <class T, int width, int rows, int stages, int resident, bool overlap, int split = 1,
          int b_stages = stages>
struct BackwardShape : Groups<rows * split> {
  using Element = T;
  static constexpr int kWidth = width, kBlockRows = rows, kSplit = split, kBlocks = 1;
  static constexpr int kResident = resident, kOperands = 2, kWorkTiles = resident + 1;
  static constexpr int kStages = stages, kStagesOfB = b_stages;
  static constexpr bool kOverlap = overlap;
  using Rows = Tile<T, width, kBlock>;
  using Resident = Rows;
  using Streamed = Rows;
};

}  // namespace sash::cuda::hopper
