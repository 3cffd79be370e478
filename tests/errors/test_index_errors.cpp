// Indices out of range: thrown by the call on the CPU; on a card by the next wait, and not by the
// one after.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/error.h>
#include <sash/sash.h>

#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

Tensor indices(const std::vector<int64_t>& values, const Shape& shape, Device device) {
  return tensor(values, shape, {.device = device});
}

}  // namespace

TEST_CASE_TEMPLATE("indices: the error of one out of range names op, range and value", On, Cpu,
                   Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  const Tensor x = randn({5, 6}, {.device = device});
  const auto at = [&](const std::vector<int64_t>& values, const Shape& shape) {
    return indices(values, shape, device);
  };
  struct Call {
    std::string op, kernel;  // named by the CPU, and by a card
    std::string text;
    std::string element;  // that a card names; empty if it may be one of several
    std::function<void()> call;
  };
  for (const auto& [op, kernel, text, element, call] : std::vector<Call>{
           {"embedding", "embedding", "[0, 5), got 5", "1",
            [&] {
              embedding(x, at({0, 5, 4}, {3}));
            }},
           {"embedding", "embedding", "[0, 5), got -1", "0", [&] { embedding(x, at({-1}, {1})); }},
           {"embedding", "embedding", "[0, 5), got ", "",
            [&] {
              embedding(x, at({0, 5, 1, -1}, {4}));
            }},
           {"embedding_backward", "embedding_backward", "[0, 5), got 7", "",
            [&] {
              embedding_backward(x, at({7, 1, 0, 2, 3}, {5}), 5);
            }},
           {"cross_entropy", "cross_entropy",
            device.is_cpu() ? "[0, 6) or -100, got 6" : "[0, 6), got 6", "2",
            [&] {
              cross_entropy(x, at({0, 5, 6, -100, 1}, {5}));
            }},
           {"gather", "gather", "[-5, 5), got 9", "",
            [&] {
              gather(x, 0, at({0, 1, 9}, {1, 3}));
            }},
           {"index_select", "gather", "[-5, 5), got 5", "",
            [&] {
              index_select(x, 0, at({0, 5}, {2}));
            }},
           {"scatter_add", "scatter_add", "[-6, 6), got -7", "0",
            [&] {
              scatter_add(x, 1, at({-7}, {1, 1}), x);
            }},
           {"scatter_add", "scatter_add", "[-6, 6), got -8", "",
            [&] {
              scatter_add(x, 1, at({0, -8}, {2, 1}), x);
            }},
           {"scatter", "scatter", "[-6, 6), got 6", "0",
            [&] {
              scatter(x, 1, at({6}, {1, 1}), x);
            }},
           {"one_hot", "embedding", "[0, 2), got -1", "0",
            [&] {
              one_hot(at({-1, 1}, {2}), 2);
            }},
           {"one_hot", "embedding", "[0, 2), got 2", "", [&] {
              one_hot(at({0, 2}, {2}), 2);
            }}}) {
    const std::string found = error_of<IndexError>(device, call);
    const std::string start = (device.is_cpu() ? op : kernel) + ": expected indices in " + text;
    CHECK_MESSAGE(found.starts_with(start), found);
    const std::string place = device.is_cpu() ? " at [" : " at element " + element;
    CHECK_MESSAGE(found.find(place) != std::string::npos, found);
  }
}

TEST_CASE_TEMPLATE("indices: training goes on after a bad token", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  nn::CausalLM model({.vocab = 29, .context = 16, .dim = 32, .heads = 2, .layers = 2});
  model.to(device);
  const auto loss_of = [&](const Tensor& tokens) {
    model.zero_grad();
    const Tensor loss = cross_entropy(model(tokens), tokens);
    loss.backward();
    return loss.item<double>();
  };
  Tensor tokens = randint(0, 29, {4, 16}, {.device = kCPU}), bad = tokens.clone();
  bad.narrow(1, 3, 1).fill_(29);
  CHECK_THROWS_WITH_AS(loss_of(bad.to(device)),
                       doctest::Contains("embedding: expected indices in [0, 29), got 29 at "),
                       IndexError);
  CHECK(std::isfinite(loss_of(tokens.to(device))));
  for (const Tensor& p : model.parameters()) CHECK(std::isfinite(p.grad().sum().item<double>()));
}

TEST_CASE("cuda indices: reading any tensor throws the error of a queued call") {
  if (missing(kCUDA)) return;
  const Tensor x = randn({4, 6}, {.device = kCUDA});
  const Tensor fine = embedding(x, indices({0, 4, 1, -1}, {4}, kCUDA));
  CHECK_THROWS_AS(x.to_vector<float>(), IndexError);
  CHECK_NOTHROW(x.to_vector<float>());
}
