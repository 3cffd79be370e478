// Typed errors for the largest numbers, absent devices and empty functions.
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <sash/nn/attention/position_bias.h>
#include <sash/ops/attention/exact/packed_heads.h>
#include <sash/sash.h>

#include "../support/expect_error.h"
#include "../support/scopes.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

}  // namespace

TEST_CASE("a CPU index other than 0 is refused") {
  for (const int index : {5, -1}) {
    const Device device{DeviceType::cpu, index};
    const std::string error =
        "DeviceError: cpu: expected an index in [0, 1), got " + std::to_string(index);
    float memory[2] = {};
    expect_errors({
        {error, [&] { zeros({2}, {.device = device}); }},
        {error, [&] { zeros({0}, {.device = device}); }},
        {error, [&] { ones({2}).to(device); }},
        {error, [&] { from_blob(memory, {2}, DType::float32, device); }},
        {error, [&] { set_default_device(device); }},
        {error, [&] { memory_stats(device); }},
        {error, [&] { synchronize(device); }},
        {error, [&] { empty_cache(device); }},
        {error, [&] { reset_peak_memory(device); }},
    });
  }
  CHECK(default_device() == kCPU);
}

TEST_CASE("wrong calls: empty functions") {
  Tensor x = ones({2}, {.requires_grad = true});
  const std::function<Tensor(const Tensor&)> one;
  const std::function<std::vector<Tensor>(const std::vector<Tensor>&)> many;
  const std::function<Tensor(const std::vector<Tensor>&)> single;
  const std::vector<Tensor> inputs{x};
  const std::string empty = ": expected a function, got an empty one";
  const std::string no_hook = "ValueError: register_hook: expected a hook, got an empty function";
  expect_errors({
      {no_hook, [&] { x.clone().register_hook({}); }},
      {no_hook, [&] { x.register_hook({}); }},
      {"ValueError: checkpoint" + empty, [&] { checkpoint(one, x); }},
      {"ValueError: checkpoint" + empty, [&] { checkpoint(many, inputs); }},
      {"ValueError: checkpoint: expected outputs, got an undefined tensor",
       [&] { checkpoint([](const Tensor&) { return Tensor(); }, x); }},
      {"ValueError: gradcheck" + empty, [&] { gradcheck(many, inputs); }},
      {"ValueError: gradcheck" + empty, [&] { gradcheck(single, inputs); }},
      {"ValueError: gradgradcheck" + empty, [&] { gradgradcheck(many, inputs); }},
      {"ValueError: gradgradcheck" + empty, [&] { gradgradcheck(single, inputs); }},
      {"ValueError: Linear.apply" + empty, [] { nn::Linear(2, 2).apply({}); }},
  });
}

TEST_CASE("wrong calls: numbers of heads") {
  const Tensor x = ones({2, 3, 8});
  CHECK(split_heads(x, 4).shape() == Shape{2, 4, 3, 2});
  for (const int64_t heads : {int64_t{0}, int64_t{-2}, int64_t{3}, kHuge, -kHuge - 1}) {
    expect_error<ShapeError>(
        "split_heads: expected a last extent divisible by a positive number of heads, got [2, 3, "
        "8] and " +
            std::to_string(heads) + " heads",
        [&] { split_heads(x, heads); });
  }
  expect_errors({
      {"ShapeError: split_heads: expected 3 axes, got [2]", [] { split_heads(ones({2}), 1); }},
      {"ShapeError: merge_heads: expected 4 axes, got [2]", [] { merge_heads(ones({2})); }},
  });
  CHECK_THROWS_AS(split_packed_heads(x, kHuge), ShapeError);
  CHECK_THROWS_AS(split_packed_heads(x, 2, kHuge), ShapeError);
  CHECK_THROWS_AS(split_packed_heads(x, 2, kHuge / 2 + 1), ShapeError);
}

TEST_CASE("more slopes than memory holds give a typed error") {
  CHECK_THROWS_AS(nn::alibi_slopes(kHuge), Error);
  CHECK_THROWS_AS(nn::alibi_slopes(int64_t{1} << 50), Error);
  CHECK(nn::alibi_slopes(2).to_vector<double>() == std::vector<double>{0.0625, 0.00390625});
}

TEST_CASE("more repeats than memory holds give a typed error") {
  const Tensor x = ones({2});
  const auto counts = [](int64_t a, int64_t b) { return tensor<int64_t>({a, b}); };
  expect_error<ShapeError>(
      "repeat_interleave: expected counts whose sum is below 2^63, got more",
      [&] { repeat_interleave(x, counts(int64_t{1} << 62, int64_t{1} << 62), 0); });
  CHECK_THROWS_AS(repeat_interleave(x, counts(int64_t{1} << 61, 1), 0), ShapeError);
  CHECK_THROWS_AS(repeat_interleave(x, counts(int64_t{1} << 45, 1), 0), OutOfMemory);
}

TEST_CASE("pools of kernels far larger than the input take no longer than others") {
  const int64_t kernel = int64_t{1} << 40;
  const Tensor x = tensor<double>({1, 3, 2}).view({1, 1, 3}).requires_grad_();
  const Tensor most = max_pool1d(x, kernel, {.stride = 1, .padding = kernel / 2});
  CHECK(most.to_vector<double>() == std::vector<double>{3, 3, 3, 3});
  const Tensor mean = avg_pool1d(x, kernel, {.stride = 1, .padding = kernel / 2}) * 0x1p40;
  CHECK(mean.to_vector<double>() == std::vector<double>{6, 6, 6, 6});
  CHECK(grad({mean.sum()}, {x})[0].to_vector<double>() == std::vector<double>{4, 4, 4});
  const Tensor plane = x.detach().view({1, 1, 1, 3});
  CHECK(max_pool2d(plane, kernel, {.stride = kernel, .padding = kernel / 2}).to_vector<double>() ==
        std::vector<double>{3});
}

TEST_CASE("the largest steps, starts and counts of views") {
  const Tensor x = arange(0, 10).to(DType::float64).requires_grad_();
  for (const int64_t step : {kHuge, kHuge - 1, kHuge / 2, int64_t{10}, int64_t{9}}) {
    const Tensor y = x.slice(0, 1, std::nullopt, step);
    CHECK(y.to_vector<double>() == std::vector<double>{1});
    const std::vector<double> g = grad({y.sum()}, {x})[0].to_vector<double>();
    CHECK(g == std::vector<double>{0, 1, 0, 0, 0, 0, 0, 0, 0, 0});
  }
  CHECK(x.slice(0, 0, 9, 9).numel() == 1);
  CHECK(x.slice(0, 0, 10, 9).numel() == 2);
  CHECK(x.slice(0, kHuge, kHuge, kHuge).numel() == 0);
  CHECK(x.slice(0, -kHuge - 1, kHuge).numel() == 10);
  CHECK(x.slice(0, 5, -kHuge - 1).numel() == 0);
  CHECK(ones({2, 0}).slice(1, 0, std::nullopt, kHuge).numel() == 0);
  const Tensor one = ones({1}, {.dtype = DType::float64});
  CHECK(slice_backward(one, {4}, 0, 3, kHuge).to_vector<double>() ==
        std::vector<double>{0, 0, 0, 1});
  CHECK_THROWS_AS(slice_backward(one, {4}, 0, kHuge, kHuge), ShapeError);
  CHECK_THROWS_AS(slice_backward(ones({3}), {4}, 0, 1, kHuge), ShapeError);
  CHECK_THROWS_AS(slice_backward(ones({3}), {4}, 0, 1, kHuge / 2 + 1), ShapeError);
  CHECK_THROWS_AS(x.narrow(0, kHuge, kHuge), IndexError);
  CHECK(split(x, kHuge).size() == 1);
  CHECK(chunk(x, kHuge).size() == 10);
  CHECK_THROWS_AS(ones({0, kHuge / 2, 4}).flatten(1, 2), ShapeError);
}

TEST_CASE("the farthest diagonals of tril and triu") {
  using Values = std::vector<float>;
  const Tensor x = ones({2, 3});
  for (const int64_t far : {int64_t{3}, int64_t{4}, kHuge - 1, kHuge}) {
    CAPTURE(far);
    CHECK(tril(x, far).to_vector<float>() == Values(6, 1));
    CHECK(triu(x, far).to_vector<float>() == Values(6, 0));
    CHECK(tril(x, -far).to_vector<float>() == Values(6, 0));
    CHECK(triu(x, -far).to_vector<float>() == Values(6, 1));
    CHECK(tril(x, -far - 1).to_vector<float>() == Values(6, 0));
    CHECK(triu(x, -far - 1).to_vector<float>() == Values(6, 1));
  }
  CHECK(tril(x, 1).to_vector<float>() == Values{1, 1, 0, 1, 1, 1});
  CHECK(triu(x, -1).to_vector<float>() == Values(6, 1));
  CHECK(tril(zeros({0, 3}), kHuge).shape() == Shape{0, 3});
}

TEST_CASE("the largest widths of pad, and numbers of groups") {
  const Tensor x = ones({2, 3});
  const Tensor none = ones({0, 3});
  CHECK(pad(none, {kHuge - 3, 0}).numel() == 0);
  const std::string widths = "ShapeError: pad: expected widths that leave a part of [2, 3], got ";
  expect_errors({
      {widths + "[-9223372036854775808, 0]",
       [&] {
         pad(x, {-kHuge - 1, 0});
       }},
      {widths + "[0, -9223372036854775808]",
       [&] {
         pad(x, {0, -kHuge - 1});
       }},
      {widths + "[9223372036854775807, 0]",
       [&] {
         pad(x, {kHuge, 0});
       }},
      {"ShapeError: conv1d: expected channels C of x and O of weight that are split into "
       "9223372036854775807 groups, got [2, 3] and [2, 2, 1]",
       [&] {
         conv1d(x, ones({2, 2, 1}), {}, {.groups = kHuge});
       }},
  });
}

TEST_CASE("repeats beyond 2^63 of nothing") {
  const Tensor none = empty({0, 4});
  CHECK(none.repeat({2, int64_t{1} << 60}).shape() == Shape{0, int64_t{1} << 62});
  constexpr int64_t far = int64_t{1} << 40;
  CHECK(empty({0, far, far, 2}).repeat_interleave(3, 3).shape() == Shape{0, far, far, 6});
  CHECK(empty({far, far, 0}).repeat({1, 1, 2}).shape() == Shape{far, far, 0});
  expect_errors({
      {"ShapeError: repeat: expected extents below 2^63, got [0, 4], axis 1 4611686018427387904 "
       "times",
       [&] {
         none.repeat({1, int64_t{1} << 62});
       }},
      {"ShapeError: repeat_interleave: expected extents below 2^63, got [0, 4], axis 1 "
       "4611686018427387904 times",
       [&] { none.repeat_interleave(int64_t{1} << 62, 1); }},
  });
}

TEST_CASE("tensors without elements are contiguous, however large their other extents") {
  constexpr int64_t wide = int64_t{1} << 40;
  const Tensor none = empty({0, wide, wide});
  CHECK(none.is_contiguous());
  CHECK(none.mT().contiguous().is_contiguous());
  CHECK(empty({wide, 0, wide}).is_contiguous());
  CHECK(empty({wide, wide, 0}).is_contiguous());
  CHECK_FALSE(empty({2, 3}).mT().is_contiguous());
}

TEST_CASE("load_safetensors reads into the default device unless one is named") {
  const TemporaryFolder folder;
  save_safetensors(folder.file("x"), {{"a", ones({2})}});
  CHECK(load_safetensors(folder.file("x")).tensors[0].second.device() == default_device());
  CHECK(load_safetensors(folder.file("x"), kCPU).tensors[0].second.device() == kCPU);
  if (!try_backend(DeviceType::cuda)) return;
  const DefaultDevice card(kCUDA);
  CHECK(load_safetensors(folder.file("x")).tensors[0].second.device() == kCUDA);
  CHECK(load_safetensors(folder.file("x"), kCPU).tensors[0].second.device() == kCPU);
}
