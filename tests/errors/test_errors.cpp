// Wrong calls of core and tensor: devices, factories, views, in-place ops, the tape, files.

#include <fstream>
#include <limits>
#include <utility>

#include <doctest/doctest.h>

#include <sash/core/backend/backend.h>
#include <sash/core/parallel.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/kernels/index.h>
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
using namespace sash::testing;

namespace {

constexpr TensorOptions kVariable{.requires_grad = true};

const std::string kUndefined =
    "ValueError: tensor: expected a defined tensor, got an undefined one";

std::string leaf_written(const std::string& op, const std::string& what = "a leaf") {
  return "AutogradError: " + op + ": " + what +
         " that requires grad cannot be written in place while recording; use NoGradGuard or write "
         "to a result of it";
}

}  // namespace

TEST_CASE("dtypes: each has a name, and floating ones a short name") {
  const std::pair<const char*, DType> names[] = {
      {"float32", DType::float32}, {"float64", DType::float64},   {"float16", DType::float16},
      {"f32", DType::float32},     {"f64", DType::float64},       {"f16", DType::float16},
      {"int32", DType::int32},     {"bfloat16", DType::bfloat16}, {"bf16", DType::bfloat16},
      {"int64", DType::int64},     {"uint8", DType::uint8},       {"bool", DType::boolean}};
  for (const auto& [text, dtype] : names) CHECK(parse_dtype(text) == dtype);
}

TEST_CASE("wrong calls: a kernel names the dtypes that it takes") {
  const Tensor x = zeros({2}, {.dtype = DType::uint8, .device = kCPU});
  const Tensor place = zeros({1}, {.dtype = DType::int64, .device = kCPU});
  KernelContext context = kernel_context(kCPU);
  const std::string error =
      thrown_by([&] { kernels::median(context, x.tensor_view(), place.tensor_view(), 0); });
  CHECK(error ==
        "DTypeError: median: expected float32 or float64 or float16 or bfloat16 or int64 or int32, "
        "got uint8");
}

// It would break a row with braces in its call over four lines.
// clang-format off

TEST_CASE("wrong calls: devices, dtypes and settings") {
  expect_errors({
      {"DeviceError: Device::parse: expected 'auto', 'cpu', 'cuda' or 'cuda:<index>', got 'gpu'",
       [] { Device::parse("gpu"); }},
      {"DeviceError: Device::parse: expected 'auto', 'cpu', 'cuda' or 'cuda:<index>', got "
       "'cuda:-1'",
       [] { Device::parse("cuda:-1"); }},
      {"DeviceError: Device::parse: expected 'auto', 'cpu', 'cuda' or 'cuda:<index>', got ''",
       [] { Device::parse(""); }},
      {"ValueError: parse_dtype: expected one of float32, float64, float16, bfloat16, int32, "
       "int64, uint8, bool, got 'flaot32'",
       [] { parse_dtype("flaot32"); }},
      {"DTypeError: set_default_dtype: expected a floating dtype, got int64",
       [] { set_default_dtype(DType::int64); }},
      {"ValueError: set_num_threads: expected a number of threads in [1, 4096], got 0",
       [] { set_num_threads(0); }},
      {"ValueError: set_num_threads: expected a number of threads in [1, 4096], got 4097",
       [] { set_num_threads(4097); }},
  });
}

TEST_CASE("wrong calls: shapes") {
  expect_errors({
      {"ShapeError: shape: expected at most 8 axes, got 9",
       [] { Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}; }},
      {"ShapeError: shape: expected at most 8 axes, got 9", [] { Dims::filled(9, 1); }},
      {"ShapeError: shape: expected extents of at least 0, got [2, -1]", [] { numel({2, -1}); }},
      {"ShapeError: shape: expected fewer than 2^63 elements, got [4294967296, 4294967296]",
       [] { numel({int64_t{1} << 32, int64_t{1} << 32}); }},
      {"IndexError: mine: expected an axis in [-2, 2) for rank 2, got 2",
       [] { normalize_axis(2, 2, "mine"); }},
      {"ShapeError: mine: expected shapes that broadcast together, got [2, 3] and [2]",
       [] { broadcast_shapes({2, 3}, {2}, "mine"); }},
  });
}

TEST_CASE("wrong calls: factories") {
  expect_errors({
      {"ShapeError: shape: expected extents of at least 0, got [-1]", [] { empty({-1}); }},
      {"ShapeError: empty: expected fewer than 2^63 bytes, got [4611686018427387904]",
       [] { empty({int64_t{1} << 62}); }},
      {"ShapeError: shape: expected extents of at least 0, got [2, -3]", [] { zeros({2, -3}); }},
      {"ShapeError: shape: expected extents of at least 0, got [-3]", [] { full({-3}, 1); }},
      {"DTypeError: requires_grad_: expected a floating dtype, got int64",
       [] { full({2}, 1, {.dtype = DType::int64, .requires_grad = true}); }},
      {kUndefined, [] { zeros_like(Tensor()); }},
      {"ValueError: arange: expected a step other than 0, got 0", [] { arange(0, 5, 0); }},
      {"ValueError: arange: expected finite bounds and a step, got one that is infinite or NaN",
       [] { arange(0, std::numeric_limits<double>::infinity()); }},
      {"ShapeError: shape: expected extents of at least 0, got [-1, -1]", [] { eye(-1); }},
      {"DTypeError: rand: expected a floating dtype, got int64", [] { rand({2}, kInts); }},
      {"DTypeError: randn: expected a floating dtype, got int64", [] { randn({2}, kInts); }},
      {"ValueError: randint: expected low < high, got 3 and 3", [] { randint(3, 3, {2}); }},
      {"ShapeError: tensor: expected a shape of 3 elements, got [2]",
       [] { tensor(std::vector<float>{1, 2, 3}, {2}); }},
      {"ValueError: from_host: expected memory, got a null pointer",
       [] { from_host(nullptr, {2}, DType::float32); }},
      {"ValueError: from_blob: expected memory, got a null pointer",
       [] { from_blob(nullptr, {2}, DType::float32); }},
      {"ShapeError: from_blob: expected fewer than 2^63 bytes, got [4611686018427387904]",
       [] { from_blob(nullptr, {int64_t{1} << 62}, DType::float32); }},
      {"ShapeError: from_blob: expected fewer than 2^63 bytes, got [4611686018427387904]",
       [] {
         float one = 1;
         from_blob(&one, {int64_t{1} << 62}, DType::float32);
       }},
  });
}

TEST_CASE("wrong calls: pinned memory") {
  expect_errors({
      {kUndefined, [] { pin_memory(Tensor()); }},
      {"AutogradError: pin_memory: expected a tensor without a gradient, or one under NoGradGuard, "
       "got one that requires grad",
       [] { pin_memory(zeros({2}, kVariable)); }},
      {"NotImplemented: allocate_host: the cpu backend has no page-locked memory",
       [] { backend(DeviceType::cpu).allocate_host(8); }},
  });
  std::string reason;
  if (try_backend(DeviceType::cuda, &reason)) {
    expect_errors({{"DeviceError: pin_memory: expected a tensor on cpu, got cuda:0",
                    [] { pin_memory(zeros({1}, {.device = kCUDA})); }}});
  } else {
    expect_errors({{"DeviceError: cuda: " + reason, [] { pin_memory(zeros({2})); }}});
  }
}

TEST_CASE("wrong calls: elements of a tensor") {
  const Tensor x = zeros({2, 3});
  const Tensor none;
  expect_errors({
      {kUndefined, [&] { none.shape(); }},
      {kUndefined, [&] { none.to(DType::float64); }},
      {"IndexError: size: expected an axis in [-2, 2) for rank 2, got 2", [&] { x.size(2); }},
      {"DTypeError: data: expected float64, got float32", [&] { x.data<double>(); }},
      {"ShapeError: item: expected one element, got shape [2, 3]", [&] { x.item<float>(); }},
  });
}

TEST_CASE("wrong calls: views") {
  const Tensor x = zeros({2, 3});
  expect_errors({
      {"ShapeError: view: expected a shape of 6 elements for [2, 3], got [4]",
       [&] { x.view({4}); }},
      {"ShapeError: view: expected a shape of 6 elements for [2, 3], got [-1, -1]",
       [&] { x.view({-1, -1}); }},
      {"ShapeError: view: expected strides that walk [6] without a copy; reshape copies, got [3, "
       "2] with strides [1, 3]",
       [&] { x.mT().view({6}); }},
      {"ShapeError: reshape: expected a shape of 6 elements for [2, 3], got [4, -1]",
       [&] { x.reshape({4, -1}); }},
      {"ValueError: flatten: expected first_axis <= last_axis, got 1 and 0",
       [&] { x.flatten(1, 0); }},
      {"ShapeError: permute: expected 2 axes, got [0, 1, 2]", [&] { x.permute({0, 1, 2}); }},
      {"ValueError: permute: expected each axis once, got [0, 0]", [&] { x.permute({0, 0}); }},
      {"IndexError: transpose: expected an axis in [-2, 2) for rank 2, got 2",
       [&] { x.transpose(0, 2); }},
      {"IndexError: transpose: expected an axis in [-1, 1) for rank 1, got -2",
       [] { zeros({3}).mT(); }},
      {"IndexError: squeeze: expected an axis in [-2, 2) for rank 2, got 2", [&] { x.squeeze(2); }},
      {"IndexError: unsqueeze: expected an axis in [-3, 3) for rank 3, got 3",
       [&] { x.unsqueeze(3); }},
      {"ShapeError: expand: expected a shape that [2, 3] broadcasts to, got [4, 3]",
       [&] { x.expand({4, 3}); }},
      {"IndexError: slice: expected an axis in [-2, 2) for rank 2, got 2", [&] { x.slice(2, 0); }},
      {"ValueError: slice: expected a step of at least 1, got 0", [&] { x.slice(0, 0, {}, 0); }},
      {"IndexError: narrow: expected a range within extent 3, got start 2, length 2",
       [&] { x.narrow(1, 2, 2); }},
      {"IndexError: select: expected an index in [-3, 3) for axis 1, got 3",
       [&] { x.select(1, 3); }},
      {"IndexError: select: expected an index in [-2, 2) for axis 0, got -3", [&] { x[-3]; }},
      {"IndexError: select: expected an axis in [0, 0) for rank 0, got 0", [&] { zeros({})[0]; }},
      {"ShapeError: slice_backward: expected a slice of [2, 2] along axis 1 from 0 by 1, got [2, 3]",
       [&] { slice_backward(x, {2, 2}, 1, 0, 1); }},
  });
}

TEST_CASE("wrong calls: in-place ops, which then leave the elements alone") {
  Tensor x = zeros({2, 3});
  Tensor leaf = zeros({2, 3}, kVariable);
  Tensor ints = zeros({2}, kInts);
  const Tensor wrong = ones({2});
  expect_errors({
      {"ShapeError: add_: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { x.add_(wrong); }},
      {"DTypeError: sub_: expected a result that may be cast to int64, got float32",
       [&] { ints.sub_(ones({2})); }},
      {"ShapeError: add_: expected a tensor that broadcasts to [3], got [2, 3]",
       [&] { ones({3}).add_(x); }},
      {leaf_written("mul_"), [&] { leaf.mul_(2); }},
      {leaf_written("add_"), [&] { leaf.add_(x); }},
      {leaf_written("fill_"), [&] { leaf.zero_(); }},
      {leaf_written("mul_", "a view of a leaf"),
       [&] { leaf.narrow(0, 0, 1).mul_(x.narrow(0, 0, 1)); }},
      {"DTypeError: div_: expected a floating dtype, got int64", [&] { ints.div_(ints); }},
      {"ShapeError: copy_: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { x.copy_(wrong); }},
      {"ValueError: mul_: expected an element of memory for each element of the tensor, got an "
       "expanded tensor of shape [2, 3]",
       [&] { ones({3}).expand({2, 3}).mul_(2); }},
  });
  CHECK(x.sum().item<float>() == 0);
  CHECK(leaf.sum().item<float>() == 0);
}

TEST_CASE("wrong calls of the random generator use up no numbers") {
  const RandomState before = random_state();
  expect_errors({
      {"DTypeError: randint: expected int64 or int32, got float32",
       [] { randint(0, 3, {2}, {.dtype = DType::float32}); }},
      {"ValueError: randint: expected bounds that int32 holds, got 0 and 2147483649",
       [] { randint(0, 2147483649, {2}, {.dtype = DType::int32}); }},
      {"ValueError: randint: expected bounds that int32 holds, got -2147483649 and 0",
       [] { randint(-2147483649, 0, {2}, {.dtype = DType::int32}); }},
      {"DTypeError: rand: expected a floating dtype, got bool",
       [] { rand({2}, {.dtype = DType::boolean}); }},
  });
  CHECK(random_state() == before);
}

TEST_CASE("wrong calls: variables and gradients") {
  const Tensor x = zeros({2, 3});
  Tensor leaf = zeros({2, 3}, kVariable);
  Tensor product = leaf * 2;
  expect_errors({
      {"DTypeError: requires_grad_: expected a floating dtype, got int64",
       [] { zeros({2}, kInts).requires_grad_(); }},
      {"AutogradError: requires_grad_: expected a leaf, got the output of a recorded op; use "
       "detach()",
       [&] { product.requires_grad_(false); }},
      {"ShapeError: set_grad: expected a gradient of shape [2, 3], got [2]",
       [&] { leaf.set_grad(zeros({2})); }},
      {"DTypeError: set_grad: expected a gradient of dtype float32, got float64",
       [&] { leaf.set_grad(zeros({2, 3}, kDoubles)); }},
      {"AutogradError: retain_grad: expected a tensor that requires grad, got one that does not",
       [&] { Tensor(x).retain_grad(); }},
      {"AutogradError: register_hook: expected a tensor that requires grad, got one that does not",
       [&] {
         Tensor(x).register_hook([](const Tensor& g) { return g; });
       }},
  });
}

TEST_CASE("wrong calls: backward passes") {
  const Tensor x = zeros({2, 3});
  const Tensor leaf = zeros({2, 3}, kVariable);
  const Tensor unused = zeros({1}, kVariable);
  expect_errors({
      {"AutogradError: backward: expected a tensor that requires grad, got one without history",
       [&] { x.sum().backward(); }},
      {"AutogradError: backward: expected a one-element tensor, or a gradient for it, got shape "
       "[2, 3]",
       [&] { (leaf * 2).backward(); }},
      {"ShapeError: backward: expected a gradient of shape [2, 3], got [2]",
       [&] { (leaf * 2).backward(zeros({2})); }},
      {"DTypeError: backward: expected a gradient of dtype float32, got float64",
       [&] { (leaf * 2).backward(zeros({2, 3}, kDoubles)); }},
      {"ValueError: backward: expected 1 output gradients, got 2",
       [&] { backward({leaf.sum()}, {ones({}), ones({})}); }},
      {"AutogradError: mul: what it saved was freed by an earlier backward pass; ask for "
       "retain_graph in that one",
       [&] {
         const Tensor y = (leaf * leaf).sum();
         y.backward();
         y.backward();
       }},
      {"AutogradError: mul: a saved tensor (float32 [2, 3]) was overwritten in place between the "
       "forward and the backward pass: expected version 0, got 1",
       [&] {
         const Tensor a = leaf * 1;
         Tensor b = ones({2, 3});
         const Tensor y = (a * b).sum();
         b.fill_(3);
         y.backward();
       }},
      {"AutogradError: grad: expected inputs that require grad, got one that does not",
       [&] { grad({leaf.sum()}, {x}); }},
      {"AutogradError: grad: input 1 was not used by the outputs (allow_unused permits it)",
       [&] { grad({leaf.sum()}, {leaf, unused}); }},
      {"AutogradError: checkpoint: expected a pass without create_graph, got one with it: the "
       "second run has no second derivatives",
       [&] {
         const Tensor y = checkpoint([](const Tensor& a) { return a * a; }, leaf);
         y.sum().backward({.create_graph = true});
       }},
  });
}

TEST_CASE("wrong calls: gradient checks") {
  const auto square = [](const std::vector<Tensor>& in) { return in[0] * in[0]; };
  const Tensor leaf = ones({2}, kVariable);
  expect_errors({
      {"DTypeError: gradcheck: expected float64 inputs (differences need the precision), got "
       "float32",
       [&] { gradcheck(square, {leaf}); }},
      {"DTypeError: gradgradcheck: expected float64 outputs, got float32",
       [&] { gradgradcheck(square, {leaf}); }},
      {"ValueError: gradcheck: expected an input that requires grad, got none",
       [&] { gradcheck(square, {ones({2}, kDoubles)}); }},
  });
}

TEST_CASE("wrong calls: files and exchange") {
  const TemporaryFolder folder;
  const Tensor x = zeros({2});
  expect_errors({
      {"IoError: load_safetensors: cannot open '/nowhere/x': No such file or directory",
       [] { load_safetensors("/nowhere/x"); }},
      {"IoError: save_safetensors: cannot create '/nowhere/x': No such file or directory",
       [&] { save_safetensors("/nowhere/x", {{"x", x}}); }},
      {"ValueError: save_safetensors: expected distinct names, got 'x' twice",
       [&] { save_safetensors(folder.file("a"), {{"x", x}, {"x", x}}); }},
      {"ValueError: save_safetensors: expected defined tensors, got 'x' undefined",
       [&] { save_safetensors(folder.file("a"), {{"x", {}}}); }},
      {"AutogradError: to_dlpack: expected a tensor without a gradient (detach it), got one that "
       "requires grad",
       [] { to_dlpack(zeros({2}, kVariable)); }},
  });
}
