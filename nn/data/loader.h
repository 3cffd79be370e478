#pragma once

#include <concepts>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "dataset.h"

namespace sash::nn::data {

/// The indices of the samples of each batch of an epoch. It may draw from the generator.
using BatchSampler = std::function<std::vector<std::vector<int64_t>>(Generator&)>;

struct LoaderOptions {
  int64_t batch = 1;               ///< samples in a batch
  bool shuffle = false;            ///< a new random order in each epoch
  bool drop_last = false;          ///< whether to leave out a last batch that is smaller
  int64_t workers = 0;             ///< threads that make batches ahead; 0: the calling thread does
  int64_t prefetch = 2;            ///< batches that each worker is ahead
  uint64_t seed = 0;               ///< of the shuffles and of the dataset's draws
  std::optional<Device> device{};  ///< where batches go, by default `default_device()`
  BatchSampler sampler{};          ///< replaces batch, shuffle and drop_last
};

/// Batches of a dataset, epoch by epoch.
///
///     nn::data::Loader loader(nn::data::TensorDataset({x, y}), {.batch = 64, .shuffle = true});
///     for (int epoch = 0; epoch < 10; ++epoch) {
///       for (const nn::data::Batch& batch : loader) step(batch[0], batch[1]);
///     }
///
/// The batches are the same for any number of workers. While the dataset makes a batch, its thread
/// draws random numbers of this batch, which depend on the seed, the epoch and the batch's place in
/// the epoch. So augmentation is the same too, and generators of devices stay unchanged. Workers
/// put batches for CUDA into page-locked memory, so that copies overlap kernels. If the dataset or
/// the sampler throws, the call of `next` that would have returned the batch throws the error;
/// `std::system_error` if a worker cannot start. The next call of `next` tries again. Use a loader
/// from one thread. A loader that was moved from throws `ValueError`.
class SASH_API Loader {
 public:
  /// `ValueError` for an option out of range, a null dataset, or an empty dataset.
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options = {});
  /// Moves or copies the dataset.
  template <class D>
  requires std::derived_from<std::remove_cvref_t<D>, Dataset>
  explicit Loader(D&& dataset, LoaderOptions options = {})
      : Loader(std::make_shared<const std::remove_cvref_t<D>>(std::forward<D>(dataset)),
               std::move(options)) {}
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// The next batch of the epoch, or nothing at its end; the call after that starts the next epoch.
  /// It continues from the loader's place, also in the epoch of a loop that ended early.
  std::optional<Batch> next();
  /// The next batch, of the next epoch if this one is over.
  Batch next_or_restart();

  /// Batches of the current epoch.
  int64_t size() const;
  /// The number of finished epochs.
  int64_t epoch() const;
  /// The number of batches of the current epoch that `next` has returned.
  int64_t position() const;

  /// The place between two batches as text, for a checkpoint. `load_state` of a loader made with
  /// the same arguments continues there: `next` returns the same batches as it would have here. A
  /// loop right after it runs through the remaining batches of the epoch.
  std::string state() const;
  /// `FormatError` unless `state` made the text; `ValueError` if the dataset or the epoch had
  /// another size, or if only one of the two loaders shuffles. The loader is unchanged after an
  /// error.
  void load_state(const std::string& text);

  /// The batches of an epoch. A loop also ends if its body ended the epoch.
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    explicit Iterator(Loader& loader) : loader_(&loader), epoch_(loader.epoch()) { ++*this; }
    const Batch& operator*() const { return *batch_; }
    Iterator& operator++() {
      batch_ = loader_->epoch() == epoch_ ? loader_->next() : std::nullopt;
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& i, std::default_sentinel_t) { return !i.batch_; }

   private:
    Loader* loader_;
    int64_t epoch_;
    std::optional<Batch> batch_;
  };
  /// Starts the next epoch, unless no batch of the current epoch was taken. So a loop runs through
  /// a whole epoch, also after a loop that ended by `break` and after calls of `next`. Right after
  /// `load_state` it runs through the remaining batches of the epoch, of which there may be none.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  class Workers;
  struct Plan;

  void start_epoch(int64_t epoch);
  void check_here(const char* method) const;

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  Device device_;
  Generator generator_;
  RandomState epoch_start_;           // of the generator, before this epoch's draw
  std::shared_ptr<const Plan> plan_;  // of this epoch
  int64_t epoch_ = 0, position_ = 0;
  bool resumed_ = false;  // whether the place was loaded
  Owned<Workers> workers_;
};

}  // namespace sash::nn::data
