// Datasets that draw random numbers: the same batches for any number of workers, after a break, and
// whatever else draws.
#include <doctest/doctest.h>

#include <chrono>
#include <set>
#include <thread>

#include <sash/nn/data/loader.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/tensor/factories.h>

using namespace sash;

namespace {

constexpr int64_t kSize = 12, kBatch = 3, kBatches = 4;

/// Sample i is i with noise. Some take longer, so that workers overtake each other.
struct Augmented : nn::data::Dataset {
  int64_t size() const override { return kSize; }
  nn::data::Batch get(int64_t i) const override {
    if (i % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return {randn({2}, {.device = kCPU}) + static_cast<double>(i)};
  }
};

nn::data::Loader loader(int64_t workers, uint64_t seed = 0, bool shuffle = false) {
  return nn::data::Loader(
      Augmented(),
      {.batch = kBatch, .shuffle = shuffle, .workers = workers, .seed = seed, .device = kCPU});
}

using Values = std::vector<float>;

std::vector<Values> take(nn::data::Loader& loader, int64_t count) {
  std::vector<Values> batches;
  for (int64_t i = 0; i < count; ++i) {
    batches.push_back(loader.next_or_restart()[0].to_vector<float>());
  }
  return batches;
}

}  // namespace

TEST_CASE("loader: what a dataset draws is the same for any number of workers") {
  manual_seed(1);
  nn::data::Loader plain = loader(0);
  const std::vector<Values> batches = take(plain, 2 * kBatches);
  CHECK(std::set(batches.begin(), batches.end()).size() == batches.size());
  for (const int64_t workers : {0, 1, 4}) {
    manual_seed(static_cast<uint64_t>(workers));
    const RandomState before = random_state();
    nn::data::Loader again = loader(workers);
    std::vector<Values> found;
    for (int64_t i = 0; i < 2 * kBatches; ++i) {
      found.push_back(take(again, 1)[0]);
      CHECK(random_state() == before);
    }
    CHECK(found == batches);
  }
  // The noise itself differs between epochs and seeds, not just its place.
  nn::data::Loader other = loader(0, 1);
  CHECK(take(other, 1)[0] != batches[0]);
  CHECK(batches[kBatches] != batches[0]);
}

TEST_CASE("loader: what a dataset draws is the same after a break") {
  for (const int64_t workers : {0, 2}) {
    nn::data::Loader whole = loader(workers, 7, true);
    take(whole, kBatches + 1);
    const std::string place = whole.state();
    const std::vector<Values> rest = take(whole, 2 * kBatches);
    rand({3});
    nn::data::Loader resumed = loader(workers, 7, true);
    resumed.load_state(place);
    CHECK(take(resumed, 2 * kBatches) == rest);
  }
}
