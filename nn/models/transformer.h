#pragma once

#include "../../ops/norm/dropout_add_layer_norm.h"
#include "../attention/multihead_attention.h"
#include "../layers/activation.h"
#include "../layers/dropout.h"
#include "../layers/layer_norm.h"
#include "../layers/linear.h"
#include "../layers/module_list.h"

namespace sash::nn {

enum class Activation { relu, gelu };

struct TransformerOptions {
  int64_t dim = 512;
  int64_t heads = 8;
  int64_t layers = 6;       ///< of an encoder
  int64_t feedforward = 0;  ///< width of the hidden layer; 0 means 4 dim
  double dropout = 0.1;     ///< of attention probabilities, hidden units and both branches
  Activation activation = Activation::relu;
  bool norm_first = false;  ///< normalise the input of a branch, not the sum after it
  bool final_norm = false;  ///< whether an encoder ends with a `LayerNorm`, called `norm`
  double layer_norm_eps = 1e-5;
  bool bias = true;  ///< of the linear layers and norms
  /// These are explained in `MultiheadAttentionOptions`.
  std::string attention = "dense";
  int64_t kv_heads = 0;
  double softcap = 0;
  bool alibi = false;
  std::optional<int64_t> relative_positions{};
  bool sink_logits = false;
};

/// Self-attention and a feed-forward net, each in a residual branch (Vaswani et al., 2017):
///
///     x = norm1(x + attention(x)),        x = norm2(x + ff(x))         or, with norm_first,
///     x = x + attention(norm1(x)),        x = x + ff(norm2(x)),
///     ff(x) = linear2(dropout(activation(linear1(x))))
///
/// Children, as PyTorch's: `self_attn`, `linear1`, `dropout`, `linear2`, `norm1`, `norm2`,
/// `dropout1`, `dropout2`.
class SASH_API TransformerEncoderLayer : public Module {
 public:
  using Options = TransformerOptions;

  /// `ValueError` for a negative feedforward, and as `MultiheadAttention`.
  explicit TransformerEncoderLayer(const TransformerOptions& options);

  /// x [B, S, dim] to the same shape, without a mask.
  Tensor forward(const Tensor& x) override;
  Tensor forward(const Tensor& x, const AttentionMask& mask);
  /// x [B, S, dim] of the tokens that follow those in `cache`, a `self_attn.new_cache`: see
  /// `MultiheadAttention`.
  Tensor forward(const Tensor& x, KeyValueCache& cache);
  /// For a stack of layers with norm_first: from x and its `norm1`, the sum after this layer and
  /// that sum's norm by `next`, the `norm1` of the next layer. A pass over memory less than
  /// `forward` and `next` take. `ValueError` without norm_first.
  SumAndNorm forward(const SumAndNorm& x, const AttentionMask& mask, LayerNorm& next);
  template <class... Args>
  auto operator()(Args&&... args) {
    return call([&] { return forward(std::forward<Args>(args)...); }, args...);
  }
  std::string describe() const override;

 private:
  template <class MaskOrCache>
  Tensor run(const Tensor& x, MaskOrCache& seen);
  Tensor feed_forward(const Tensor& x);

  Activation activation_;
  bool norm_first_;

 public:
  MultiheadAttention& self_attn;
  Linear& linear1;
  Dropout& dropout;
  Linear& linear2;
  LayerNorm& norm1;
  LayerNorm& norm2;
  Dropout& dropout1;
  Dropout& dropout2;
};

/// A stack of layers, `layers.0`, `layers.1`, ..., and a `norm` if `final_norm` is set.
class SASH_API TransformerEncoder : public Module {
 public:
  using Options = TransformerOptions;

  /// `ValueError` as `TransformerEncoderLayer`, and unless there is a layer.
  explicit TransformerEncoder(const TransformerOptions& options);

  /// x [B, S, dim] to the same shape, without a mask.
  Tensor forward(const Tensor& x) override;
  Tensor forward(const Tensor& x, const AttentionMask& mask);
  template <class... Args>
  Tensor operator()(const Args&... args) {
    return call([&] { return forward(args...); }, args...);
  }

  ModuleList<TransformerEncoderLayer>& layers;
  LayerNorm* norm = nullptr;  ///< null without one
};

}  // namespace sash::nn
