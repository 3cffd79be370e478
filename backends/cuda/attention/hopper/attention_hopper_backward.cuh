#pragma once

#include "../common/attention_fragments_scores.cuh"
#include "attention_hopper_call.cuh"
#include "attention_hopper_producer.cuh"

/// What the two backward kernels share: from the saved log-sum-exp both form, each for itself, the
/// probabilities P and the slopes dS of their scores. So every sum has one owner and one order, and
/// neither P nor dS leaves the registers.
namespace sash::cuda::hopper {

/// Heads of `width` features; `lines` blocks of 64 queries or keys, which meet one block of the
/// other axis a step; `per_sm` blocks of threads share a multiprocessor. A line has `split` groups.
/// Rings of `stages` buffers, but for the second of each pair of tiles, which may have half as
/// many.
template <class T, int width, int lines, int stages, int resident, int per_sm, bool chains,
          int split = 1, int b_stages = stages>
struct BackwardShape : Groups<lines * split, per_sm> {
  using Element = T;
  static constexpr int kWidth = width, kLines = lines, kSplit = split, kBlocks = 1;
  static constexpr int kResident = resident, kOperands = 2, kWorks = resident + 1;
  static constexpr int kStages = stages, kStagesOfB = b_stages;
  static constexpr bool kChains = chains;
  using Rows = Tile<T, width, kBlock>;
  using Resident = Rows;
  using Streamed = Rows;
};

}  // namespace sash::cuda::hopper
