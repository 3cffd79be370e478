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

namespace sash::data {

/// The indices of the samples of each batch of an epoch. It may draw from the generator.
using BatchSampler = std::function<std::vector<std::vector<int64_t>>(Generator&)>;

struct LoaderOptions {
  int64_t batch = 1;       ///< samples in a batch
  bool shuffle = false;    ///< another random order each epoch
  bool drop_last = false;  ///< whether to leave out a last batch that is smaller
  int64_t workers = 0;     ///< threads that make batches ahead; 0: the calling thread makes each
  int64_t prefetch = 2;    ///< batches that each worker is ahead
  uint64_t seed = 0;       ///< of the shuffles, and of what the dataset draws
  std::optional<Device> device{};  ///< where batches go, by default `default_device()`
  BatchSampler sampler{};          ///< decides instead of batch, shuffle and drop_last
};

/// Batches of a dataset, epoch by epoch.
///
///     data::Loader loader(data::TensorDataset({x, y}), {.batch = 64, .shuffle = true});
///     for (int epoch = 0; epoch < 10; ++epoch) {
///       for (const data::Batch& batch : loader) step(batch[0], batch[1]);
///     }
///
/// The batches are the same for any number of workers. While the dataset makes a batch, its thread
/// draws from random numbers of that batch's own, from the seed, the epoch and the batch's place in
/// it: augmentation is the same too, and leaves the generators of devices as they were. Workers
/// leave batches for CUDA in page-locked memory, so that copies run beside kernels. An error in a
/// dataset is thrown by the call of `next` that would have returned the batch, as is one of the
/// sampler, and `std::system_error` if a worker cannot start; another call of `next` tries again. A
/// loader belongs to one thread. One that was moved from throws `ValueError`.
class SASH_API Loader {
 public:
  /// `ValueError` for an option out of range, no dataset, or one without a sample.
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
  /// It goes on wherever the loader is: after a loop that ended early, in that loop's epoch.
  std::optional<Batch> next();
  /// The next batch, of the next epoch if this one is over.
  Batch next_or_restart();

  /// Batches of the current epoch.
  int64_t size() const;
  /// Epochs that are over.
  int64_t epoch() const;
  /// Batches of the current epoch that `next` returned.
  int64_t position() const;

  /// The place between two batches as text, for a checkpoint. `load_state` of a loader made alike
  /// goes on there: `next` returns the same batches as it would have here, and a loop that comes
  /// first runs through what is left of the epoch.
  std::string state() const;
  /// `FormatError` unless `state` made the text; `ValueError` if the dataset or the batches of the
  /// epoch had another size then, or samples were shuffled and now are not, or the reverse. The
  /// loader is unchanged after an error.
  void load_state(const std::string& text);

  /// The batches of an epoch. A loop also ends where its body ended the epoch.
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
  /// Starts the next epoch, unless none of this one's batches was taken: a loop always has a whole
  /// epoch, also after a loop that ended by `break`, and after calls of `next`. Right after
  /// `load_state` it has what was left of the epoch then, which may be nothing.
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
  bool resumed_ = false;  // whether the place is one that was loaded
  std::unique_ptr<Workers> workers_;
};

}  // namespace sash::data
