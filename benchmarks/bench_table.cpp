// Times rows of the tests' table of op cases, after checking them against their references. Prints
// one line of JSON per row and dtype. By default only the rows marked `timed`.

#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

#include "../tests/support/op_table.h"
#include "bench.h"

using namespace sash;
using sash::testing::OpCase;
using sash::testing::Tensors;

namespace {

constexpr int kCalls = 7;

void add_backward(nlohmann::ordered_json& figure, const OpCase& op_case, const Tensors& inputs,
                  Device device) {
  const Tensor y = op_case.run(inputs).front();
  if (!y.requires_grad()) return;
  Tensors wanted;
  for (const Tensor& x : inputs) {
    if (x.requires_grad()) wanted.push_back(x);
  }
  const Tensor g = randn(y.shape(), y.options());
  const double ms = bench::median_ms(
      device, kCalls, [&] { grad({op_case.run(inputs).front()}, wanted, {g}, {}, true); });
  figure["fwdbwd_ms"] = bench::rounded(ms, 4);
}

void time_row(const OpCase& op_case, DType dtype, Device device) {
  const std::string problem = testing::check_forward(op_case, dtype, device);
  if (!problem.empty()) throw std::runtime_error(op_case.name() + ": " + problem);
  const Tensors inputs = testing::timing_inputs(op_case, dtype, device);
  const double ms = bench::median_ms(device, kCalls, [&] {
    const NoGradGuard no_grad;
    op_case.run(inputs);
  });
  nlohmann::ordered_json figure{{"kind", "table"},
                                {"case", op_case.name()},
                                {"dtype", std::string(name(dtype))},
                                {"fwd_ms", bench::rounded(ms, 4)}};
  if (op_case.operations > 0) figure["gflops"] = bench::rounded(op_case.operations / ms / 1e6, 1);
  if (op_case.bytes > 0) figure["gb_s"] = bench::rounded(op_case.bytes / ms / 1e6, 1);
  if (op_case.differentiable) add_backward(figure, op_case, inputs, device);
  bench::print(figure);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Times rows of the table of op cases", "cpu");
  std::string filter;
  flags.add("--filter", filter, "time every row whose name contains this text");
  return bench::run(flags, argc, argv, [&](Device device) {
    for (const OpCase& op_case : testing::op_table()) {
      const bool chosen =
          filter.empty() ? op_case.timed : op_case.name().find(filter) != std::string::npos;
      if (!chosen) continue;
      for (const DType dtype : op_case.dtypes) time_row(op_case, dtype, device);
    }
    return true;
  });
}
