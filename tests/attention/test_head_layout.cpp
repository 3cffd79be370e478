// Attention between projections: its results lie as the products around it read them.
#include <doctest/doctest.h>

#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/attention/packed_heads.h>  // a former path
#include <sash/ops/elementwise/binary.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/kernels/memory.h>
#include <sash/tensor/tensor_impl.h>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct Setup {
  DType dtype;
  int64_t kv_heads, head_dim;
};

/// The merged result and the gradient of `packed` for the cotangent `g`.
std::vector<Tensor> results(const Tensor& packed, const Tensor& g, const Setup& setup,
                            bool contiguous) {
  auto [q, k, v] = split_packed_heads(packed, 2, setup.kv_heads);
  if (contiguous) {
    q = q.contiguous();
    k = k.contiguous();
    v = v.contiguous();
  }
  const Tensor out = merge_heads(attention(q, k, v, {.mask = AttentionMask::causal()}));
  return {out, grad({out}, {packed}, {g})[0]};
}

void check(const Setup& setup, Device device) {
  const TensorOptions options{.dtype = setup.dtype, .device = device};
  const Tensor packed =
      randn({2, 70, (2 + 2 * setup.kv_heads) * setup.head_dim}, options).requires_grad_();
  const Tensor g = randn({2, 70, 2 * setup.head_dim}, options);
  const auto copied = results(packed, g, setup, true);
  const uint64_t before = kernels::copy.calls(device.type);
  const auto direct = results(packed, g, setup, false);
  CHECK(kernels::copy.calls(device.type) == before);
  for (size_t i = 0; i < direct.size(); ++i) {
    CHECK(direct[i].is_contiguous());
    CHECK(all_same(direct[i], copied[i]));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("head layout: no copy between projections and attention", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const int64_t kv_heads : {2, 1}) {
    for (const int64_t head_dim : {64, 5}) check({DType::float32, kv_heads, head_dim}, On::device);
    if (!On::device.is_cuda()) continue;
    check({DType::bfloat16, kv_heads, 64}, On::device);
    check({DType::float16, kv_heads, 128}, On::device);
  }
}

TEST_CASE("head layout: separate projections, and gradients that reach q, k and v themselves") {
  const Tensor x = randn({2, 7, 12}).requires_grad_(), g = randn({2, 7, 12});
  const Tensor q = split_heads(x, 3), k = q * 2.0, v = q + 1.0;
  const Tensor out = attention(q, k, v);
  CHECK(merge_heads(out).impl().storage == out.impl().storage);
  const Tensor wide = q.contiguous();
  CHECK(attention(wide, k, v).is_contiguous());
  const Tensor packed = randn({1, 4, 18}).requires_grad_();
  const auto parts = split_packed_heads(packed, 3);
  const Tensor y = attention(parts[0], parts[1], parts[2]);
  const Tensor weights = randn(y.shape());
  const auto each = grad({y}, {parts[0], parts[1], parts[2]}, {weights}, {.retain_graph = true});
  const Tensor all = grad({y}, {packed}, {weights})[0];
  const auto wanted = split_packed_heads(all, 3);
  for (size_t i = 0; i < 3; ++i) CHECK(all_same(each[i], wanted[i]));
}
