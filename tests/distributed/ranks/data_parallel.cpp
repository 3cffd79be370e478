#include <doctest/doctest.h>
#include <sash/core/error.h>
#include <sash/nn/layers/batch_norm.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/sequential.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/loss/mse_loss.h>
#include <sash/optim/adam.h>
#include <sash/optim/captured_step.h>
#include <sash/optim/data_parallel.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <functional>
#include <string>
#include <vector>

#include "../check_error.h"

using namespace sash;
using distributed::Group;
using distributed::world;

namespace {

struct Net : nn::ModuleOf<Net> {
  SASH_MODULE(nn::Linear, first, 6, 32);
  SASH_MODULE(nn::Linear, second, 32, 32);
  SASH_MODULE(nn::Linear, last, 32, 3);
  SASH_MODULE(nn::Linear, spare, 2, 2);
  bool use_spare = false;

  Tensor forward(const Tensor& x) {
    const Tensor y = last(tanh(second(tanh(first(x)))));
    return use_spare ? y + spare(ones({1, 2})).sum() : y;
  }
};

// Batch of rank r in step i, the same wherever it is made.
std::pair<Tensor, Tensor> batch_of(int step, int rank) {
  Generator generator(static_cast<uint64_t>(1000 * step + rank));
  const GeneratorGuard guard(generator);
  return {randn({8, 6}), randn({8, 3})};
}

using Bits = std::vector<std::vector<double>>;

Bits bits_of(nn::Module& model) {
  Bits bits;
  for (const Tensor& x : model.parameters()) {
    bits.push_back(x.detach().to(DType::float64).to(kCPU).to_vector<double>());
  }
  return bits;
}

constexpr int kSteps = 4;

struct How {
  bool capture = false, shard = false;
};

Bits train_together(How how, int64_t bucket_bytes, bool* captured = nullptr) {
  const Group all = world();
  manual_seed(7 + static_cast<uint64_t>(all.rank()));  // rank 0's parameters count
  Net net;
  net.use_spare = true;
  optim::DataParallel parallel(net, all, {.bucket_bytes = bucket_bytes});
  optim::AdamW optimizer(net.parameters(), {.lr = 1e-2, .max_grad_norm = 1.0});
  if (how.shard) parallel.shard(optimizer);
  optim::CapturedStep step(
      [&](const std::vector<Tensor>& batch) {
        optimizer.zero_grad();
        const Tensor loss = mse_loss(net(batch[0]), batch[1]);
        loss.backward();
        optimizer.step();
        return loss;
      },
      {.capture = how.capture});
  for (int i = 0; i < kSteps; ++i) {
    const auto [x, y] = batch_of(i, all.rank());
    step({x, y});
  }
  if (captured) *captured = step.captures() > 0;
  parallel.check_equal();
  return bits_of(net);
}

// One process that accumulates the batches of all ranks.
Bits train_alone(int ranks) {
  manual_seed(7);
  Net net;
  net.use_spare = true;
  optim::AdamW optimizer(net.parameters(), {.lr = 1e-2, .max_grad_norm = 1.0});
  for (int i = 0; i < kSteps; ++i) {
    optimizer.zero_grad();
    for (int r = 0; r < ranks; ++r) {
      const auto [x, y] = batch_of(i, r);
      (mse_loss(net(x), y) / static_cast<double>(ranks)).backward();
    }
    optimizer.step();
  }
  return bits_of(net);
}

double distance(const Bits& a, const Bits& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) most = std::max(most, std::abs(a[i][j] - b[i][j]));
  }
  return most;
}

}  // namespace

TEST_CASE("data parallel: the ranks train as one process that accumulates") {
  const Bits alone = train_alone(world().size());
  for (const int64_t bucket : {int64_t{1}, int64_t{3000}, int64_t{25} << 20}) {
    const Bits together = train_together({}, bucket);
    const int ranks = world().size();
    if (default_device().is_cpu() && (ranks & (ranks - 1)) == 0) {
      CHECK(together == alone);
    } else {
      CHECK(distance(together, alone) < 1e-4);
    }
  }
}

TEST_CASE("data parallel: captured steps have the bits of eager ones") {
  for (const bool shard : {false, true}) {
    CAPTURE(shard);
    bool captured = false;
    const Bits eager = train_together({.shard = shard}, 3000);
    CHECK(train_together({.capture = true, .shard = shard}, 3000, &captured) == eager);
    CHECK(captured == default_device().is_cuda());
  }
}

TEST_CASE("data parallel: unused parameters are named, or permitted") {
  const Group all = world();
  Net net;
  const auto [x, y] = batch_of(0, all.rank());
  const auto run = [&, x = x, y = y](optim::DataParallel&) { mse_loss(net(x), y).backward(); };
  {
    optim::DataParallel parallel(net, all);
    CHECK_ERROR(run(parallel), AutogradError,
                "DataParallel: expected a backward pass that reaches every parameter, or "
                "allow_unused, got no gradient for spare.weight, spare.bias");
    net.use_spare = true;
    for (Tensor p : net.parameters()) p.zero_grad();
    run(parallel);
    CHECK(net.spare.weight.grad().defined());
  }
  for (Tensor p : net.parameters()) p.zero_grad();
  optim::DataParallel parallel(net, all, {.allow_unused = true});
  net.use_spare = all.rank() == 0;  // one rank uses it
  run(parallel);
  CHECK(net.spare.weight.grad().defined());
  const Tensor copy = net.spare.weight.grad().clone();
  all.broadcast(copy);
  CHECK(copy.to(kCPU).to_vector<float>() == net.spare.weight.grad().to(kCPU).to_vector<float>());
  for (Tensor p : net.parameters()) p.zero_grad();
  net.use_spare = false;  // no rank does
  run(parallel);
  CHECK_FALSE(net.spare.weight.grad().defined());
  CHECK(net.first.weight.grad().defined());
}

TEST_CASE("data parallel: accumulated passes are reduced once") {
  const Group all = world();
  manual_seed(3);
  Net net;
  net.use_spare = true;
  optim::DataParallel parallel(net, all);
  const auto gradients = [&](bool once) {
    for (Tensor p : net.parameters()) p.zero_grad();
    for (int i = 0; i < 2; ++i) {
      const auto [x, y] = batch_of(i, all.rank());
      parallel.set_reduce(!once || i == 1);
      mse_loss(net(x), y).backward();
    }
    return net.first.weight.grad().to(DType::float64).to(kCPU).to_vector<double>();
  };
  gradients(true);
  const auto reduced = gradients(true);
  const Tensor copy = net.first.weight.grad().clone();
  all.broadcast(copy);
  CHECK(copy.to(DType::float64).to(kCPU).to_vector<double>() == reduced);
}

TEST_CASE("data parallel: buffers are averaged, differences are named") {
  const Group all = world();
  nn::BatchNorm1d norm(4);
  optim::DataParallel parallel(norm, all);
  norm(full({5, 4}, 1.0 + all.rank()) + arange(4).to(DType::float32));
  CHECK_THROWS_AS(parallel.check_equal(), ValueError);
  parallel.average_buffers();
  parallel.check_equal();
  if (all.rank() == 1) {
    const NoGradGuard no_grad;
    Tensor weight = norm.parameters()[0];
    weight.add_(1.0);
  }
  CHECK_ERROR(parallel.check_equal(), ValueError,
              "DataParallel.check_equal: expected the same bits on all ranks, got others than on "
              "rank 0: weight (rank 1)");
}

TEST_CASE("data parallel: batch norm by the statistics of all ranks") {
  const Group all = world();
  Generator generator(uint64_t{3});
  const GeneratorGuard guard(generator);
  const TensorOptions options{.dtype = DType::float64};
  const Tensor whole = randn({3 * all.size(), 4, 5}, options),
               g = randn({3 * all.size(), 4, 5}, options);
  const auto own = [&](const Tensor& x) { return x.narrow(0, 3 * all.rank(), 3); };
  const auto near = [](const Tensor& a, const Tensor& b) {
    return (a.detach() - b.detach()).abs().max().to(kCPU).item<double>() < 1e-10;
  };
  nn::BatchNorm1d alone(4), together(4, {.ranks = all});
  alone.to(DType::float64);
  together.to(DType::float64);
  const Tensor x = whole.clone().requires_grad_(), part = own(whole).clone().requires_grad_();
  for (int step = 0; step < 2; ++step) {
    const Tensor y = alone(x), z = together(part);
    CHECK(near(z, own(y)));
    (y * g).sum().backward();
    (z * own(g)).sum().backward();
  }
  CHECK(near(part.grad(), own(x.grad())));
  Tensor weight = together.weight.grad().clone();
  all.all_reduce(weight);
  CHECK(near(weight, alone.weight.grad()));
  CHECK(near(together.running_mean, alone.running_mean));
  CHECK(near(together.running_var, alone.running_var));
  together.eval();
  alone.eval();
  CHECK(near(together(part), own(alone(x))));
}

TEST_CASE("data parallel: a pass that throws does not spoil the next one") {
  const Group all = world();
  Net net;
  net.use_spare = true;
  optim::DataParallel parallel(net, all);
  const auto [x, y] = batch_of(0, all.rank());
  mse_loss(net(x), y).backward();
  const auto expected = net.first.weight.grad().to(kCPU).to_vector<float>();
  bool fail = true;
  net.first.weight.register_hook([&](const Tensor& g) {
    if (fail) throw ValueError("hook", "no failure", "one");
    return g;
  });
  for (Tensor p : net.parameters()) p.zero_grad();
  const Tensor loss = mse_loss(net(x), y);
  CHECK_THROWS_AS(loss.backward(), ValueError);
  // Reductions of the failed pass that were begun on all ranks have ended.
  fail = false;
  for (Tensor p : net.parameters()) p.zero_grad();
  mse_loss(net(x), y).backward();
  CHECK(net.first.weight.grad().to(kCPU).to_vector<float>() == expected);
}
