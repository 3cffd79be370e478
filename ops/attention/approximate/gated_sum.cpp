#include "gated_sum.h"

#include "../../kernels/gated_sum.h"
#include "../../op.h"
#include "../exact/head_layout.h"

namespace sash {

namespace kernels {
constinit decltype(gated_sum_forward) gated_sum_forward{"gated_sum_forward"};
constinit decltype(gated_sum_backward) gated_sum_backward{"gated_sum_backward"};
}  // namespace kernels

namespace {

constexpr const char* kGatedSum = "gated_sum";

void check_arguments(const Tensor& gates, std::span<const Tensor> branches) {
  if (branches.empty() || branches.size() > kernels::kMostBranches) {
    throw ValueError(kGatedSum, "one to three branches", std::to_string(branches.size()));
  }
  check_floating_pair(kGatedSum, branches[0], gates);
  check_rank(kGatedSum, branches[0], 4);
  for (const Tensor& branch : branches) {
    check_compatible(kGatedSum, branches[0], branch);
    check_shape(kGatedSum, branch, branches[0].shape());
  }
  const Shape& s = branches[0].shape();
  check_shape(kGatedSum, gates, {static_cast<int64_t>(branches.size()), s[0], s[1], s[2]});
}

/// x, or a copy, in the layout of `like`.
Tensor laid_out(const Tensor& x, const Tensor& like) {
  if (x.strides() == like.strides()) return x;
  return detail::empty_in_layout_of(like, x.size(3)).copy_(x);
}

/// The views of branches in the layout of `like`, and the tensors that own their memory.
struct Operands {
  SmallVector<Tensor, 3> tensors;
  SmallVector<TensorView, 3> views;

  void add(const Tensor& x) {
    tensors.push_back(x);
    views.push_back(x.tensor_view());
  }
  kernels::Branches span() const { return {views.begin(), views.size()}; }
};

Tensor run_forward(const Tensor& gates, std::span<const Tensor> branches) {
  const Tensor y = detail::empty_in_layout_of(branches[0], branches[0].size(3));
  Operands in;
  for (const Tensor& branch : branches) in.add(laid_out(branch, y));
  run_kernel(kernels::gated_sum_forward, gates, in.span(), y);
  return y;
}

/// `x`: the gates, then the branches.
Gradients run_backward(std::span<const Tensor> x, const Tensor& g) {
  const Shape& s = g.shape();
  const auto count = static_cast<int64_t>(x.size()) - 1;
  // The gates of a token side by side, as a projection made them.
  const Tensor dgates = empty({s[0], s[2], count, s[1]}, g.options()).permute({2, 0, 3, 1});
  Operands in, out;
  for (const Tensor& branch : x.subspan(1)) {
    out.add(detail::empty_in_layout_of(x[1], s[3]));
    in.add(laid_out(branch, out.tensors[0]));
  }
  run_kernel(kernels::gated_sum_backward, x[0], in.span(), laid_out(g, out.tensors[0]), dgates,
             out.span());
  Gradients gradients{dgates};
  for (const Tensor& dbranch : out.tensors) gradients.push_back(dbranch);
  return gradients;
}

}  // namespace

Tensor composite::gated_sum(const Tensor& gates, std::span<const Tensor> branches) {
  Tensor y;
  for (size_t i = 0; i < branches.size(); ++i) {
    const Tensor part = gates.select(0, static_cast<int64_t>(i)).unsqueeze(-1) * branches[i];
    y = y.defined() ? y + part : part;
  }
  return y;
}

Tensor gated_sum(const Tensor& gates, std::span<const Tensor> branches) {
  check_arguments(gates, branches);
  if (!use_fused(kernels::gated_sum_forward, gates.device())) {
    return composite::gated_sum(gates, branches);
  }
  std::vector<Tensor> inputs{gates};
  inputs.insert(inputs.end(), branches.begin(), branches.end());
  SmallVector<Saved, 4> saved;
  for (const Tensor& x : inputs) saved.push_back(save(x));
  const Tensor y = unrecorded([&] { return run_forward(gates, branches); });
  return record(
      kGatedSum, std::span<const Tensor>(inputs), y, [saved](Backward& pass, const Tensor& g) {
        std::vector<Tensor> x;
        for (const Saved& one : saved) x.push_back(pass(one));
        if (!pass.create_graph()) return unrecorded([&] { return run_backward(x, g); });
        return differentiate(
            [](std::span<const Tensor> in) { return composite::gated_sum(in[0], in.subspan(1)); },
            x, g, pass);
      });
}

}  // namespace sash
