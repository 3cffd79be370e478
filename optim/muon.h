#pragma once

#include <concepts>

#include "adam.h"

namespace sash::optim {

struct MuonOptions {
  double lr = 1e-3;
  double weight_decay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  int64_t ns_steps = 5;  ///< of the Newton-Schulz iteration
  double beta1 = 0.9;    ///< of the groups that AdamW trains, like the next two
  double beta2 = 0.999;
  double eps = 1e-8;
  bool master_weights = false;  ///< see `Optimizer`, also for the next
  double max_grad_norm = 0;
};

/// Muon (Jordan et al., 2024), for the hidden matrices of a network: the momentum of each is made
/// nearly orthogonal, all its singular values about 1. For a parameter [R, C]
///
///     m = momentum m + (1 - momentum) g
///     O = newton_schulz((1 - momentum) g + momentum m, ns_steps)       (m itself without nesterov)
///     p = (1 - lr weight_decay) p - 0.2 sqrt(max(R, C)) lr O
///
/// The factor makes steps as large as AdamW's (Liu et al., "Muon is scalable for LLM training",
/// 2025), so lr and its schedule are AdamW's too. Groups with `ns_steps` 0 are trained by AdamW,
/// with this optimizer's betas and eps. Use AdamW for embeddings, the last layer, norms and biases.
///
///     optim::Muon optimizer(optim::param_groups(
///         model, {{.pattern = ".*(embedding|head|norm|bias).*", .ns_steps = 0}}));
///
/// State: `momentum_buffer` (m), or AdamW's. The iteration computes in bfloat16 on a card, in
/// float32 on the CPU, and in float64 for float64 parameters.
class SASH_API Muon : public Adam {
 public:
  /// `ValueError` for a negative option, a beta or momentum not in [0, 1), or a parameter other
  /// than a matrix in a group with `ns_steps`.
  explicit Muon(std::vector<Tensor> parameters, const MuonOptions& options = {});
  /// The same with a learning rate alone: `Muon(model.parameters(), 1e-3)`.
  template <std::floating_point T>
  Muon(std::vector<Tensor> parameters, T lr) : Muon(std::move(parameters), MuonOptions{.lr = lr}) {}
  explicit Muon(std::vector<ParamGroup> groups, const MuonOptions& options = {});

 protected:
  void update(Group& group, const kernels::GradientScale& scale) override;

 private:
  static void check(const std::string& op, const Hyperparameters& values);
  static void check_parameter(const std::string& op, const Hyperparameters& values,
                              const Tensor& parameter);
  static std::vector<const char*> moments(const Hyperparameters& values);
};

/// The factor U V' of each matrix G = U S V' of [..., R, C], approximately: singular values come to
/// about 1 (0.7 to 1.2) by `steps` of X = a X + (b A + c A^2) X, A = X X', from X = G / |G|, with
/// a = 3.4445, b = -4.775, c = 2.0315. In the matrices' dtype. Not recorded.
SASH_API Tensor newton_schulz(const Tensor& matrices, int64_t steps = 5);

}  // namespace sash::optim
