#include <sash/ops/attention/approximate/gated_sum.h>

#include "../cases.h"

namespace sash::testing {
namespace {

using Function = Tensor (*)(const Tensor&, std::span<const Tensor>);

// Gates first, then the branches.
void add_case(OpTable& table, const std::vector<InputSpec>& inputs) {
  const auto n = static_cast<int64_t>(inputs.size()) - 1;
  for (const bool plain : {false, true}) {
    const Function f = plain ? composite::gated_sum : gated_sum;
    table.push_back({
        .op = "gated_sum",
        .variant = std::string(plain ? "composite, " : "") + std::to_string(n) + " of " +
                   describe(inputs[1]) + ", last " + describe(inputs.back()),
        .inputs = inputs,
        .run = [=](const Tensors& t) { return f(t[0], std::span<const Tensor>(t).subspan(1)); },
        .reference =
            [=](const Arrays& t) {
              return generate(t[1].shape, [&](I i) {
                double y = 0;
                for (int64_t b = 0; b < n; ++b) {
                  y += t[0][at(b, i[0], i[1], i[2])] * t[static_cast<size_t>(b) + 1][i];
                }
                return y;
              });
            },
        .half_rounds = plain ? 8.0 : 1,
        .half_gradient_rounds = plain ? 8.0 : 1,
        .half_gradient_scale = plain ? 4.0 : 0,
    });
  }
}

}  // namespace

void add_gated_sum(OpTable& table) {
  const auto add = [&](int64_t n, const Shape& s, Layout first, Layout last) {
    std::vector<InputSpec> inputs{
        {{n, s[0], s[1], s[2]}, last == sliced ? transposed : contiguous}};
    inputs.insert(inputs.end(), static_cast<size_t>(n), {s, first});
    inputs.back().layout = last;
    add_case(table, inputs);
  };
  add(3, {2, 3, 5, 16}, contiguous, contiguous);
  add(3, {2, 3, 5, 64}, heads, heads);
  add(2, {1, 4, 9, 200}, heads, contiguous);  // the last branch is copied to the others' layout
  add(3, {2, 2, 3, 7}, contiguous, sliced);
  add(1, {3, 1, 2, 1}, contiguous, contiguous);
  add(3, {2, 3, 0, 8}, contiguous, contiguous);
}

}  // namespace sash::testing
