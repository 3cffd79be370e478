#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "loader.h"

namespace sash::nn::data {

/// How sequences of several lengths become one batch.
enum class SequenceBatch {
  /// {inputs [B, T], targets [B, T], lengths int32 [B]} with T the longest of the batch. After its
  /// end, a sequence has the padding id as input and `kIgnoreIndex` as target. For attention with
  /// `AttentionMask::key_lengths(lengths)`.
  padded,
  /// {inputs [1, N], targets [1, N], cu_seqlens int32 [B + 1]}: sequences one after the other,
  /// without padding. For attention with `AttentionMask::packed(cu_seqlens)`.
  packed,
};

struct SequenceDatasetOptions {
  SequenceBatch form = SequenceBatch::padded;
  int64_t padding = 0;   ///< the id of padding
  int64_t multiple = 1;  ///< T is padded to a multiple of this, for fewer shapes
  std::optional<std::vector<int64_t>> labels{};  ///< the class of each sequence
};

/// Sequences of token ids of several lengths. For language models, the first n of n + 1 tokens are
/// inputs, and the last n are targets. With labels, one for each sequence, all tokens are inputs,
/// and a batch has the labels, int64 [B], instead of targets.
class SASH_API SequenceDataset : public Dataset {
 public:
  /// `cross_entropy` ignores targets of this value by default.
  static constexpr int64_t kIgnoreIndex = -100;

  /// `ValueError` for a sequence of fewer than two tokens (with labels, fewer than one), unless
  /// there are as many labels as sequences, or for a multiple below 1.
  explicit SequenceDataset(std::vector<std::vector<int64_t>> sequences,
                           SequenceDatasetOptions options = {});

  int64_t size() const override { return static_cast<int64_t>(sequences_.size()); }
  /// {inputs, targets}, int64 [n]; with labels {inputs, label}, a scalar.
  Batch get(int64_t index) const override;
  Batch batch(std::span<const int64_t> indices) const override;
  /// Inputs of each sequence.
  std::vector<int64_t> lengths() const;

 private:
  const std::vector<int64_t>& at(int64_t index) const;
  std::span<const int64_t> inputs_of(int64_t index) const;

  std::vector<std::vector<int64_t>> sequences_;
  SequenceDatasetOptions options_;
};

struct LengthGroupsOptions {
  int64_t batch = 1;    ///< samples in a batch
  int64_t group = 100;  ///< batches that are sorted by length together
  bool shuffle = true;  ///< shuffle sequences between groups, then batches
  bool drop_last = false;
};

/// A sampler whose batches have sequences of similar lengths, so that there is little padding. It
/// shuffles, sorts each `group` batches by length, and shuffles the batches.
SASH_API BatchSampler length_groups(std::vector<int64_t> lengths, LengthGroupsOptions options);

}  // namespace sash::nn::data
