// Loaders: the largest options, states that no loader made, no dataset.
#include <doctest/doctest.h>

#include <sash/core/error.h>
#include <sash/nn/data/loader.h>
#include <sash/nn/data/sequence_dataset.h>
#include <sash/nn/data/token_dataset.h>
#include <sash/tensor/factories.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Ids = std::vector<int64_t>;

nn::data::TensorDataset numbers(int64_t n) {
  return nn::data::TensorDataset({arange(0, n, 1, {.device = kCPU})});
}

}  // namespace

TEST_CASE("loader: workers as far ahead as can be asked for") {
  for (const int64_t workers : {1, 2, 3}) {
    for (const int64_t prefetch : {INT64_MAX, INT64_MAX / 2 + 1}) {
      nn::data::Loader loader(
          numbers(10), {.batch = 3, .workers = workers, .prefetch = prefetch, .device = kCPU});
      int64_t batches = 0;
      for (const nn::data::Batch& batch : loader) batches += batch[0].rank();
      CHECK(batches == 4);
    }
  }
}

TEST_CASE("loader: a loop ends with its epoch, also where its body ended that") {
  nn::data::Loader loader(numbers(5), {.device = kCPU});
  int64_t outer = 0, inner = 0;
  for (const nn::data::Batch& a : loader) {
    outer += a[0].rank();
    for (const nn::data::Batch& b : loader) inner += b[0].rank();
    REQUIRE(outer == 1);
  }
  CHECK(inner == 5);  // the inner loop has an epoch of its own
  CHECK(loader.epoch() == 2);
  outer = 0;
  for (const nn::data::Batch& a : loader) {
    outer += a[0].rank();
    loader.next_or_restart();
    REQUIRE(outer <= 3);
  }
  CHECK(outer == 3);
}

TEST_CASE("loader: a loop starts an epoch, whatever came before") {
  for (const int64_t workers : {0, 2}) {
    for (const bool shuffle : {false, true}) {
      CAPTURE(workers);
      CAPTURE(shuffle);
      const auto make = [&] {
        return nn::data::Loader(
            numbers(6),
            {.batch = 2, .shuffle = shuffle, .workers = workers, .seed = 4, .device = kCPU});
      };
      const auto loop = [](nn::data::Loader& loader, int64_t batches = INT64_MAX) {
        Ids seen;
        for (const nn::data::Batch& batch : loader) {
          for (const int64_t x : batch[0].to_vector<int64_t>()) seen.push_back(x);
          if (--batches == 0) break;
        }
        return seen;
      };
      nn::data::Loader whole = make();
      std::vector<Ids> epochs;
      for (int i = 0; i < 6; ++i) epochs.push_back(loop(whole));
      const auto start_of = [&](size_t epoch, int64_t samples) {
        return Ids(epochs[epoch].begin(), epochs[epoch].begin() + samples);
      };
      nn::data::Loader loader = make();
      CHECK(loop(loader, 1) == start_of(0, 2));
      CHECK(loader.position() == 1);  // `next` would go on there
      CHECK(loop(loader, 2) == start_of(1, 4));
      CHECK(loader.next_or_restart()[0].to_vector<int64_t>() ==
            Ids(epochs[1].begin() + 4, epochs[1].end()));
      CHECK(loop(loader) == epochs[2]);  // all of epoch 1 was taken, and nobody asked for its end
      CHECK(loader.epoch() == 3);
      loader.next();
      CHECK(loop(loader) == epochs[4]);
      CHECK(loop(loader) == epochs[5]);
      // A place that was loaded goes on, once.
      nn::data::Loader saved = make();
      loop(saved, 1);
      const std::string middle = saved.state();
      for (int i = 0; i < 2; ++i) saved.next();
      const std::string end = saved.state();
      nn::data::Loader resumed = make();
      resumed.load_state(middle);
      CHECK(loop(resumed) == Ids(epochs[0].begin() + 2, epochs[0].end()));
      CHECK(loop(resumed) == epochs[1]);
      resumed.load_state(middle);
      CHECK(loop(resumed, 1) == Ids(epochs[0].begin() + 2, epochs[0].begin() + 4));
      CHECK(loop(resumed) == epochs[1]);
      resumed.load_state(end);
      CHECK(loop(resumed).empty());
      CHECK(loop(resumed) == epochs[1]);
      resumed.load_state(middle);
      resumed.next();
      CHECK(loop(resumed) == epochs[1]);
    }
  }
}

TEST_CASE("length groups: one group of all") {
  const Ids lengths{3, 1, 2, 5, 4};
  for (const int64_t group : {int64_t{3}, int64_t{1} << 61, INT64_MAX}) {
    for (const int64_t batch : {int64_t{2}, int64_t{8}, INT64_MAX}) {
      Generator generator;
      const auto batches = nn::data::length_groups(
          lengths, {.batch = batch, .group = group, .shuffle = false})(generator);
      CHECK(batches == (batch == 2 ? std::vector<Ids>{{1, 2}, {0, 4}, {3}}
                                   : std::vector<Ids>{{1, 2, 0, 4, 3}}));
      CHECK(nn::data::length_groups({}, {.batch = batch, .group = group})(generator).empty());
    }
  }
}

TEST_CASE("loader: no dataset is an error") {
  expect_error<ValueError>("Loader: expected a dataset, got a null pointer", [] {
    nn::data::Loader loader(std::shared_ptr<const nn::data::Dataset>{});
  });
}

TEST_CASE("loader: only text that a loader made is a state") {
  nn::data::Loader loader(numbers(10), {.batch = 4, .device = kCPU});
  loader.next();
  const std::string state = loader.state();
  for (const std::string text : {
           "epoch 99999999999999999999, batch 0 of 3, 10 samples, seed 0, offset 0",
           "epoch -1, batch 0 of 3, 10 samples, seed 0, offset 0",
           "epoch 0, batch 0 of 3, 10 samples, seed -1, offset 0",
           "epoch 0, batch 0 of 3, 10 samples, seed 0, offset 18446744073709551616",
           "epoch 0,batch 0 of 3,10 samples,seed 0,offset 0",
           "epoch 00, batch +0 of 3, 10 samples, seed 0, offset 0",
           "epoch 0, batch 0 of 3, -10 samples, seed 0, offset 0",
           "epoch 0, batch 0 of 0, 10 samples, seed 0, offset 0",
           "epoch 0, batch 0 of 3, 10 samples, seed 0, offset 0 ",
       }) {
    CHECK(thrown_by([&] {
            loader.load_state(text);
          }).starts_with("FormatError: Loader::load_state: expected the state of a loader, got "));
  }
  CHECK(loader.state() == state);
  loader.load_state(state);
}

TEST_CASE("datasets: single samples, and places that they do not have") {
  const TensorOptions host{.device = kCPU};
  const auto all = std::make_shared<nn::data::TensorDataset>(
      nn::data::Batch{arange(0, 6, 1, host).view({3, 2}), tensor({7.0F, 8.0F, 9.0F}, host)});
  const nn::data::Batch one = all->get(1);
  CHECK(one[0].to_vector<float>() == std::vector<float>{2, 3});
  CHECK(one[1].item<float>() == 8);
  const nn::data::Subset part(all, {2, 0});
  CHECK(part.get(0)[1].item<float>() == 9);
  expect_errors({
      {"IndexError: TensorDataset: expected an index in [0, 3), got 3", [&] { all->get(3); }},
      {"IndexError: Subset: expected an index in [0, 2), got -1", [&] { part.get(-1); }},
      {"IndexError: SequenceDataset: expected an index in [0, 1), got 1",
       [] {
         nn::data::SequenceDataset({{1, 2}}).get(1);
       }},
      {"IndexError: TokenDataset: expected an index in [0, 3), got 3",
       [] {
         nn::data::TokenDataset(nn::data::Tokens({1, 2, 3, 4, 5, 6, 7}), 2).get(3);
       }},
  });
}
