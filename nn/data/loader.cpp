#include "loader.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "../../core/philox.h"
#include "../../core/quote.h"
#include "../../ops/random/randperm.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"

namespace sash::nn::data {
namespace {

constexpr const char* kLoader = "Loader";

void check_option(const char* name, int64_t value, int64_t least) {
  if (value >= least) return;
  throw ValueError(kLoader, std::string(name) + " of " + std::to_string(least) + " or more",
                   std::to_string(value));
}

constexpr const char *kInOrder = "in order", *kShuffled = "shuffled", *kSampled = "by a sampler";

const char* order_of(const LoaderOptions& options) {
  if (options.sampler) return kSampled;
  return options.shuffle ? kShuffled : kInOrder;
}

// The place as text. `batches` are those of all ranks together.
std::string text_of(int64_t epoch, int64_t position, int64_t batches, int64_t samples,
                    RandomState start) {
  return "epoch " + std::to_string(epoch) + ", batch " + std::to_string(position) + " of " +
         std::to_string(batches) + ", " + std::to_string(samples) + " samples, seed " +
         std::to_string(start.seed) + ", offset " + std::to_string(start.offset);
}

// Behind the place: the samples that were taken, by how many ranks.
std::string ranks_text(int ranks, int64_t taken) {
  return ", " + std::to_string(taken) + " taken, ranks " + std::to_string(ranks);
}

}  // namespace

/// The samples of each batch of an epoch. A batch is that of all ranks together.
struct Loader::Plan {
  std::vector<int64_t> samples{};
  std::vector<size_t> ends{};  // of each batch in `samples`
  uint64_t draws = 0;          // seed of what the dataset draws
  size_t rank = 0, ranks = 1;

  int64_t size() const { return static_cast<int64_t>(ends.size()); }
  /// The samples of this rank.
  std::span<const int64_t> operator[](int64_t number) const {
    const auto at = static_cast<size_t>(number);
    const size_t first = at == 0 ? 0 : ends[at - 1], count = ends[at] - first;
    const size_t begin = count * rank / ranks, end = count * (rank + 1) / ranks;
    return std::span(samples).subspan(first + begin, end - begin);
  }
  /// Samples of the batches before `position`.
  int64_t taken(int64_t position) const {
    return position == 0 ? 0 : static_cast<int64_t>(ends[static_cast<size_t>(position) - 1]);
  }
  void add(std::span<const int64_t> batch) {
    samples.insert(samples.end(), batch.begin(), batch.end());
    ends.push_back(samples.size());
  }

  /// Batch `number`. Its random numbers are its own, whichever thread makes it and when: those of
  /// batch number * ranks + rank of a loader without a group.
  Batch make(const Dataset& dataset, int64_t number) const {
    const uint64_t alone = static_cast<uint64_t>(number) * ranks + rank;
    Generator own(RandomState{draws, alone << 32});
    const GeneratorGuard guard(own);
    return dataset.batch((*this)[number]);
  }

  static Plan of(const LoaderOptions& options, int64_t size, Generator& generator, int64_t epoch);
};

Loader::Plan Loader::Plan::of(const LoaderOptions& options, int64_t size, Generator& generator,
                              int64_t epoch) {
  Plan plan;
  plan.rank = static_cast<size_t>(options.group.rank());
  plan.ranks = static_cast<size_t>(options.group.size());
  const int64_t ranks = options.group.size();
  // From the end of the stream: shuffles draw from its start.
  const PhiloxBlock block = philox(generator.seed(), ~static_cast<uint64_t>(epoch));
  plan.draws = uint64_t{block.lane[0]} << 32 | block.lane[1];
  if (options.sampler) {
    for (const std::vector<int64_t>& batch : options.sampler(generator)) {
      if (batch.empty())
        throw ValueError(kLoader, "batches of at least one sample", "an empty one");
      for (const int64_t index : batch) {
        if (index >= 0 && index < size) continue;
        throw IndexError(kLoader, "samples in [0, " + std::to_string(size) + ")",
                         std::to_string(index) + " of the sampler");
      }
      plan.add(batch);
    }
  } else {
    const TensorOptions on_host{.dtype = DType::int64, .device = kCPU};
    const Tensor order =
        options.shuffle ? randperm(size, generator, on_host) : arange(0, size, 1, on_host);
    const std::span<const int64_t> all(order.data<const int64_t>(), static_cast<size_t>(size));
    const int64_t together = options.batch > size / ranks ? size : options.batch * ranks;
    const int64_t whole = options.batch > size / ranks ? 0 : size / together * together;
    for (int64_t first = 0; first < whole; first += together) {
      plan.add(all.subspan(static_cast<size_t>(first), static_cast<size_t>(together)));
    }
    const int64_t left = options.drop_last ? 0 : size - whole;
    if (left > 0 && left < ranks && whole > 0) {
      plan.samples.insert(plan.samples.end(), all.end() - left, all.end());
      plan.ends.back() = plan.samples.size();
    } else if (left > 0) {
      plan.add(all.last(static_cast<size_t>(left)));
    }
  }
  if (plan.ends.empty()) {
    throw ValueError(kLoader, "at least one batch in an epoch",
                     "none from " + std::to_string(size) + " samples");
  }
  for (size_t i = 0, first = 0; i < plan.ends.size(); first = plan.ends[i++]) {
    if (plan.ends[i] - first >= plan.ranks) continue;
    throw ValueError(kLoader,
                     "batches of at least " + std::to_string(ranks) + " samples, one a rank",
                     std::to_string(plan.ends[i] - first) + " in batch " + std::to_string(i));
  }
  return plan;
}

/// Threads that make the batches of an epoch ahead of their use.
class Loader::Workers {
 public:
  Workers(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Plan> plan, int64_t first,
          const LoaderOptions& options, bool pinned)
      : dataset_(std::move(dataset)),
        plan_(std::move(plan)),
        ahead_(options.prefetch > plan_->size() / options.workers  // the product may overflow
                   ? plan_->size()
                   : options.workers * options.prefetch),
        pinned_(pinned),
        next_(first),
        taken_(first) {
    try {
      for (int64_t i = 0; i < options.workers; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Waits for batch `number`. Numbers are taken in order.
  Batch take(int64_t number) {
    std::unique_lock lock(mutex_);
    made_.wait(lock, [&] { return results_.contains(number); });
    const Result result = std::move(results_.extract(number).mapped());
    taken_ = number + 1;
    lock.unlock();
    room_.notify_all();
    if (result.error) std::rethrow_exception(result.error);
    return result.batch;
  }

 private:
  struct Result {
    Batch batch{};
    std::exception_ptr error{};
  };

  Result make(int64_t number) const try {
    const NoGradGuard no_grad;
    Batch batch = plan_->make(*dataset_, number);
    for (Tensor& tensor : batch) {
      if (pinned_ && tensor.device().is_cpu()) tensor = pin_memory(tensor);
    }
    return {std::move(batch)};
  } catch (...) {
    return {{}, std::current_exception()};
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      room_.wait(lock,
                 [this] { return stop_ || next_ < std::min(plan_->size(), taken_ + ahead_); });
      if (stop_) return;
      const int64_t number = next_++;
      lock.unlock();
      Result result = make(number);
      lock.lock();
      results_.emplace(number, std::move(result));
      made_.notify_one();
    }
  }

  const std::shared_ptr<const Dataset> dataset_;
  const std::shared_ptr<const Plan> plan_;
  const int64_t ahead_;
  const bool pinned_;
  std::mutex mutex_;
  std::condition_variable room_, made_;
  std::map<int64_t, Result> results_;
  int64_t next_, taken_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : dataset_(std::move(dataset)),
      options_(std::move(options)),
      device_(options_.device.value_or(default_device())),
      generator_(options_.seed) {
  if (!dataset_) throw ValueError(kLoader, "a dataset", "a null pointer");
  check_option("batch", options_.batch, 1);
  check_option("workers", options_.workers, 0);
  check_option("prefetch", options_.prefetch, 1);
  start_epoch(0);
}

Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

void Loader::start_epoch(int64_t epoch) {
  const RandomState start = generator_.state();
  Generator generator(start);
  plan_ = std::make_shared<const Plan>(Plan::of(options_, dataset_->size(), generator, epoch));
  workers_.reset();
  epoch_start_ = start;
  generator_ = generator;
  epoch_ = epoch;
  position_ = 0;
  resumed_ = false;
}

void Loader::check_here(const char* method) const {
  if (dataset_) return;
  throw ValueError(std::string(kLoader) + "." + method, "a loader", "one that was moved from");
}

int64_t Loader::size() const {
  check_here("size");
  return plan_->size();
}

int64_t Loader::epoch() const {
  check_here("epoch");
  return epoch_;
}

int64_t Loader::position() const {
  check_here("position");
  return position_;
}

Loader::Iterator Loader::begin() {
  check_here("begin");
  if (position_ > 0 && !resumed_) start_epoch(epoch_ + 1);
  return Iterator(*this);
}

std::optional<Batch> Loader::next() {
  check_here("next");
  if (position_ == plan_->size()) {
    start_epoch(epoch_ + 1);
    return std::nullopt;
  }
  if (options_.workers > 0 && !workers_) {
    workers_ = std::make_unique<Workers>(dataset_, plan_, position_, options_, device_.is_cuda());
  }
  const NoGradGuard no_grad;
  try {
    Batch batch = workers_ ? workers_->take(position_) : plan_->make(*dataset_, position_);
    for (Tensor& tensor : batch) tensor = tensor.to(device_);
    ++position_;
    resumed_ = false;
    return batch;
  } catch (...) {
    workers_.reset();  // so that another call tries the same batch again
    throw;
  }
}

Batch Loader::next_or_restart() {
  std::optional<Batch> batch = next();
  return batch ? *batch : *next();
}

std::string Loader::state() const {
  check_here("state");
  return text_of(epoch_, position_, plan_->size(), dataset_->size(), epoch_start_) + ", " +
         order_of(options_) + ranks_text(options_.group.size(), plan_->taken(position_));
}

void Loader::load_state(const std::string& text) {
  check_here("load_state");
  long long epoch = -1, position = -1, batches = -1, samples = -1, taken = 0;
  unsigned long long seed = 0, offset = 0;
  int ranks = 1;
  std::sscanf(text.c_str(), "epoch %lld, batch %lld of %lld, %lld samples, seed %llu, offset %llu",
              &epoch, &position, &batches, &samples, &seed, &offset);
  const RandomState start{seed, offset};
  std::string place = text_of(epoch, position, batches, samples, start), order;
  for (const char* known : {kInOrder, kShuffled, kSampled}) {
    if (text.starts_with(place + ", " + known)) order = known;
  }
  if (!order.empty()) place += ", " + order;  // states of earlier versions end here, or before
  const bool has_ranks = !order.empty() && text.size() > place.size();
  if (has_ranks) {
    std::sscanf(text.c_str() + place.size(), ", %lld taken, ranks %d", &taken, &ranks);
    place += ranks_text(ranks, taken);
  }
  if (text != place || epoch < 0 || position < 0 || position > batches || batches < 1 ||
      samples < 1 || ranks < 1) {
    throw FormatError("Loader::load_state", "the state of a loader", in_quotes(text));
  }
  if (samples != dataset_->size()) {
    throw ValueError("Loader::load_state",
                     std::to_string(samples) + " samples, as when it was saved",
                     std::to_string(dataset_->size()));
  }
  if (!order.empty() && order != order_of(options_)) {
    throw ValueError("Loader::load_state", "samples " + order + ", as when it was saved",
                     std::string("samples ") + order_of(options_));
  }
  Generator generator(start);
  Plan plan = Plan::of(options_, dataset_->size(), generator, epoch);
  if (ranks != options_.group.size()) {
    position = 0;
    while (position < plan.size() && plan.taken(position) < taken) ++position;
    if (plan.taken(position) != taken) {
      throw ValueError("Loader::load_state",
                       "a batch that begins at sample " + std::to_string(taken) + ", where " +
                           std::to_string(ranks) + " ranks have stopped",
                       "one at sample " + std::to_string(plan.taken(position)));
    }
  } else if (plan.size() != batches) {
    throw ValueError("Loader::load_state",
                     std::to_string(batches) + " batches an epoch, as when it was saved",
                     std::to_string(plan.size()));
  }
  workers_.reset();
  epoch_start_ = start;
  generator_ = generator;
  plan_ = std::make_shared<const Plan>(std::move(plan));
  epoch_ = epoch;
  position_ = position;
  resumed_ = true;
}

}  // namespace sash::nn::data
