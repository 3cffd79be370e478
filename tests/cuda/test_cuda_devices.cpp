// Tensors on several devices: what does not mix, and copies between cards.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/error.h>
#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

TEST_CASE("cuda devices: operands on two devices are an error") {
  if (missing(kCUDA)) return;
  const Tensor here = ones({4, 4}, {.device = kCPU}), there = here.to(kCUDA);
  const Tensor row = ones({4}, {.device = kCPU}), index = row.to(DType::int64);
  const Tensor k = here.view({1, 1, 4, 4}), q = there.view({1, 1, 4, 4});
  struct Call {
    std::string op, devices;
    std::function<void()> call;
  };
  const std::string cpu_first = "cpu and cuda:0", card_first = "cuda:0 and cpu";
  for (const auto& [op, devices, call] :
       std::vector<Call>{{"add", cpu_first, [&] { add(here, there); }},
                         {"add_", cpu_first, [&] { here.clone().add_(there); }},
                         {"where", cpu_first, [&] { where(gt(here, 0), there, there); }},
                         {"cat", cpu_first,
                          [&] {
                            cat({here, there});
                          }},
                         {"linear", cpu_first, [&] { linear(here, there); }},
                         {"linear", card_first, [&] { linear(there, there, row); }},
                         {"matmul", card_first, [&] { matmul(there, here); }},
                         {"layer_norm", card_first, [&] { layer_norm(there, {4}, row); }},
                         {"mse_loss", card_first, [&] { mse_loss(there, here); }},
                         {"cross_entropy", card_first, [&] { cross_entropy(there, index); }},
                         {"embedding", card_first, [&] { embedding(there, index); }},
                         {"attention", card_first, [&] { attention(q, k, q); }},
                         {"attention", card_first,
                          [&] { attention(q, q, q, {.mask = AttentionMask(gt(here, 0))}); }}}) {
    expect_error<DeviceError>(op + ": expected tensors on one device, got " + devices, call);
  }
}

TEST_CASE("cuda devices: a parameter group on two devices is an error, two groups are not") {
  if (missing(kCUDA)) return;
  const auto parameter = [](Device device) {
    Tensor p = ones({3}, {.device = device, .requires_grad = true});
    p.set_grad(ones({3}, {.device = device}));
    return p;
  };
  const Tensor here = parameter(kCPU), there = parameter(kCUDA);
  const std::vector<Tensor> both = {here, there};
  optim::AdamW mixed(both);
  expect_error<DeviceError>(
      "AdamW.step: expected the parameters of a group on one device, got cpu and cuda:0",
      [&] { mixed.step(); });
  expect_error<DeviceError>("global_norm: expected tensors on one device, got cpu and cuda:0",
                            [&] { optim::clip_grad_norm_(both, 1.0); });
  expect_error<DeviceError>("set_grad: expected a gradient on cuda:0, got cpu",
                            [&] { Tensor(there).set_grad(here.detach()); });
  CHECK(all_equal(here, 1));
  CHECK(all_equal(there, 1));
  optim::AdamW two_groups(
      std::vector<optim::ParamGroup>{{.parameters = {here}, .lr = {}, .weight_decay = {}},
                                     {.parameters = {there}, .lr = {}, .weight_decay = {}}});
  two_groups.step();
  const std::vector<float> a = here.to_vector<float>(), b = there.to_vector<float>();
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i] < 1);
    CHECK(b[i] == doctest::Approx(a[i]).epsilon(1e-6));
  }
}

TEST_CASE("cuda devices: names, indices, and copies between cards") {
  if (missing(kCUDA)) return;
  Backend& cuda = backend(DeviceType::cuda);
  const int count = cuda.device_count();
  CHECK(Device::parse("auto") == kCUDA);
  CHECK(cuda.description(kCUDA).find(" multiprocessors, ") != std::string::npos);
  const Device beyond{DeviceType::cuda, count};
  const std::string number = std::to_string(count);
  expect_error<DeviceError>("cuda: expected an index in [0, " + number + "), got " + number,
                            [&] { ones({2}, {.device = beyond}); });
  if (count < 2) return;
  const Device second{DeviceType::cuda, 1};
  const Tensor first = full({1 << 20}, 5, {.dtype = DType::float32, .device = kCUDA});
  const Tensor x = first.to(second);
  CHECK(x.device() == second);
  CHECK(all_equal((x + x).to(kCUDA), 10));
  CHECK_THROWS_AS(x + first, DeviceError);
}
