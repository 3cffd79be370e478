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
#include "../support/scopes.h"

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
                         {"attention", card_first, [&] { attention(q, k, q); }}}) {
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
  const std::string group =
      "the parameters of a group on one device (make a group for each device), got cpu and cuda:0";
  expect_error<DeviceError>("AdamW: expected " + group, [&] { optim::AdamW{both}; });
  expect_error<DeviceError>("global_norm: expected tensors on one device, got cpu and cuda:0", [&] {
    global_norm(std::vector<Tensor>{here.grad(), there.grad()});
  });
  const std::string clipped =
      ": expected gradients on one device (call this once for each device), got cpu and "
      "cuda:0";
  Tensor wide = ones({2, 3}, {.device = kCPU, .requires_grad = true});
  wide.set_grad(ones({3, 2}, {.device = kCPU}).transpose(0, 1));
  const std::vector<Tensor> three = {wide, here, there};
  expect_error<DeviceError>("clip_grad_norm_" + clipped,
                            [&] { optim::clip_grad_norm_(three, 1.0); });
  expect_error<DeviceError>("clip_grad_value_" + clipped,
                            [&] { optim::clip_grad_value_(three, 0.1); });
  CHECK(!wide.grad().is_contiguous());  // nothing was written
  CHECK(all_equal(here.grad(), 1));
  expect_error<DeviceError>("set_grad: expected a gradient on cuda:0, got cpu",
                            [&] { Tensor(there).set_grad(here.detach()); });
  CHECK(all_equal(here, 1));
  CHECK(all_equal(there, 1));
  const std::vector<optim::ParamGroup> groups = {
      {.parameters = {here}, .lr = {}, .weight_decay = {}},
      {.parameters = {there}, .lr = {}, .weight_decay = {}}};
  const auto refuses_one_norm = [](optim::Optimizer& optimizer) {
    expect_error<DeviceError>(
        "AdamW.step: expected all parameters on one device (max_grad_norm, skip_nonfinite and "
        "GradScaler take one norm of all gradients), got cpu and cuda:0",
        [&] { optimizer.step(); });
    CHECK(!find(optimizer.state_dict(), "state.0.exp_avg"));  // nothing was made
  };
  optim::AdamW clips(groups, {.max_grad_norm = 1}), skips(groups);
  skips.set_skip_nonfinite(true);
  refuses_one_norm(clips);
  refuses_one_norm(skips);
  CHECK(all_equal(here, 1));
  CHECK(all_equal(there, 1));
  optim::AdamW two_groups(groups);
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
}

TEST_CASE("cuda cards: copies between two cards, and the operands of ops on one") {
  if (missing(kCUDA, 2)) return;
  const Device second{DeviceType::cuda, 1};
  const Tensor first = full({1 << 20}, 5, {.dtype = DType::float32, .device = kCUDA});
  const Tensor x = first.to(second);
  CHECK(x.device() == second);
  CHECK(all_equal((x + x).to(kCUDA), 10));
  CHECK_THROWS_AS(x + first, DeviceError);
}

TEST_CASE("cuda cards: the source of a copy may be overwritten or freed, the target be in use") {
  if (missing(kCUDA, 2)) return;
  const Device second{DeviceType::cuda, 1};
  constexpr int64_t kCount = int64_t{64} << 20;
  for (const auto& [from, to] : {std::pair{kCUDA, second}, std::pair{second, kCUDA}}) {
    CAPTURE(to_string(from));
    const TensorOptions here{.dtype = DType::float32, .device = from};
    Tensor busy = empty({kCount}, here), source = full({kCount}, 0, here);
    Tensor target = full({kCount}, -1, {.dtype = DType::float32, .device = to});
    std::vector<Tensor> sums;
    for (int i = 1; i <= 4; ++i) {
      for (int k = 0; k < 20; ++k) busy.fill_(k);
      source.fill_(i);
      const Tensor before = target.clone();  // still reads the target when the copy is queued
      target.copy_(source);
      source.fill_(-i);  // behind the copy
      Tensor brief = full({kCount}, 10 * i, here);
      const Tensor copied = brief.to(to);
      brief = Tensor();
      const Tensor reused = full({kCount}, -10 * i, here);
      sums.push_back(before + target * 100 + copied * 1000);
    }
    for (int i = 1; i <= 4; ++i) {
      CAPTURE(i);
      const int before = i == 1 ? -1 : i - 1;
      CHECK(all_equal(sums[size_t(i - 1)], before + 100.0 * i + 10000.0 * i));
    }
    CHECK(all_equal(source, -4));
  }
}

TEST_CASE("cuda cards: a copy to another card ends neither card's capture") {
  if (missing(kCUDA, 2)) return;
  const Device second{DeviceType::cuda, 1};
  for (const Device recorded : {kCUDA, second}) {
    CAPTURE(to_string(recorded));
    const Tensor x = full({1000}, 2, {.dtype = DType::float32, .device = recorded});
    const Tensor a = full({1000}, 3, {.dtype = DType::float32, .device = kCUDA});
    Tensor y;
    Graph graph(recorded);
    y = x + x;
    expect_error<DeviceError>("copy: expected work that stays on " + to_string(recorded) +
                                  " during a capture, got a copy from cuda:0 to cuda:1",
                              [&] { a.to(second); });
    y = y + x;
    graph.end();
    graph.replay();
    CHECK(all_equal(y, 6));
  }
}

TEST_CASE("how many cards are required") {
  for (const auto& [text, count] : {std::pair{"1", 1}, std::pair{"2", 2}, std::pair{"yes", 1}}) {
    const Environment asked("SASH_REQUIRE_CUDA", text);
    CHECK(required_cards() == count);
  }
  const Environment asked("SASH_REQUIRE_CUDA", nullptr);
  CHECK(required_cards() == 0);
}
