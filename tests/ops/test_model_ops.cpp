#include <doctest/doctest.h>
#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/attention/exact/normed_heads.h>
#include <sash/ops/attention/exact/packed_heads.h>
#include <sash/ops/attention/exact/rotary.h>
#include <sash/ops/elementwise/dropout.h>
#include <sash/ops/elementwise/glu.h>
#include <sash/ops/norm/dropout_add_layer_norm.h>
#include <sash/ops/norm/layer_norm.h>
#include <sash/ops/norm/rms_norm.h>
#include <sash/ops/shape/concat.h>
#include <sash/tensor/autograd/gradcheck.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <functional>
#include <tuple>

#include "../support/compare.h"
#include "../support/devices.h"

/// rms_norm, glu and rotary at sizes of models, on each device and in each dtype, against plain ops
/// in float64 on the CPU: results and gradients for random cotangents. The table of cases has small
/// sizes, layouts and second derivatives.
using namespace sash;
using namespace sash::testing;

namespace {

using Op = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

struct Run {
  std::vector<Tensor> results, grads;
};

Run run(const Op& op, const std::vector<Tensor>& inputs, const std::vector<Tensor>& cotangents) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_());
  const std::vector<Tensor> results = op(leaves);
  Tensor total;
  for (size_t i = 0; i < results.size(); ++i) {
    const Tensor part = (results[i].to(DType::float64) * cotangents[i]).sum();
    total = total.defined() ? total + part : part;
  }
  total.backward();
  Run done{results, {}};
  for (const Tensor& leaf : leaves) done.grads.push_back(leaf.grad());
  return done;
}

void check(const std::string& what, Device device, const Op& op, const Op& plain,
           const std::vector<Shape>& shapes) {
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    CAPTURE(what);
    CAPTURE(name(dtype));
    manual_seed(11);
    std::vector<Tensor> exact, inputs, there;
    for (const Shape& shape : shapes) {
      const Tensor x = randn(shape, {.dtype = DType::float64}).to(dtype);
      exact.push_back(x.to(DType::float64));
      inputs.push_back(x.to(device));
    }
    std::vector<Tensor> cotangents;
    for (const Tensor& y : plain(exact)) {
      const Tensor g = randn(y.shape(), {.dtype = DType::float64}).to(dtype).to(DType::float64);
      cotangents.push_back(g);
      there.push_back(g.to(device));
    }
    const double tolerance = dtype == DType::float64    ? 1e-12
                             : dtype == DType::float32  ? 3e-6
                             : dtype == DType::bfloat16 ? 4e-3
                                                        : 5e-4;
    const Run want = run(plain, exact, cotangents), got = run(op, inputs, there);
    for (size_t i = 0; i < want.results.size(); ++i) {
      CHECK(relative_error(got.results[i], want.results[i]) <= tolerance);
    }
    for (size_t i = 0; i < want.grads.size(); ++i) {
      CHECK(relative_error(got.grads[i], want.grads[i]) <= tolerance);
    }
  }
}

void check_rms_norm(Device device) {
  for (const int64_t width : {64, 257, 256, 512, 768, 1024, 1536, 2047}) {
    const RMSNormOptions options{.unit_offset = width % 256 == 0};
    const Op op = [=](const std::vector<Tensor>& t) -> std::vector<Tensor> {
      return {rms_norm(t[0], {width}, t[1], options)};
    };
    const Op plain = [=](const std::vector<Tensor>& t) -> std::vector<Tensor> {
      return {composite::rms_norm(t[0], {width}, t[1], options)};
    };
    check("rms_norm of " + std::to_string(width), device, op, plain, {{67, width}, {width}});
    if (width % 512 != 0) continue;
    const Op sum = [=](const std::vector<Tensor>& t) -> std::vector<Tensor> {
      const SumAndNorm y = add_rms_norm(t[0], t[1], t[2], options);
      return {y.sum, y.norm};
    };
    const Op plain_sum = [=](const std::vector<Tensor>& t) -> std::vector<Tensor> {
      const Tensor total = t[0] + t[1];
      return {total, composite::rms_norm(total, {width}, t[2], options)};
    };
    check("add_rms_norm of " + std::to_string(width), device, sum, plain_sum,
          {{67, width}, {67, width}, {width}});
  }
}

// On a card, other kernels than for few rows.
void check_many_rows(Device device) {
  for (const auto& [rows, width] :
       {std::pair<int64_t, int64_t>{4099, 264}, {4200, 768}, {4096, 1152}, {5003, 2048}}) {
    const RMSNormOptions options{.unit_offset = width == 768};
    const std::vector<Shape> shapes{{rows, width}, {rows, width}, {width}, {width}};
    const double p = width == 768 ? 0 : 0.2;
    const Op norms = [=](const std::vector<Tensor>& t) -> std::vector<Tensor> {
      manual_seed(5);  // both drop the same
      const SumAndNorm y = dropout_add_layer_norm(t[0], t[1], t[2], t[3], p);
      const SumAndNorm z = add_rms_norm(t[0], t[1], t[2], options);
      return {y.sum, y.norm, z.sum, z.norm, rms_norm(t[1], {width}, t[3], options)};
    };
    const Op plain = [=](const std::vector<Tensor>& t) -> std::vector<Tensor> {
      manual_seed(5);
      const Tensor y = t[1] + dropout(t[0], p), z = t[0] + t[1];
      return {y, layer_norm(y, {width}, t[2], t[3]), z,
              composite::rms_norm(z, {width}, t[2], options),
              composite::rms_norm(t[1], {width}, t[3], options)};
    };
    check("norms of " + std::to_string(rows) + " rows", device, norms, plain, shapes);
  }
}

void check_glu(Device device) {
  for (const GluKind kind :
       {GluKind::swiglu, GluKind::geglu, GluKind::geglu_tanh, GluKind::clamped_swiglu}) {
    for (const int64_t width : {64, 333, 2048}) {
      const auto scaled = [](const Tensor& x) { return x * 4.0; };  // reaches the clamps
      check(
          "glu of " + std::to_string(width), device,
          [=](const std::vector<Tensor>& t) -> std::vector<Tensor> {
            return {glu(scaled(t[0]), kind)};
          },
          [=](const std::vector<Tensor>& t) -> std::vector<Tensor> {
            return {composite::glu(scaled(t[0]), kind)};
          },
          {{19, 2 * width}});
    }
  }
}

RotaryAngles angles(const Tensor& like, int64_t length, int64_t pairs) {
  const DType dtype = like.dtype() == DType::float64 ? DType::float64 : DType::float32;
  const Tensor angle = arange(0, static_cast<double>(length * pairs), 1, {.dtype = DType::float32});
  const auto part = [&](const Tensor& x) {
    return x.to(dtype).to(like.device()).view({length, pairs});
  };
  return {part((angle * 0.37).cos()), part((angle * 0.37).sin())};
}

void check_rotary(Device device) {
  for (const RotaryLayout layout : {RotaryLayout::half_split, RotaryLayout::interleaved}) {
    for (const auto& [depth, pairs] : {std::pair{64, 32}, {80, 16}, {128, 64}, {12, 3}, {64, 20}}) {
      const int64_t n = pairs, width = depth;
      check(
          "rotary of " + std::to_string(depth), device,
          [=](const std::vector<Tensor>& t) -> std::vector<Tensor> {
            return {rotary(t[0], angles(t[0], 33, n), layout)};
          },
          [=](const std::vector<Tensor>& t) -> std::vector<Tensor> {
            return {composite::rotary(t[0], angles(t[0], 33, n), layout)};
          },
          {{2, 3, 33, width}});
      const auto plain = [=](const std::vector<Tensor>& t) -> std::vector<Tensor> {
        const auto [q, k, v] = split_packed_heads(t[0], 4, 2);
        const RotaryAngles turn = angles(t[0], 33, n);
        return {composite::rotary(q, turn, layout), composite::rotary(k, turn, layout), v};
      };
      for (const bool in_place : {false, true}) {
        check("split_rotary_heads of " + std::to_string(depth) + (in_place ? ", in place" : ""),
              device,
              [=](const std::vector<Tensor>& t) -> std::vector<Tensor> {
                const auto [q, k, v] = split_rotary_heads(in_place ? t[0] * 1.0 : t[0],
                                                          angles(t[0], 33, n), 4, 2, layout);
                return {q, k, v};
              },
              plain, {{2, 33, 8 * width}});
      }
    }
  }
}

/// x as a contiguous view that starts at the second element of its memory.
Tensor one_on(const Tensor& x) {
  const Tensor flat = x.reshape({x.numel()});
  return cat({flat.narrow(0, 0, 1), flat}, 0).narrow(0, 1, x.numel()).view(x.shape());
}

void check_normed_heads(Device device) {
  for (const auto& [width, heads, kv_heads] :
       {std::tuple{64, 4, 2}, {256, 4, 1}, {128, 3, 3}, {32, 2, 1}, {48, 2, 1}}) {
    for (const bool rotates : {true, false}) {
      const int64_t d = width, h = heads, n = kv_heads;
      const RMSNormOptions options{.eps = 1e-5, .unit_offset = heads == 4};
      const auto op = [=](const auto& function) {
        return [=](const std::vector<Tensor>& t) -> std::vector<Tensor> {
          const RotaryAngles turn = rotates ? angles(t[0], 37, d / 2) : RotaryAngles();
          const auto [q, k, v] =
              function(t[0], {t[1], t[2], options}, h, n, turn, RotaryLayout::half_split);
          return {q, k, v};
        };
      };
      const Op plain = op(composite::split_normed_heads), fused = op(split_normed_heads);
      const std::vector<Shape> shapes{{2, 37, (h + 2 * n) * d}, {d}, {d}};
      check("split_normed_heads of " + std::to_string(width), device, fused, plain, shapes);
      const Op unaligned = [=](const std::vector<Tensor>& t) {
        return fused({one_on(t[0]), one_on(t[1]), one_on(t[2])});
      };
      check("the same, one element on in memory", device, unaligned, plain, shapes);
    }
  }
}

// Wrong weights, angles and layouts; and second derivatives.
void check_normed_heads_arguments(Device device) {
  const TensorOptions options{.dtype = DType::float64, .device = device};
  manual_seed(3);
  const Tensor packed = randn({2, 3, 4 * 8}, options).requires_grad_();
  const Tensor q = rand({8}, options).requires_grad_(), k = rand({8}, options).requires_grad_();
  const RotaryAngles turn = angles(packed, 3, 4);
  const auto f = [&](const std::vector<Tensor>& t) {
    const auto parts = split_normed_heads(t[0], {t[1], t[2]}, 2, 1, turn);
    return parts[0].square().sum() + (parts[1] * parts[2]).sum();
  };
  CHECK(gradcheck(f, {packed, q, k}).ok);
  CHECK(gradgradcheck(f, {packed, q, k}).ok);
  CHECK_THROWS_AS(split_normed_heads(packed, {q, {}}, 2, 1, turn), Error);
  CHECK_THROWS_AS(split_normed_heads(packed, {q, k.narrow(0, 0, 4)}, 2, 1, turn), ShapeError);
  CHECK_THROWS_AS(split_normed_heads(packed, {q, k}, 3, 1, turn), ShapeError);
  CHECK_THROWS_AS(split_normed_heads(packed, {q, k}, 2, 1, angles(packed, 4, 4)), ShapeError);
  const auto part = split_normed_heads(packed, {q, k}, 2, 1, turn, RotaryLayout::interleaved);
  const auto want =
      composite::split_normed_heads(packed, {q, k}, 2, 1, turn, RotaryLayout::interleaved);
  for (size_t i = 0; i < 3; ++i) CHECK(relative_error(part[i], want[i]) <= 1e-12);
}

// The gradients of queries, keys and values stay what they are if someone else sees them.
void check_normed_heads_memory(Device device) {
  manual_seed(4);
  const TensorOptions options{.device = device};
  const Tensor x = randn({2, 37, 8 * 64}, options), weight = rand({64}, options);
  const Tensor g = randn({2, 4, 37, 64}, options);
  const auto gradient = [&](bool seen) {
    const Tensor packed = x.detach().requires_grad_();
    auto parts = split_normed_heads(packed, {weight, weight}, 4, 2, angles(x, 37, 32));
    if (seen) {
      for (Tensor& part : parts) part.retain_grad();
    }
    attention(parts[0], parts[1], parts[2], {.mask = AttentionMask::causal()}).backward(g);
    return packed.grad();
  };
  CHECK(all_same(gradient(true), gradient(false)));
}

// Memory that an attention's packed projection, and its gradient, are turned in.
void check_rotary_memory(Device device) {
  const TensorOptions options{.device = device};
  const RotaryAngles turn = angles(zeros({1}, options), 512, 32);
  Tensor x = randn({2, 512, 512}, options).requires_grad_();
  const Tensor kept = x * 1.0, before = kept.detach().clone();
  split_rotary_heads(kept, turn, 4, 2);
  CHECK(relative_error(kept, before) == 0);  // the caller still sees it

  Tensor projected = x * 1.0;
  const void* const memory = projected.tensor_view().data;
  const void *of_queries = nullptr, *of_projected = nullptr;
  const auto note = [](const void*& place) {
    return [&place](const Tensor& g) {
      place = g.tensor_view().data;
      return Tensor();
    };
  };
  projected.register_hook(note(of_projected));
  auto [q, k, v] = split_rotary_heads(std::move(projected), turn, 4, 2);
  CHECK(q.tensor_view().data == memory);
  q.register_hook(note(of_queries));
  Tensor loss = attention(q, k, v, {.mask = AttentionMask::causal()}).sum();
  q = k = v = Tensor();
  loss.backward();
  CHECK(of_projected == of_queries);
  CHECK(of_queries != nullptr);
  const Tensor fast = x.grad().clone();

  // With gradients that someone else sees, which must stay as they are.
  x.zero_grad();
  auto parts = split_rotary_heads(x * 1.0, turn, 4, 2);
  for (Tensor& part : parts) part.retain_grad();
  attention(parts[0], parts[1], parts[2], {.mask = AttentionMask::causal()}).sum().backward();
  CHECK(relative_error(x.grad(), fast) <= 1e-6);
  const Tensor seen = parts[1].grad().clone();
  const auto again = split_packed_heads(before, 4, 2);
  std::vector<Tensor> plain;
  for (size_t i = 0; i < 3; ++i) {
    plain.push_back((i < 2 ? rotary(again[i], turn) : again[i]).detach().requires_grad_());
  }
  attention(plain[0], plain[1], plain[2], {.mask = AttentionMask::causal()}).sum().backward();
  CHECK(relative_error(seen, plain[1].grad()) <= 1e-5);
}

}  // namespace

TEST_CASE_TEMPLATE("model ops: rms_norm", On, Cpu, Cuda) {
  if (!missing(On::device)) check_rms_norm(On::device);
}

TEST_CASE("model ops: norms of many rows<cuda>") {
  if (!missing(Cuda::device)) check_many_rows(Cuda::device);
}

TEST_CASE_TEMPLATE("model ops: glu", On, Cpu, Cuda) {
  if (!missing(On::device)) check_glu(On::device);
}

TEST_CASE_TEMPLATE("model ops: rotary", On, Cpu, Cuda) {
  if (!missing(On::device)) check_rotary(On::device);
}

TEST_CASE_TEMPLATE("model ops: a projection that nothing else sees is rotated in place", On, Cpu,
                   Cuda) {
  if (!missing(On::device)) check_rotary_memory(On::device);
}

TEST_CASE_TEMPLATE("model ops: normed heads", On, Cpu, Cuda) {
  if (!missing(On::device)) check_normed_heads(On::device);
}

TEST_CASE_TEMPLATE("model ops: normed heads whose gradients others see", On, Cpu, Cuda) {
  if (!missing(On::device)) check_normed_heads_memory(On::device);
}

TEST_CASE_TEMPLATE("model ops: normed heads, second derivatives and arguments", On, Cpu, Cuda) {
  if (!missing(On::device)) check_normed_heads_arguments(On::device);
}
