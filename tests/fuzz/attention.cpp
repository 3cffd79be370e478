// Random masks over random lengths: the fused attention of the CPU against the same function from
// plain ops, results and gradients, in float64.
#include <cmath>

#include <sash/core/philox.h>
#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/factories.h>

#include "../support/attention/mask_kinds.h"
#include "support/fuzz.h"

namespace sash::fuzz {

const std::vector<std::string> words{};

std::vector<std::string> seeds() { return {std::string(32, '\5'), std::string(64, '\x77')}; }

namespace {

using namespace sash::testing;

NamedMask mask_of(Bytes& bytes, RandomNumbers& random, const MaskShape& shape, int depth) {
  if (depth > 0 && bytes.ConsumeBool()) {
    const NamedMask a = mask_of(bytes, random, shape, depth - 1);
    const NamedMask b = mask_of(bytes, random, shape, depth - 1);
    return bytes.ConsumeBool() ? both(a, b) : either(a, b);
  }
  const std::vector<MaskKind>& kinds = mask_kinds();
  const size_t chosen = bytes.ConsumeIntegralInRange<size_t>(0, kinds.size() - 1);
  for (size_t i = chosen;; ++i) {
    const MaskKind& kind = kinds[i % kinds.size()];
    if (!kind.square || shape.queries == shape.keys) return kind.make(random, shape, kCPU);
  }
}

Tensor random_tensor(RandomNumbers& random, const Shape& shape) {
  std::vector<double> elements;
  for (int64_t i = 0; i < numel(shape); ++i) elements.push_back(2 * random.uniform() - 1);
  return tensor(elements, shape, {.dtype = DType::float64, .device = kCPU});
}

void compare(const Tensor& a, const Tensor& b, const AttentionMask& mask, const char* what) {
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || std::abs(x[i] - y[i]) < 1e-11) continue;
    fail(std::string(what) + " differs by " + std::to_string(x[i] - y[i]) + " for " +
         mask.to_string());
  }
}

}  // namespace

void run(Bytes& bytes) {
  RandomNumbers random(bytes.ConsumeIntegral<uint64_t>());
  draw_extremes(true);
  MaskShape s;
  s.batch = bytes.ConsumeIntegralInRange(0, 2);
  s.heads = bytes.ConsumeIntegralInRange(1, 3);
  s.queries = bytes.ConsumeIntegralInRange(0, 80);
  s.keys = bytes.ConsumeBool() ? s.queries : bytes.ConsumeIntegralInRange(0, 80);
  const NamedMask mask = mask_of(bytes, random, s, 3);
  const Shape queries{s.batch, s.heads, s.queries, 3}, keys{s.batch, s.heads, s.keys, 3};
  std::vector<Tensor> inputs{random_tensor(random, queries).requires_grad_(),
                             random_tensor(random, keys).requires_grad_(),
                             random_tensor(random, keys).requires_grad_()};
  const Tensor g = random_tensor(random, queries);
  const AttentionOptions options{.mask = mask.mask, .softcap = bytes.ConsumeBool() ? 2.0 : 0.0};
  const Tensor fused = attention(inputs[0], inputs[1], inputs[2], options);
  const Tensor plain = composite::attention(inputs[0], inputs[1], inputs[2], options, {}).out;
  compare(fused, plain, mask.mask, "the result");
  const std::vector<Tensor> first = grad({fused}, inputs, {g}), second = grad({plain}, inputs, {g});
  for (size_t i = 0; i < first.size(); ++i) {
    compare(first[i], second[i], mask.mask, "a gradient");
  }
}

}  // namespace sash::fuzz
