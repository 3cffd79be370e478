#pragma once

#include "../../tensor/distributed/group.h"
#include "../module.h"

namespace sash::nn {

struct BatchNormOptions {
  double eps = 1e-5;
  double momentum = 0.1;       ///< weight of the batch in new running statistics
  bool affine = true;          ///< whether there are a weight and a bias
  bool running_stats = true;   ///< if false, evaluation uses the batch's statistics too
  distributed::Group ranks{};  ///< statistics are over the batches of all these ranks
                               ///< (SyncBatchNorm), by plain ops and collectives
};

/// `batch_norm` over the channels of x [N, C, ...]. Training uses the batch's statistics,
/// evaluation the running statistics.
///
/// Parameters, [C]: `weight`, ones at first, and `bias`, zeros. Buffers: `running_mean` [C], zeros
/// at first, `running_var` [C], ones, and `num_batches_tracked`, int64 [], counts batches.
class SASH_API BatchNorm : public Module {
 public:
  using Options = BatchNormOptions;

  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

  Tensor weight;        ///< undefined without one
  Tensor bias;          ///< undefined without one
  Tensor running_mean;  ///< undefined without running statistics, as are those below
  Tensor running_var;
  Tensor num_batches_tracked;

 protected:
  /// `ValueError` unless channels are positive and eps is above 0.
  BatchNorm(const char* name, int64_t channels, BatchNormOptions options, int least_rank,
            int greatest_rank);

 private:
  Tensor over_ranks(const Tensor& x);

  const char* name_;
  int64_t channels_;
  BatchNormOptions options_;
  int least_rank_, greatest_rank_;
};

/// x [N, C] or [N, C, L].
class SASH_API BatchNorm1d : public BatchNorm {
 public:
  explicit BatchNorm1d(int64_t channels, BatchNormOptions options = {})
      : BatchNorm("BatchNorm1d", channels, options, 2, 3) {}
};

/// x [N, C, H, W].
class SASH_API BatchNorm2d : public BatchNorm {
 public:
  explicit BatchNorm2d(int64_t channels, BatchNormOptions options = {})
      : BatchNorm("BatchNorm2d", channels, options, 4, 4) {}
};

struct GroupNormOptions {
  double eps = 1e-5;
  bool affine = true;  ///< whether there are a weight and a bias
};

/// `group_norm` over the channels of x [N, C, ...] in groups.
///
/// Parameters, [C]: `weight`, ones at first, and `bias`, zeros.
class SASH_API GroupNorm : public Module {
 public:
  using Options = GroupNormOptions;

  /// `ValueError` unless groups are positive and divide the channels, and eps is above 0.
  GroupNorm(int64_t groups, int64_t channels, GroupNormOptions options = {});

  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

  Tensor weight;  ///< undefined without one
  Tensor bias;    ///< undefined without one

 private:
  int64_t groups_, channels_;
  double eps_;
};

}  // namespace sash::nn
