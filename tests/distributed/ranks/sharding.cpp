#include <doctest/doctest.h>
#include <sash/core/error.h>
#include <sash/nn/layers/linear.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/loss/mse_loss.h>
#include <sash/optim/adam.h>
#include <sash/optim/data_parallel.h>
#include <sash/optim/lion.h>
#include <sash/optim/muon.h>
#include <sash/optim/rmsprop.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

using namespace sash;
using distributed::Group;
using distributed::world;
using optim::Optimizer;

namespace {

struct Net : nn::ModuleOf<Net> {
  SASH_MODULE(nn::Linear, first, 6, 32);
  SASH_MODULE(nn::Linear, last, 32, 3);  // a bias of 3, which stays whole

  Tensor forward(const Tensor& x) { return last(tanh(first(x))); }
};

using Make = std::function<std::unique_ptr<Optimizer>(const std::vector<Tensor>&)>;
using Bits = std::map<std::string, std::vector<double>>;

void add(Bits& bits, const std::string& name, const Tensor& x) {
  bits[name] = x.detach().to(DType::float64).to(kCPU).to_vector<double>();
}

std::pair<Tensor, Tensor> batch_of(int step, int rank) {
  Generator generator(static_cast<uint64_t>(1000 * step + rank));
  const GeneratorGuard guard(generator);
  return {randn({8, 6}), randn({8, 3})};
}

// The weights, gradients' norm and state after some steps.
Bits train(const Make& make, bool shard, DType dtype, StateDict* saved = nullptr) {
  const Group all = world();
  manual_seed(5);
  Net net;
  net.to(dtype);
  optim::DataParallel parallel(net, all, {.bucket_bytes = 400});
  const std::unique_ptr<Optimizer> optimizer = make(net.parameters());
  if (shard) parallel.shard(*optimizer);
  for (int i = 0; i < 4; ++i) {
    optimizer->zero_grad();
    for (int k = 0; k < 2; ++k) {
      const auto [x, y] = batch_of(2 * i + k, all.rank());
      parallel.set_reduce(k == 1);
      mse_loss(net(x.to(dtype)), y.to(dtype)).backward();
    }
    CHECK(net.first.weight.grad().defined() == !shard);
    optimizer->step();
  }
  parallel.check_equal();
  Bits bits;
  for (const auto& [name, p] : net.named_parameters()) add(bits, name, p);
  const StateDict state = optimizer->state_dict();
  for (const auto& [name, x] : state) add(bits, name, x);
  if (optimizer->grad_norm().defined()) add(bits, "norm", optimizer->grad_norm());
  if (saved) {
    for (const auto& [name, x] : state) saved->emplace_back(name, x.clone());
  }
  return bits;
}

void check_close(const Bits& a, const Bits& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (const auto& [key, values] : a) {
    const std::string& name = key;  // clang 14 captures no structured binding
    CAPTURE(name);
    const std::vector<double>& others = b.at(name);
    REQUIRE(values.size() == others.size());
    double most = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      most = std::max(most, std::abs(values[i] - others[i]));
    }
    CHECK(most <= tolerance);
  }
}

template <class O, class Options>
Make maker(const Options& options) {
  return [=](const std::vector<Tensor>& parameters) {
    return std::make_unique<O>(parameters, options);
  };
}

const std::map<std::string, Make>& makers() {
  static const std::map<std::string, Make> all = {
      {"AdamW", maker<optim::AdamW>(optim::AdamWOptions{.lr = 1e-2})},
      {"AMSGrad", maker<optim::Adam>(optim::AdamOptions{.lr = 1e-2, .amsgrad = true})},
      {"SGD", maker<optim::SGD>(optim::SGDOptions{.lr = 1e-2, .momentum = 0.9})},
      {"RMSprop", maker<optim::RMSprop>(optim::RMSpropOptions{.lr = 1e-2})},
      {"Lion", maker<optim::Lion>(optim::LionOptions{.lr = 1e-2})},
      {"Muon", [](const std::vector<Tensor>& parameters) -> std::unique_ptr<Optimizer> {
         optim::ParamGroup matrices, rest{.ns_steps = 0};
         for (const Tensor& p : parameters) {
           (p.rank() == 2 ? matrices : rest).parameters.push_back(p);
         }
         return std::make_unique<optim::Muon>(std::vector{matrices, rest},
                                              optim::MuonOptions{.lr = 1e-2});
       }}};
  return all;
}

}  // namespace

TEST_CASE("sharding: each optimizer makes the steps that it makes with a whole state") {
  for (const auto& [optimizer, make] : makers()) {
    const std::string name = optimizer;
    CAPTURE(name);
    const bool same_bits = default_device().is_cpu();
    check_close(train(make, true, DType::float32), train(make, false, DType::float32),
                same_bits ? 0 : 1e-5);
  }
}

TEST_CASE("sharding: masters of halves, and clipping by the norm of all parts") {
  const Make masters = maker<optim::AdamW>(optim::AdamWOptions{.lr = 1e-2, .master_weights = true});
  check_close(train(masters, true, DType::bfloat16), train(masters, false, DType::bfloat16),
              default_device().is_cpu() ? 0 : 0.05);
  const Make clipped = maker<optim::AdamW>(optim::AdamWOptions{.lr = 1e-2, .max_grad_norm = 0.1});
  check_close(train(clipped, true, DType::float32), train(clipped, false, DType::float32), 1e-5);
}

TEST_CASE("sharding: a state is whole, and loads on one rank or many") {
  const Group all = world();
  const Make make = makers().at("AdamW");
  StateDict saved;
  train(make, true, DType::float32, &saved);
  for (const bool shard : {false, true}) {
    Net net;
    const std::unique_ptr<Optimizer> optimizer = make(net.parameters());
    if (shard) optimizer->shard(all);
    optimizer->load_state_dict(saved);
    Bits before, after;
    for (const auto& [name, x] : saved) add(before, name, x);
    for (const auto& [name, x] : optimizer->state_dict()) add(after, name, x);
    check_close(after, before, 0);
    if (!shard) optimizer->shard(all);  // of a state that is there already
    after.clear();
    for (const auto& [name, x] : optimizer->state_dict()) add(after, name, x);
    check_close(after, before, 0);
    CHECK_THROWS_AS(optimizer->shard(all), ValueError);
  }
}
