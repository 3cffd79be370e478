#pragma once

#include <optional>
#include <string_view>

#include "../core/error.h"
#include "../tensor/autograd/autocast.h"

/// The list of ops that cast under an `AutocastGuard`, with the dtypes they cast to, and the class
/// with which they cast.
namespace sash {

enum class AutocastTo { half, float32 };

struct AutocastRule {
  std::string_view op;
  AutocastTo to;
};

inline constexpr AutocastRule kAutocastRules[] = {
    {"linear", AutocastTo::half},
    {"linear_gelu", AutocastTo::half},
    {"linear_float8", AutocastTo::half},
    {"glu_mlp_float8", AutocastTo::half},
    {"gelu_mlp", AutocastTo::half},
    {"linear_cross_entropy", AutocastTo::half},
    {"matmul", AutocastTo::half},
    {"bmm", AutocastTo::half},
    {"conv1d", AutocastTo::half},
    {"conv2d", AutocastTo::half},
    {"conv_transpose2d", AutocastTo::half},
    {"baddbmm", AutocastTo::half},
    {"einsum", AutocastTo::half},
    {"window_matmul", AutocastTo::half},
    {"unwindow_matmul", AutocastTo::half},
    {"local_dot_product", AutocastTo::half},
    {"local_weighted_average", AutocastTo::half},
    {"block_sparse_linear", AutocastTo::half},
    {"block_sparse_matmul", AutocastTo::half},
    {"sampled_matmul", AutocastTo::half},
    {"sparse_dot_product", AutocastTo::half},
    {"sparse_weighted_average", AutocastTo::half},
    {"attention", AutocastTo::half},
    {"linear_attention", AutocastTo::half},
    {"gated_delta_rule", AutocastTo::half},
    {"top_k_attention", AutocastTo::half},
    {"clustered_attention", AutocastTo::half},
    {"softmax", AutocastTo::float32},
    {"log_softmax", AutocastTo::float32},
    {"layer_norm", AutocastTo::float32},
    {"batch_norm", AutocastTo::float32},
    {"group_norm", AutocastTo::float32},
    {"dropout_add_layer_norm", AutocastTo::float32},
    {"rms_norm", AutocastTo::float32},
    {"add_rms_norm", AutocastTo::float32},
    {"cross_entropy", AutocastTo::float32},
    {"nll_loss", AutocastTo::float32},
    {"binary_cross_entropy_with_logits", AutocastTo::float32},
    {"mse_loss", AutocastTo::float32},
    {"l1_loss", AutocastTo::float32},
    {"huber_loss", AutocastTo::float32},
    {"smooth_l1_loss", AutocastTo::float32},
    {"cdist", AutocastTo::float32},
    {"kl_div", AutocastTo::float32},
};

/// An op on the list begins with
///
///     if (Autocast cast("linear"); cast) return linear(cast(x), cast(weight), cast(bias));
///
/// There is no autocast inside: the second call is a plain one.
class Autocast {
 public:
  explicit Autocast(std::string_view op) : guard_(detail::autocast_guard()) {
    if (guard_) start(op);
  }
  explicit operator bool() const { return guard_ != nullptr; }
  Tensor operator()(const Tensor& x) const { return guard_->cast(x, to_); }

 private:
  void start(std::string_view op) {
    for (const AutocastRule& rule : kAutocastRules) {
      if (rule.op != op) continue;
      to_ = rule.to == AutocastTo::half ? guard_->dtype() : DType::float32;
      plain_.emplace();
      return;
    }
    throw ValueError("Autocast", "an op on the list", std::string(op));
  }

  AutocastGuard* guard_;
  DType to_ = DType::float32;
  std::optional<NoAutocastGuard> plain_;
};

}  // namespace sash
