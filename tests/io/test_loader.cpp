// Datasets and loaders: every sample once an epoch, in the same order for any number of workers,
// and after a resumed run.
#include <doctest/doctest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <system_error>

#include <sash/core/error.h>
#include <sash/nn/data/loader.h>
#include <sash/nn/data/sequence_dataset.h>
#include <sash/nn/data/token_dataset.h>
#include <sash/nn/layers/linear.h>
#include <sash/ops/elementwise/dropout.h>
#include <sash/ops/loss/mse_loss.h>
#include <sash/optim/adam.h>
#include <sash/optim/checkpoint.h>
#include <sash/tensor/factories.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/scopes.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Ids = std::vector<int64_t>;

const TensorOptions kHost{.device = kCPU};

/// Sample i is {i, 10 i}.
nn::data::TensorDataset numbers(int64_t n) {
  const Tensor x = arange(0, n, 1, kHost);
  return nn::data::TensorDataset({x, x * 10});
}

/// The samples of each batch left in the epoch.
std::vector<Ids> rest_of(nn::data::Loader& loader) {
  std::vector<Ids> batches;
  while (const std::optional<nn::data::Batch> batch = loader.next()) {
    batches.push_back((*batch)[0].to_vector<int64_t>());
    CHECK(all_same((*batch)[0] * 10, (*batch)[1]));
  }
  return batches;
}

Ids joined(const std::vector<Ids>& batches) {
  Ids all;
  for (const Ids& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

Ids first_numbers(int64_t n) {
  Ids all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Throws for one sample, as often as `failures` says.
struct Failing : nn::data::Dataset {
  explicit Failing(int64_t index, int failures)
      : bad(index), left(std::make_shared<std::atomic<int>>(failures)) {}
  int64_t size() const override { return 20; }
  nn::data::Batch get(int64_t index) const override {
    if (index == bad && left->fetch_sub(1) > 0) throw IoError("Failing", "no sample");
    return {scalar_tensor(index, kHost)};
  }
  int64_t bad;
  std::shared_ptr<std::atomic<int>> left;
};

}  // namespace

TEST_CASE_TEMPLATE("loader: each sample once an epoch, in its order", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const int64_t workers : {0, 1, 3}) {
    nn::data::Loader plain(numbers(10), {.batch = 4, .workers = workers, .device = On::device});
    CHECK(plain.size() == 3);
    const std::vector<Ids> in_order{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}};
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      CHECK(plain.epoch() == epoch);
      CHECK(rest_of(plain) == in_order);
    }
    nn::data::Loader whole(numbers(10), {.batch = 4, .drop_last = true, .device = On::device});
    CHECK(rest_of(whole) == std::vector<Ids>{{0, 1, 2, 3}, {4, 5, 6, 7}});
    CHECK(whole.next()->front().device() == On::device);
  }
}

TEST_CASE("loader: shuffles depend on the seed alone") {
  nn::data::LoaderOptions options{.batch = 7, .shuffle = true, .seed = 5, .device = kCPU};
  nn::data::Loader loader(numbers(100), options);
  std::vector<std::vector<Ids>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    epochs.push_back(rest_of(loader));
    Ids all = joined(epochs.back());
    std::sort(all.begin(), all.end());
    CHECK(all == first_numbers(100));
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(epochs[1] != epochs[2]);
  CHECK(joined(epochs[0]) != first_numbers(100));
  rand({1000});  // another user of the process's generator
  for (const int64_t workers : {1, 2, 5}) {
    options.workers = workers;
    options.prefetch = workers == 5 ? 1 : 3;
    nn::data::Loader again(numbers(100), options);
    for (const auto& epoch : epochs) CHECK(rest_of(again) == epoch);
  }
  options.seed = 6;
  nn::data::Loader other(numbers(100), options);
  CHECK(rest_of(other) != epochs[0]);
}

TEST_CASE("loader: goes on where another stopped") {
  nn::data::LoaderOptions options{.batch = 3, .shuffle = true, .seed = 2, .device = kCPU};
  for (int stop = 0; stop <= 12; ++stop) {
    options.workers = stop % 3;
    nn::data::Loader first(numbers(16), options), second(numbers(16), options);
    for (int i = 0; i < stop; ++i) first.next();
    options.workers = (stop + 1) % 3;
    nn::data::Loader resumed(numbers(16), options);
    resumed.next();
    resumed.load_state(first.state());
    CHECK(resumed.state() == first.state());
    CHECK(resumed.epoch() == first.epoch());
    CHECK(resumed.position() == first.position());
    for (int epoch = 0; epoch < 2; ++epoch) CHECK(rest_of(resumed) == rest_of(first));
  }
}

TEST_CASE("loader: an error of a dataset reaches the caller, and the batch may be tried again") {
  for (const int64_t workers : {0, 2}) {
    nn::data::Loader loader(Failing(9, 2), {.batch = 4, .workers = workers, .device = kCPU});
    CHECK(loader.next()->front().to_vector<int64_t>() == Ids{0, 1, 2, 3});
    CHECK(loader.next().has_value());
    for (int i = 0; i < 2; ++i) {
      CHECK_THROWS_AS(loader.next(), IoError);
      CHECK(loader.position() == 2);
    }
    CHECK(loader.next()->front().to_vector<int64_t>() == Ids{8, 9, 10, 11});
    CHECK(loader.next_or_restart()[0].numel() == 4);
    CHECK(loader.next_or_restart()[0].numel() == 4);
    CHECK(loader.next_or_restart()[0].to_vector<int64_t>() == Ids{0, 1, 2, 3});
    CHECK(loader.epoch() == 1);
  }
}

TEST_CASE("loader: threads that cannot start are an error, and the batch may be tried again") {
  nn::data::Loader loader(numbers(20), {.batch = 4, .workers = 100, .device = kCPU});
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  const auto used = static_cast<rlim_t>(pages * ::getpagesize());
  if (used > rlim_t{1} << 40) return;  // a sanitizer's, which dies of what follows
  const rlimit little{std::min(used + (rlim_t{64} << 20), before.rlim_max), before.rlim_max};
  if (::setrlimit(RLIMIT_AS, &little) != 0) return;
  try {
    loader.next();  // an emulator may have no limit
    loader.load_state(nn::data::Loader(numbers(20), {.batch = 4, .device = kCPU}).state());
  } catch (const std::system_error&) {
  }
  ::setrlimit(RLIMIT_AS, &before);
  CHECK(loader.next()->front().to_vector<int64_t>() == Ids{0, 1, 2, 3});
}

TEST_CASE("loader: a sampler that throws at the start of an epoch may be tried again") {
  bool fails = false;
  const auto sampler = [&](Generator& generator) {
    const Ids ids = randint(0, 50, {2}, generator, {.dtype = DType::int64, .device = kCPU})
                        .to_vector<int64_t>();
    if (fails) throw IoError("sampler", "no samples");
    return std::vector<Ids>{{ids[0], ids[1]}};
  };
  nn::data::Loader loader(numbers(50), {.device = kCPU, .sampler = sampler});
  nn::data::Loader plain(numbers(50), {.device = kCPU, .sampler = sampler});
  nn::data::Loader resumed(numbers(50), {.device = kCPU, .sampler = sampler});
  loader.next();
  plain.next();
  fails = true;
  for (int i = 0; i < 2; ++i) CHECK_THROWS_AS(loader.next(), IoError);
  fails = false;
  CHECK(loader.state() == plain.state());
  resumed.load_state(loader.state());
  CHECK_FALSE(plain.next().has_value());
  CHECK_FALSE(loader.next().has_value());
  CHECK_FALSE(resumed.next().has_value());
  const std::vector<Ids> expected = rest_of(plain);
  CHECK(rest_of(loader) == expected);
  CHECK(rest_of(resumed) == expected);
}

TEST_CASE("loader: left in the middle of an epoch, it stops its workers") {
  for (int i = 0; i < 20; ++i) {
    nn::data::Loader loader(numbers(1000), {.batch = 1, .workers = 3, .device = kCPU});
    if (i % 2 == 0) loader.next();
    nn::data::Loader moved = std::move(loader);
    CHECK(moved.next()->front().item<int64_t>() == (i % 2 == 0 ? 1 : 0));
  }
}

TEST_CASE("loader: a sampler decides") {
  const auto sampler = [](Generator& generator) {
    const Tensor pick = randint(0, 5, {2, 3}, generator, {.dtype = DType::int64, .device = kCPU});
    const Ids ids = pick.to_vector<int64_t>();
    return std::vector<Ids>{{ids[0], ids[1], ids[2]}, {ids[3], ids[4], ids[5]}};
  };
  nn::data::Loader a(numbers(5), {.device = kCPU, .sampler = sampler});
  nn::data::Loader b(numbers(5), {.device = kCPU, .sampler = sampler});
  CHECK(a.size() == 2);
  a.next();
  b.load_state(a.state());
  for (int epoch = 0; epoch < 3; ++epoch) CHECK(rest_of(a) == rest_of(b));
}

TEST_CASE("loader: samples of one's own, split at random") {
  struct Squares : nn::data::Dataset {
    int64_t size() const override { return 12; }
    nn::data::Batch get(int64_t i) const override {
      return {scalar_tensor(i, kHost), full({2}, i * i, {.dtype = DType::int64, .device = kCPU})};
    }
  };
  Generator generator(3);
  const auto parts = nn::data::random_split(std::make_shared<Squares>(), {7, 3, 0}, generator);
  Ids all;
  for (const auto& part : {parts[0], parts[1]}) {
    nn::data::Loader loader(part, {.batch = 5, .device = kCPU});
    for (const nn::data::Batch& batch : loader) {
      CHECK(batch[1].shape() == Shape{batch[0].size(0), 2});
      for (const int64_t i : batch[0].to_vector<int64_t>()) all.push_back(i);
      const Tensor squares = batch[0].to(DType::int64).square().unsqueeze(1);
      CHECK(all_same(squares.expand({-1, 2}).contiguous(), batch[1]));
    }
  }
  std::sort(all.begin(), all.end());
  CHECK(std::unique(all.begin(), all.end()) == all.end());
  CHECK(all.size() == 10);
  CHECK(parts[2]->size() == 0);
}

TEST_CASE("loader: samples that cannot be stacked are named by dataset and index") {
  struct Ragged : nn::data::Dataset {
    int64_t size() const override { return 8; }
    nn::data::Batch get(int64_t i) const override {
      if (i == 7) return {ones({4}, kHost)};
      return {ones({4}, kHost), ones({i < 5 ? 3 : i}, kHost)};
    }
  };
  nn::data::Loader loader(Ragged(), {.batch = 3, .device = kCPU});
  CHECK(loader.next()->at(1).shape() == Shape{3, 3});
  const std::string text = thrown_by([&] { loader.next(); });
  CHECK(text.find("Ragged.batch: expected tensor 1 of shape [3], as in sample 3, got [5] in sample "
                  "5; samples of several lengths are padded or packed by SequenceDataset, or by a "
                  "batch() of your own") != std::string::npos);
  CHECK(text.starts_with("ShapeError: "));
  CHECK(thrown_by([] {
          Ragged().batch(std::vector<int64_t>{0, 7});
        }).find("Ragged.batch: expected 2 tensors, as in sample 0, got 1 in sample 7") !=
        std::string::npos);
}

TEST_CASE("token dataset: windows of a text") {
  const Ids ids = first_numbers(23);
  const nn::data::TokenDataset even(nn::data::Tokens(ids), 5);
  CHECK(even.size() == 4);  // the last needs token 20 as its last target
  const Ids picks{3, 0};
  const nn::data::Batch batch = even.batch(picks);
  CHECK(batch[0].to_vector<int64_t>() == Ids{15, 16, 17, 18, 19, 0, 1, 2, 3, 4});
  CHECK(batch[1].to_vector<int64_t>() == Ids{16, 17, 18, 19, 20, 1, 2, 3, 4, 5});
  const nn::data::TokenDataset every(nn::data::Tokens(ids), 5, {.stride = 1});
  CHECK(every.size() == 18);
  CHECK(every.get(17)[1].to_vector<int64_t>() == Ids{18, 19, 20, 21, 22});
  const nn::data::TokenDataset bytes(nn::data::Tokens::from_bytes("a\xFFz"), 2);
  CHECK(bytes.get(0)[1].to_vector<int64_t>() == Ids{255, 'z'});
}

TEST_CASE("sequence dataset: padded and packed batches") {
  const std::vector<Ids> sequences{{1, 2, 3, 4}, {5, 6}, {7, 8, 9}};
  const Ids picks{1, 0};
  const nn::data::SequenceDataset padded(sequences, {.padding = 99});
  const nn::data::Batch rows = padded.batch(picks);
  CHECK(rows[0].shape() == Shape{2, 3});
  CHECK(rows[0].to_vector<int64_t>() == Ids{5, 99, 99, 1, 2, 3});
  CHECK(rows[1].to_vector<int64_t>() == Ids{6, -100, -100, 2, 3, 4});
  CHECK(rows[2].dtype() == DType::int32);
  CHECK(rows[2].to_vector<int64_t>() == Ids{1, 3});
  const nn::data::Batch wide =
      nn::data::SequenceDataset(sequences, {.padding = 99, .multiple = 4}).batch(picks);
  CHECK(wide[0].to_vector<int64_t>() == Ids{5, 99, 99, 99, 1, 2, 3, 99});
  CHECK(wide[1].to_vector<int64_t>() == Ids{6, -100, -100, -100, 2, 3, 4, -100});
  CHECK(wide[2].to_vector<int64_t>() == Ids{1, 3});
  CHECK(nn::data::SequenceDataset(sequences, {.multiple = 3}).batch(picks)[0].size(1) == 3);
  CHECK_THROWS_AS(nn::data::SequenceDataset(sequences, {.multiple = 0}), ValueError);
  const nn::data::SequenceDataset packed(sequences, {.form = nn::data::SequenceBatch::packed});
  const nn::data::Batch line = packed.batch(picks);
  CHECK(line[0].shape() == Shape{1, 4});
  CHECK(line[0].to_vector<int64_t>() == Ids{5, 1, 2, 3});
  CHECK(line[1].to_vector<int64_t>() == Ids{6, 2, 3, 4});
  CHECK(line[2].to_vector<int64_t>() == Ids{0, 1, 4});
  CHECK(packed.get(2)[0].to_vector<int64_t>() == Ids{7, 8});
}

TEST_CASE("sequence dataset: labels take the place of targets") {
  const std::vector<Ids> sequences{{1, 2, 3}, {4}, {5, 6}};
  const Ids labels{7, 8, 9}, picks{1, 0};
  const nn::data::SequenceDataset padded(sequences, {.padding = 99, .labels = labels});
  CHECK(padded.lengths() == Ids{3, 1, 2});
  const nn::data::Batch rows = padded.batch(picks);
  CHECK(rows[0].to_vector<int64_t>() == Ids{4, 99, 99, 1, 2, 3});
  CHECK(rows[1].shape() == Shape{2});
  CHECK(rows[1].to_vector<int64_t>() == Ids{8, 7});
  CHECK(rows[2].to_vector<int64_t>() == Ids{1, 3});
  const nn::data::SequenceDataset packed(
      sequences, {.form = nn::data::SequenceBatch::packed, .labels = labels});
  const nn::data::Batch line = packed.batch(picks);
  CHECK(line[0].to_vector<int64_t>() == Ids{4, 1, 2, 3});
  CHECK(line[1].to_vector<int64_t>() == Ids{8, 7});
  CHECK(line[2].to_vector<int64_t>() == Ids{0, 1, 4});
  CHECK(packed.get(2)[0].to_vector<int64_t>() == Ids{5, 6});
  CHECK(packed.get(2)[1].shape() == Shape{});
  CHECK(packed.get(2)[1].item<int64_t>() == 9);
}

TEST_CASE("length groups: all samples once, with little padding") {
  std::vector<Ids> sequences;
  Generator generator(1);
  const Ids lengths =
      randint(1, 200, 500, generator, {.dtype = DType::int64, .device = kCPU}).to_vector<int64_t>();
  for (const int64_t n : lengths) sequences.emplace_back(static_cast<size_t>(n) + 1, n);
  const nn::data::SequenceDataset dataset(sequences);
  CHECK(dataset.lengths() == lengths);
  nn::data::Loader loader(
      dataset, {.device = kCPU,
                .sampler = nn::data::length_groups(dataset.lengths(), {.batch = 8, .group = 20})});
  int64_t samples = 0, tokens = 0, places = 0;
  Ids longest;
  for (const nn::data::Batch& batch : loader) {
    samples += batch[0].size(0);
    places += batch[0].numel();
    longest.push_back(batch[0].size(1));
    for (const int64_t n : batch[2].to_vector<int64_t>()) tokens += n;
  }
  CHECK(samples == 500);
  CHECK(tokens == std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  CHECK(static_cast<double>(places) < 1.1 * static_cast<double>(tokens));
  CHECK(!std::is_sorted(longest.begin(), longest.end()));
}

TEST_CASE_TEMPLATE("loader: training resumed from a checkpoint has the same bits", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const TemporaryFolder folder;
  const std::string path = folder.file("run.safetensors");
  const DefaultDevice scope(On::device);
  Generator generator(4);
  const nn::data::TensorDataset dataset(
      {randn({50, 6}, generator, kHost), randn({50, 3}, generator, kHost)});
  struct Run {
    explicit Run(const nn::data::TensorDataset& set, int64_t workers)
        : loader(set, {.batch = 8, .shuffle = true, .workers = workers, .seed = 1}) {}
    double step() {
      const nn::data::Batch batch = loader.next_or_restart();
      optimizer.zero_grad();
      const Tensor loss = mse_loss(model(dropout(batch[0], 0.2)), batch[1]);
      loss.backward();
      optimizer.step();
      return loss.item<double>();
    }
    nn::Linear model{6, 3};
    optim::AdamW optimizer{model.parameters(), {.lr = 1e-2}};
    nn::data::Loader loader;
  };
  manual_seed(9);
  Run first(dataset, 2);
  std::vector<double> expected, resumed;
  for (int i = 0; i < 30; ++i) {
    if (i == 11) {
      optim::save_checkpoint(path, first.model, first.optimizer, {.step = 11}, nullptr,
                             &first.loader);
    }
    const double loss = first.step();
    if (i >= 11) expected.push_back(loss);
  }
  manual_seed(10);
  Run second(dataset, 0);
  optim::load_checkpoint(path, second.model, second.optimizer, nullptr, &second.loader);
  for (int i = 11; i < 30; ++i) resumed.push_back(second.step());
  CHECK(resumed == expected);
  const std::string none =
      thrown_by([&] { optim::load_checkpoint(path, second.model, second.optimizer); });
  CHECK(none ==
        "ValueError: load_checkpoint: expected a Loader, as when it was saved, got none; "
        "in '" +
            path + "'");
}

TEST_CASE("data: wrong calls") {
  const Tensor x = zeros({4, 2}, kHost), y = zeros({3}, kHost);
  Generator generator;
  const auto four = std::make_shared<nn::data::TensorDataset>(nn::data::Batch{x});
  nn::data::Loader loader(numbers(10), {.batch = 4, .device = kCPU});
  const std::string state = loader.state();
  loader.next();
  const auto sampler = [](const std::vector<Ids>& batches) {
    return nn::data::LoaderOptions{.sampler = [batches](Generator&) { return batches; }};
  };
  expect_errors({
      {"ValueError: TensorDataset: expected at least one tensor, got none",
       [] { nn::data::TensorDataset dataset(nn::data::Batch{}); }},
      {"ShapeError: TensorDataset: expected tensors whose first extent is 4, got [3]",
       [&] {
         nn::data::TensorDataset dataset({x, y});
       }},
      {"ShapeError: TensorDataset: expected tensors whose first extent is 1, got []",
       [&] { nn::data::TensorDataset dataset({scalar_tensor(1, kHost)}); }},
      {"IndexError: TensorDataset: expected an index in [0, 4), got 4", [&] { four->get(4); }},
      {"IndexError: Subset: expected an index in [0, 4), got -1",
       [&] {
         nn::data::Subset subset(four, {0, -1});
       }},
      {"ValueError: random_split: expected sizes that add up to at most 4 samples, got more",
       [&] {
         nn::data::random_split(four, {3, 2}, generator);
       }},
      {"ValueError: random_split: expected a dataset, got a null pointer",
       [&] { nn::data::random_split(nullptr, {1}, generator); }},
      {"ValueError: Subset: expected a dataset, got a null pointer",
       [] { nn::data::Subset(nullptr, {0}); }},
      {"ValueError: random_split: expected sizes of 0 or more, got -1",
       [&] { nn::data::random_split(four, {-1}, generator); }},
      {"ValueError: Loader: expected batch of 1 or more, got 0",
       [&] { nn::data::Loader bad(four, {.batch = 0}); }},
      {"ValueError: Loader: expected workers of 0 or more, got -1",
       [&] { nn::data::Loader bad(four, {.workers = -1}); }},
      {"ValueError: Loader: expected prefetch of 1 or more, got 0",
       [&] { nn::data::Loader bad(four, {.prefetch = 0}); }},
      {"ValueError: Loader: expected at least one batch in an epoch, got none from 4 samples",
       [&] { nn::data::Loader bad(four, {.batch = 5, .drop_last = true}); }},
      {"ValueError: Loader: expected batches of at least one sample, got an empty one",
       [&] { nn::data::Loader bad(four, sampler({{}})); }},
      {"IndexError: Loader: expected samples in [0, 4), got 4 of the sampler",
       [&] {
         nn::data::Loader bad(four, sampler({{0}, {1, 4}}));
       }},
      {"FormatError: Loader::load_state: expected the state of a loader, got 'epoch 1'",
       [&] { loader.load_state("epoch 1"); }},
      {"FormatError: Loader::load_state: expected the state of a loader, got "
       "'epoch 0, batch 4 of 3, 10 samples, seed 0, offset 0'",
       [&] { loader.load_state("epoch 0, batch 4 of 3, 10 samples, seed 0, offset 0"); }},
      {"ValueError: Loader::load_state: expected 11 samples, as when it was saved, got 10",
       [&] { loader.load_state("epoch 0, batch 0 of 3, 11 samples, seed 0, offset 0"); }},
      {"ValueError: Loader::load_state: expected 5 batches an epoch, as when it was saved, got 3",
       [&] { loader.load_state("epoch 0, batch 0 of 5, 10 samples, seed 0, offset 0"); }},
      {"ValueError: Tokens: expected ids of 0 or more, got -3",
       [] {
         nn::data::Tokens t({1, -3});
       }},
      {"ValueError: TokenDataset: expected a context of 1 or more, got 0",
       [] {
         nn::data::TokenDataset d(nn::data::Tokens({1, 2, 3}), 0);
       }},
      {"ValueError: TokenDataset: expected a stride of 0 or more, got -1",
       [] {
         nn::data::TokenDataset d(nn::data::Tokens({1, 2, 3}), 1, {.stride = -1});
       }},
      {"ValueError: TokenDataset: expected more than 3 tokens, the context, got 3",
       [] {
         nn::data::TokenDataset d(nn::data::Tokens({1, 2, 3}), 3);
       }},
      {"ValueError: SequenceDataset: expected sequences of 2 tokens or more, got 1 in sequence 1",
       [] {
         nn::data::SequenceDataset d({{1, 2}, {3}});
       }},
      {"ValueError: SequenceDataset: expected sequences of 1 tokens or more, got 0 in sequence 1",
       [] {
         nn::data::SequenceDataset d({{1}, {}}, {.labels = {{0, 1}}});
       }},
      {"ValueError: SequenceDataset: expected a label for each sequence, got 1 labels for 2 "
       "sequences",
       [] {
         nn::data::SequenceDataset d({{1}, {2}}, {.labels = {{0}}});
       }},
      {"ValueError: length_groups: expected batch of 1 or more, got 0",
       [] { nn::data::length_groups({1}, {.batch = 0}); }},
  });
  CHECK(loader.position() == 1);
  CHECK(loader.next()->front().to_vector<int64_t>() == Ids{4, 5, 6, 7});
  loader.load_state(state);
  CHECK(loader.position() == 0);
}
