#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "../../tensor/random.h"
#include "../../tensor/tensor.h"

namespace sash::nn::data {

/// The tensors of a sample or of a batch of samples, such as inputs and targets.
using Batch = std::vector<Tensor>;

/// Samples by index. Derive from it, and define `size` and `get`. Override `batch` if several
/// samples at once are cheaper than one by one.
///
///     struct Squares : nn::data::Dataset {
///       int64_t size() const override { return 1000; }
///       nn::data::Batch get(int64_t i) const override {
///         return {sash::scalar_tensor(i), sash::scalar_tensor(i * i)};
///       }
///     };
class SASH_API Dataset {
 public:
  Dataset() = default;
  Dataset(const Dataset&) = default;
  Dataset& operator=(const Dataset&) = default;
  virtual ~Dataset();

  virtual int64_t size() const = 0;
  /// Sample `index` in [0, size).
  virtual Batch get(int64_t index) const = 0;
  /// Samples as one batch: by default what `get` returns, stacked along a new first axis.
  /// `ShapeError` if samples differ in shape or number of tensors. A `Loader` with workers calls
  /// this from several threads at once.
  virtual Batch batch(std::span<const int64_t> indices) const;
};

/// Sample i is the i-th row of each tensor: element i of the first axis.
class SASH_API TensorDataset : public Dataset {
 public:
  /// `ValueError` for no tensors, `ShapeError` unless all have the same first extent.
  explicit TensorDataset(Batch tensors);

  int64_t size() const override;
  Batch get(int64_t index) const override;
  Batch batch(std::span<const int64_t> indices) const override;

 private:
  Batch tensors_;
};

/// Some of the samples of another dataset, in the order of `indices`.
class SASH_API Subset : public Dataset {
 public:
  /// `IndexError` for an index outside the dataset.
  Subset(std::shared_ptr<const Dataset> dataset, std::vector<int64_t> indices);

  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  Batch get(int64_t index) const override;
  Batch batch(std::span<const int64_t> indices) const override;

 private:
  std::shared_ptr<const Dataset> dataset_;
  std::vector<int64_t> indices_;
};

/// Splits the samples at random into parts of the given sizes, without overlap. `ValueError` if a
/// size is negative or their sum exceeds the number of samples.
SASH_API std::vector<std::shared_ptr<const Dataset>> random_split(
    std::shared_ptr<const Dataset> dataset, const std::vector<int64_t>& sizes,
    Generator& generator);

}  // namespace sash::nn::data

namespace sash {
namespace data = nn::data;  // the former name, deprecated
}
