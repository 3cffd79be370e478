// Wrong calls of core and tensor: devices, factories, views, in-place ops, the tape, files.

#include <fstream>
#include <limits>

#include <doctest/doctest.h>

#include <sash/core/backend.h>
#include <sash/core/parallel.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/shape/views.h>
#include <sash/tensor/autograd/gradcheck.h>
#include <sash/tensor/autograd/recompute.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/dlpack.h>
#include <sash/tensor/io/safetensors.h>
#include <sash/tensor/random.h>

#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

using namespace sash;
using sash::testing::expect_error;

namespace {

constexpr TensorOptions kInts{.dtype = DType::int64};
constexpr TensorOptions kDoubles{.dtype = DType::float64};
constexpr TensorOptions kVariable{.requires_grad = true};

}  // namespace

TEST_CASE("wrong calls: devices, dtypes and settings") {
  expect_error<DeviceError>(
      "Device::parse: expected 'auto', 'cpu', 'cuda' or 'cuda:<index>', got 'gpu'",
      [] { Device::parse("gpu"); });
  expect_error<DeviceError>(
      "Device::parse: expected 'auto', 'cpu', 'cuda' or 'cuda:<index>', got 'cuda:-1'",
      [] { Device::parse("cuda:-1"); });
  expect_error<DeviceError>(
      "Device::parse: expected 'auto', 'cpu', 'cuda' or 'cuda:<index>', got ''",
      [] { Device::parse(""); });
  expect_error<ValueError>(
      "parse_dtype: expected one of float32, float64, float16, bfloat16, int32, int64, uint8, "
      "bool, got 'flaot32'",
      [] { parse_dtype("flaot32"); });
  expect_error<DTypeError>("set_default_dtype: expected a floating dtype, got int64",
                           [] { set_default_dtype(DType::int64); });
  expect_error<ValueError>("set_num_threads: expected at least 1, got 0",
                           [] { set_num_threads(0); });
}

TEST_CASE("wrong calls: shapes") {
  expect_error<ShapeError>("shape: expected at most 8 axes, got 9",
                           [] { Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}; });
  expect_error<ShapeError>("shape: expected at most 8 axes, got 9", [] { Dims::filled(9, 1); });
  expect_error<ShapeError>("shape: expected extents of at least 0, got [2, -1]", [] {
    numel({2, -1});
  });
  expect_error<ShapeError>("shape: expected fewer than 2^63 elements, got [4294967296, 4294967296]",
                           [] {
                             numel({int64_t{1} << 32, int64_t{1} << 32});
                           });
  expect_error<IndexError>("mine: expected an axis in [-2, 2) for rank 2, got 2",
                           [] { normalize_axis(2, 2, "mine"); });
  expect_error<ShapeError>("mine: expected shapes that broadcast together, got [2, 3] and [2]", [] {
    broadcast_shapes({2, 3}, {2}, "mine");
  });
}

TEST_CASE("wrong calls: factories") {
  expect_error<ShapeError>("shape: expected extents of at least 0, got [-1]", [] { empty({-1}); });
  expect_error<ShapeError>("empty: expected fewer than 2^63 bytes, got [4611686018427387904]",
                           [] { empty({int64_t{1} << 62}); });
  expect_error<ShapeError>("shape: expected extents of at least 0, got [2, -3]", [] {
    zeros({2, -3});
  });
  expect_error<ShapeError>("shape: expected extents of at least 0, got [-3]",
                           [] { full({-3}, 1); });
  expect_error<DTypeError>("requires_grad_: expected a floating dtype, got int64",
                           [] { full({2}, 1, {.dtype = DType::int64, .requires_grad = true}); });
  expect_error<ValueError>("tensor: expected a defined tensor, got an undefined one",
                           [] { zeros_like(Tensor()); });
  expect_error<ValueError>("arange: expected a step other than 0, got 0", [] { arange(0, 5, 0); });
  expect_error<ValueError>(
      "arange: expected finite bounds and a step, got one that is infinite or NaN",
      [] { arange(0, std::numeric_limits<double>::infinity()); });
  expect_error<ShapeError>("shape: expected extents of at least 0, got [-1, -1]", [] { eye(-1); });
  expect_error<DTypeError>("rand: expected a floating dtype, got int64", [] { rand({2}, kInts); });
  expect_error<DTypeError>("randn: expected a floating dtype, got int64",
                           [] { randn({2}, kInts); });
  expect_error<ValueError>("randint: expected low < high, got 3 and 3", [] { randint(3, 3, {2}); });
  expect_error<ShapeError>("tensor: expected a shape of 3 elements, got [2]", [] {
    tensor(std::vector<float>{1, 2, 3}, {2});
  });
  expect_error<ValueError>("from_host: expected memory, got a null pointer",
                           [] { from_host(nullptr, {2}, DType::float32); });
  expect_error<ValueError>("from_blob: expected memory, got a null pointer",
                           [] { from_blob(nullptr, {2}, DType::float32); });
}

TEST_CASE("wrong calls: pinned memory") {
  expect_error<ValueError>("tensor: expected a defined tensor, got an undefined one",
                           [] { pin_memory(Tensor()); });
  expect_error<AutogradError>(
      "pin_memory: expected a tensor without a gradient, or one under NoGradGuard, got one that "
      "requires grad",
      [] { pin_memory(zeros({2}, kVariable)); });
  expect_error<NotImplemented>("allocate_host: the cpu backend has no page-locked memory",
                               [] { backend(DeviceType::cpu).allocate_host(8); });
  std::string reason;
  if (try_backend(DeviceType::cuda, &reason)) {
    expect_error<DeviceError>("pin_memory: expected a tensor on cpu, got cuda:0",
                              [] { pin_memory(zeros({1}, {.device = kCUDA})); });
    return;
  }
  expect_error<DeviceError>("cuda: " + reason, [] { pin_memory(zeros({2})); });
}

TEST_CASE("wrong calls: elements of a tensor") {
  const Tensor x = zeros({2, 3});
  const Tensor none;
  expect_error<ValueError>("tensor: expected a defined tensor, got an undefined one",
                           [&] { none.shape(); });
  expect_error<ValueError>("tensor: expected a defined tensor, got an undefined one",
                           [&] { none.to(DType::float64); });
  expect_error<IndexError>("size: expected an axis in [-2, 2) for rank 2, got 2",
                           [&] { x.size(2); });
  expect_error<DTypeError>("data: expected float64, got float32", [&] { x.data<double>(); });
  expect_error<ShapeError>("item: expected one element, got shape [2, 3]",
                           [&] { x.item<float>(); });
}

TEST_CASE("wrong calls: views") {
  const Tensor x = zeros({2, 3});
  expect_error<ShapeError>("view: expected a shape of 6 elements for [2, 3], got [4]",
                           [&] { x.view({4}); });
  expect_error<ShapeError>("view: expected a shape of 6 elements for [2, 3], got [-1, -1]", [&] {
    x.view({-1, -1});
  });
  expect_error<ShapeError>(
      "view: expected strides that walk [6] without a copy; reshape copies, got [3, 2] with "
      "strides [1, 3]",
      [&] { x.mT().view({6}); });
  expect_error<ShapeError>("reshape: expected a shape of 6 elements for [2, 3], got [4, -1]", [&] {
    x.reshape({4, -1});
  });
  expect_error<ValueError>("flatten: expected first_axis <= last_axis, got 1 and 0",
                           [&] { x.flatten(1, 0); });
  expect_error<ShapeError>("permute: expected 2 axes, got [0, 1, 2]", [&] {
    x.permute({0, 1, 2});
  });
  expect_error<ValueError>("permute: expected each axis once, got [0, 0]", [&] {
    x.permute({0, 0});
  });
  expect_error<IndexError>("transpose: expected an axis in [-2, 2) for rank 2, got 2",
                           [&] { x.transpose(0, 2); });
  expect_error<IndexError>("transpose: expected an axis in [-1, 1) for rank 1, got -2",
                           [] { zeros({3}).mT(); });
  expect_error<IndexError>("squeeze: expected an axis in [-2, 2) for rank 2, got 2",
                           [&] { x.squeeze(2); });
  expect_error<IndexError>("unsqueeze: expected an axis in [-3, 3) for rank 3, got 3",
                           [&] { x.unsqueeze(3); });
  expect_error<ShapeError>("expand: expected a shape that [2, 3] broadcasts to, got [4, 3]", [&] {
    x.expand({4, 3});
  });
  expect_error<IndexError>("slice: expected an axis in [-2, 2) for rank 2, got 2",
                           [&] { x.slice(2, 0); });
  expect_error<ValueError>("slice: expected a step of at least 1, got 0",
                           [&] { x.slice(0, 0, {}, 0); });
  expect_error<IndexError>("narrow: expected a range within extent 3, got start 2, length 2",
                           [&] { x.narrow(1, 2, 2); });
  expect_error<IndexError>("select: expected an index in [-3, 3) for axis 1, got 3",
                           [&] { x.select(1, 3); });
  expect_error<IndexError>("select: expected an index in [-2, 2) for axis 0, got -3",
                           [&] { x[-3]; });
  expect_error<IndexError>("select: expected an axis in [0, 0) for rank 0, got 0",
                           [&] { zeros({})[0]; });
  expect_error<ShapeError>(
      "unslice: expected a slice of [2, 2] along axis 1 from 0 by 1, got [2, 3]", [&] {
        unslice(x, {2, 2}, 1, 0, 1);
      });
}

TEST_CASE("wrong calls: in-place ops, which then leave the elements alone") {
  Tensor x = zeros({2, 3});
  Tensor leaf = zeros({2, 3}, kVariable);
  Tensor ints = zeros({2}, kInts);
  const Tensor wrong = ones({2});
  expect_error<ShapeError>("add_: expected shapes that broadcast together, got [2, 3] and [2]",
                           [&] { x.add_(wrong); });
  expect_error<DTypeError>("sub_: expected a result that may be cast to int64, got float32",
                           [&] { ints.sub_(ones({2})); });
  expect_error<ShapeError>("add_: expected a tensor that broadcasts to [3], got [2, 3]",
                           [&] { ones({3}).add_(x); });
  expect_error<AutogradError>(
      "mul_: a leaf that requires grad cannot be written in place while recording; use NoGradGuard "
      "or write to a result of it",
      [&] { leaf.mul_(2); });
  expect_error<AutogradError>(
      "add_: a leaf that requires grad cannot be written in place while recording; use NoGradGuard "
      "or write to a result of it",
      [&] { leaf.add_(x); });
  expect_error<AutogradError>(
      "fill_: a leaf that requires grad cannot be written in place while recording; use "
      "NoGradGuard or write to a result of it",
      [&] { leaf.zero_(); });
  expect_error<AutogradError>(
      "mul_: a view of a leaf that requires grad cannot be written in place while recording; use "
      "NoGradGuard or write to a result of it",
      [&] { leaf.narrow(0, 0, 1).mul_(x.narrow(0, 0, 1)); });
  expect_error<DTypeError>("div_: expected a floating dtype, got int64", [&] { ints.div_(ints); });
  expect_error<ShapeError>("copy_: expected shapes that broadcast together, got [2, 3] and [2]",
                           [&] { x.copy_(wrong); });
  expect_error<ValueError>(
      "mul_: expected an element of memory for each element of the tensor, got an expanded tensor "
      "of shape [2, 3]",
      [&] {
        ones({3}).expand({2, 3}).mul_(2);
      });
  CHECK(x.sum().item<float>() == 0);
  CHECK(leaf.sum().item<float>() == 0);
}

TEST_CASE("wrong calls of the random generator use up no numbers") {
  const RandomState before = random_state();
  expect_error<DTypeError>("randint: expected int64 or int32, got float32",
                           [] { randint(0, 3, {2}, {.dtype = DType::float32}); });
  expect_error<ValueError>("randint: expected bounds that int32 holds, got 0 and 2147483649",
                           [] { randint(0, 2147483649, {2}, {.dtype = DType::int32}); });
  expect_error<ValueError>("randint: expected bounds that int32 holds, got -2147483649 and 0",
                           [] { randint(-2147483649, 0, {2}, {.dtype = DType::int32}); });
  expect_error<DTypeError>("rand: expected a floating dtype, got bool",
                           [] { rand({2}, {.dtype = DType::boolean}); });
  CHECK(random_state() == before);
}

TEST_CASE("wrong calls: variables and gradients") {
  const Tensor x = zeros({2, 3});
  Tensor leaf = zeros({2, 3}, kVariable);
  Tensor product = leaf * 2;
  expect_error<DTypeError>("requires_grad_: expected a floating dtype, got int64",
                           [] { zeros({2}, kInts).requires_grad_(); });
  expect_error<AutogradError>(
      "requires_grad_: expected a leaf, got the output of a recorded op; use detach()",
      [&] { product.requires_grad_(false); });
  expect_error<ShapeError>("set_grad: expected a gradient of shape [2, 3], got [2]",
                           [&] { leaf.set_grad(zeros({2})); });
  expect_error<DTypeError>("set_grad: expected a gradient of dtype float32, got float64", [&] {
    leaf.set_grad(zeros({2, 3}, kDoubles));
  });
  expect_error<AutogradError>(
      "retain_grad: expected a tensor that requires grad, got one that does not",
      [&] { Tensor(x).retain_grad(); });
  expect_error<AutogradError>(
      "register_hook: expected a tensor that requires grad, got one that does not",
      [&] { Tensor(x).register_hook([](const Tensor& g) { return g; }); });
}

TEST_CASE("wrong calls: backward passes") {
  const Tensor x = zeros({2, 3});
  const Tensor leaf = zeros({2, 3}, kVariable);
  const Tensor unused = zeros({1}, kVariable);
  expect_error<AutogradError>(
      "backward: expected a tensor that requires grad, got one without history",
      [&] { x.sum().backward(); });
  expect_error<AutogradError>(
      "backward: expected a one-element tensor, or a gradient for it, got shape [2, 3]",
      [&] { (leaf * 2).backward(); });
  expect_error<ShapeError>("backward: expected a gradient of shape [2, 3], got [2]",
                           [&] { (leaf * 2).backward(zeros({2})); });
  expect_error<DTypeError>("backward: expected a gradient of dtype float32, got float64", [&] {
    (leaf * 2).backward(zeros({2, 3}, kDoubles));
  });
  expect_error<ValueError>("backward: expected 1 output gradients, got 2", [&] {
    backward({leaf.sum()}, {ones({}), ones({})});
  });
  expect_error<AutogradError>(
      "mul: what it saved was freed by an earlier backward pass; ask for retain_graph in that one",
      [&] {
        const Tensor y = (leaf * leaf).sum();
        y.backward();
        y.backward();
      });
  expect_error<AutogradError>(
      "mul: a saved tensor (float32 [2, 3]) was overwritten in place between the forward and the "
      "backward pass: expected version 0, got 1",
      [&] {
        const Tensor a = leaf * 1;
        Tensor b = ones({2, 3});
        const Tensor y = (a * b).sum();
        b.fill_(3);
        y.backward();
      });
  expect_error<AutogradError>("grad: expected inputs that require grad, got one that does not",
                              [&] { grad({leaf.sum()}, {x}); });
  expect_error<AutogradError>("grad: input 1 was not used by the outputs (allow_unused permits it)",
                              [&] {
                                grad({leaf.sum()}, {leaf, unused});
                              });
  expect_error<AutogradError>(
      "checkpoint: expected a pass without create_graph, got one with it: the second run has no "
      "second derivatives",
      [&] {
        const Tensor y = checkpoint([](const Tensor& a) { return a * a; }, leaf);
        y.sum().backward({.create_graph = true});
      });
}

TEST_CASE("wrong calls: gradient checks") {
  const auto square = [](const std::vector<Tensor>& in) { return in[0] * in[0]; };
  const Tensor leaf = ones({2}, kVariable);
  expect_error<DTypeError>(
      "gradcheck: expected float64 inputs (differences need the precision), got float32",
      [&] { gradcheck(square, {leaf}); });
  expect_error<DTypeError>("gradgradcheck: expected float64 outputs, got float32",
                           [&] { gradgradcheck(square, {leaf}); });
  expect_error<ValueError>("gradcheck: expected an input that requires grad, got none",
                           [&] { gradcheck(square, {ones({2}, kDoubles)}); });
}

TEST_CASE("wrong calls: files and exchange") {
  const TemporaryFolder folder;
  const Tensor x = zeros({2});
  expect_error<IoError>("load_safetensors: cannot open '/nowhere/x': No such file or directory",
                        [] { load_safetensors("/nowhere/x"); });
  expect_error<IoError>("save_safetensors: cannot create '/nowhere/x': No such file or directory",
                        [&] {
                          save_safetensors("/nowhere/x", {{"x", x}});
                        });
  expect_error<ValueError>("save_safetensors: expected distinct names, got 'x' twice", [&] {
    save_safetensors(folder.file("a"), {{"x", x}, {"x", x}});
  });
  expect_error<ValueError>("save_safetensors: expected defined tensors, got 'x' undefined", [&] {
    save_safetensors(folder.file("a"), {{"x", {}}});
  });
  expect_error<AutogradError>(
      "to_dlpack: expected a tensor without a gradient (detach it), got one that requires grad",
      [] { to_dlpack(zeros({2}, kVariable)); });
}
