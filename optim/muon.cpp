#include "muon.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "../ops/checks.h"
#include "../ops/elementwise/binary.h"
#include "../ops/kernels/update_rules.h"
#include "../ops/linalg/baddbmm.h"
#include "../ops/linalg/matmul.h"
#include "../ops/reduce/reduce.h"
#include "../ops/rows.h"
#include "../tensor/autograd/grad_mode.h"
#include "../tensor/factories.h"
#include "../tensor/tensor_impl.h"

namespace sash::optim {
namespace {

DType iteration_dtype(const Tensor& directions) {
  if (directions.dtype() == DType::float64) return DType::float64;
  return directions.device().is_cpu() ? DType::float32 : DType::bfloat16;
}

}  // namespace

Tensor newton_schulz(const Tensor& matrices, int64_t steps) {
  check_defined("newton_schulz", matrices);
  check_floating("newton_schulz", matrices);
  check_min_rank("newton_schulz", matrices, 2);
  check_not_negative("newton_schulz", "a number of steps", steps);
  const NoGradGuard no_grad;
  const Tensor wide = matrices.to(*row_statistics(matrices).dtype);
  const Tensor norm = sqrt(sum(square(wide), {-2, -1}, true));
  const bool tall = matrices.size(-2) > matrices.size(-1);
  Tensor x = (wide / clamp(norm, 1e-7)).to(matrices.dtype());
  if (tall) x = x.mT();
  for (int64_t step = 0; step < steps; ++step) {
    const Tensor a = matmul(x, x.mT());
    const Tensor polynomial = baddbmm(a, a, a, {.alpha = 2.0315, .beta = -4.775});
    x = baddbmm(x, polynomial, x, {.beta = 3.4445});
  }
  return tall ? x.mT() : x;
}

void Muon::check(const std::string& op, const Hyperparameters& values) {
  check_betas(op, values);
  const double momentum = value_of(values, "momentum"), steps = value_of(values, "ns_steps");
  if (!(momentum >= 0 && momentum < 1)) {
    throw ValueError(op, "momentum in [0, 1)", to_text(momentum));
  }
  if (!(steps >= 0) || steps != std::floor(steps)) {
    throw ValueError(op, "a whole number of ns_steps", to_text(steps));
  }
}

void Muon::check_parameter(const std::string& op, const Hyperparameters& values,
                           const Tensor& parameter) {
  if (value_of(values, "ns_steps") == 0 || parameter.rank() == 2) return;
  throw ValueError(op, "matrices (put other parameters into a group with ns_steps = 0)",
                   "a parameter " + to_string(parameter.shape()));
}

std::vector<const char*> Muon::moments(const Hyperparameters& values) {
  if (value_of(values, "ns_steps") > 0) return {"momentum_buffer"};
  return Adam::moments(values);
}

Muon::Muon(std::vector<Tensor> parameters, const MuonOptions& options)
    : Muon(std::vector<ParamGroup>{{.parameters = std::move(parameters)}}, options) {}

Muon::Muon(std::vector<ParamGroup> groups, const MuonOptions& options)
    : Adam({.name = "Muon", .check = check, .moments = moments, .check_parameter = check_parameter},
           true, std::move(groups),
           {{"lr", options.lr},
            {"momentum", options.momentum},
            {"nesterov", options.nesterov ? 1.0 : 0.0},
            {"ns_steps", static_cast<double>(options.ns_steps)},
            {"weight_decay", options.weight_decay},
            {"beta1", options.beta1},
            {"beta2", options.beta2},
            {"eps", options.eps}},
           {options.master_weights, options.max_grad_norm}) {}

void Muon::update(Group& group, const kernels::GradientScale& scale) {
  if (group.value("ns_steps") == 0) return Adam::update(group, scale);
  // Matrices of one shape make one batch: few launches, and products that fill a card.
  std::map<std::tuple<DType, int64_t, int64_t>, std::vector<size_t>> batches;
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const Tensor& p = group.parameters[i];
    if (p.impl().grad.defined()) batches[{p.dtype(), p.size(0), p.size(1)}].push_back(i);
  }
  std::vector<kernels::RuleTensors> tensors;
  std::vector<Tensor> directions;
  for (const auto& [kind, members] : batches) {
    const auto& [dtype, rows, columns] = kind;
    Tensor& batch =
        directions.emplace_back(empty({static_cast<int64_t>(members.size()), rows, columns},
                                      group.moments[0][members[0]].options()));
    for (size_t k = 0; k < members.size(); ++k) {
      const size_t i = members[k];
      const Tensor& p = group.parameters[i];
      tensors.push_back({.dtype = dtype,
                         .count = p.numel(),
                         .parameter = p.tensor_view().data,
                         .gradient = p.impl().grad.tensor_view().data,
                         .state = {group.moments[0][i].tensor_view().data,
                                   batch[static_cast<int64_t>(k)].tensor_view().data},
                         .step = group.step_of(i),
                         .master = group.master_of(i)});
    }
  }
  KernelContext context = kernel_context(group.lr.device());
  kernels::muon_direction(context, tensors,
                          {.momentum = group.value("momentum"),
                           .nesterov = group.value("nesterov") != 0,
                           .gradient = scale});
  size_t number = 0, first = 0;
  for (const auto& [kind, members] : batches) {
    const auto& [dtype, rows, columns] = kind;
    const Tensor& batch = directions[number++];
    const Tensor orthogonal = newton_schulz(batch.to(iteration_dtype(batch)),
                                            static_cast<int64_t>(group.value("ns_steps")))
                                  .to(dtype)
                                  .contiguous();
    for (size_t k = 0; k < members.size(); ++k) {
      kernels::RuleTensors& x = tensors[first + k];
      x.gradient = orthogonal[static_cast<int64_t>(k)].tensor_view().data;
      x.state[0] = x.state[1] = nullptr;
      x.step = nullptr;
    }
    const double longest = static_cast<double>(std::max(rows, columns));
    kernels::decayed_step(context, std::span(tensors).subspan(first, members.size()),
                          {.lr = group.lr.data<const double>(),
                           .size = 0.2 * std::sqrt(longest),
                           .weight_decay = group.value("weight_decay"),
                           .gradient = scale});
    first += members.size();
  }
}

}  // namespace sash::optim
