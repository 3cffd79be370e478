#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "../../../core/error.h"
#include "../../../core/small_vector.h"
#include "../../../tensor/autograd/node.h"
#include "../../autocast.h"
#include "../mask/mask_part.h"
#include "attention.h"

/// One checked call of attention: the input of the kernels and of the composite.
namespace sash {

struct CompiledBlockMap;

/// The differentiable inputs; undefined if absent.
struct AttentionTensors {
  Tensor q, k, v, bias{}, relative_bias{};
};

struct AttentionCall {
  /// Throws as `attention` does.
  AttentionCall(const AttentionTensors& inputs, const AttentionOptions& options);

  Shape weights_shape() const { return {shape.batch, shape.heads, shape.queries, shape.keys}; }
  /// Of sums and log-sum-exps.
  DType accumulation_dtype() const { return dtype == DType::float64 ? dtype : DType::float32; }
  SmallVector<Tensor, 2> mask_tensors() const;
  /// Takes `philox` from the device's generator.
  void draw_dropout(Device device);

  /// Splits the mask into `pattern`, `bounds` and `selection`; the data of `bounds` is read now.
  void prepare_kernels(Device device);
  /// Whether kernels of selected blocks run the call.
  bool selects() const { return selection.index.defined(); }

  double scale, softcap, dropout;
  AttentionMask mask;
  MaskShape shape;
  DType dtype;
  Tensor slopes;
  bool may_select;  ///< whether the call has nothing that kernels of selected blocks lack
  PhiloxState philox{};
  std::shared_ptr<const MaskTerm> pattern{};              ///< the mask without its data
  Tensor bounds{};                                        ///< of the data, as kernels take them
  BlockSelection selection{};                             ///< instead of a map, with `window`
  KeyWindow window{};                                     ///< that `pattern` is
  std::shared_ptr<const CompiledBlockMap> forward_map{};  ///< that the forward kernel read
  Tensor kept{};  ///< what dropout keeps, if the forward kernel left it for the backward one
};

/// The options with biases cast like q, k and v.
AttentionOptions cast_biases(AttentionOptions options, const Autocast& cast);

/// Throws unless q, k and v fit together as `attention` describes.
void check_heads(const char* op, const Tensor& q, const Tensor& k, const Tensor& v);

/// Throws unless `lengths` is int32 [B] for x [B, ...], or undefined.
void check_lengths(const char* op, const Tensor& x, const Tensor& lengths);

/// `ValueError` unless scale is finite and softcap finite and above 0, or 0, as `accumulator` holds
/// them.
void check_scale_and_softcap(const char* op, double scale, double softcap, DType accumulator);

/// "the mask is causal & window:256,0", at most 100 characters of the mask.
std::string mask_note(const AttentionMask& mask);

/// Returns call(). Appends the mask to an `Error` of `op` that it throws.
template <class Call>
auto naming_mask(const AttentionMask& mask, std::string_view op, Call&& call) {
  try {
    return call();
  } catch (Error& error) {
    if (error.op() == op) error.append(mask_note(mask));
    throw;
  }
}

/// Whether the device has the kernels.
bool has_attention_kernels(Device device);
/// The forward kernel alone, for a call that `prepare_kernels` has prepared. Nothing is recorded.
AttentionWithLse run_attention(const AttentionTensors& inputs, AttentionCall& call);

struct AttentionCotangents {
  Tensor out{}, lse{};                       ///< undefined: zero
  bool bias = false, relative_bias = false;  ///< whether their gradients are wanted
};
/// The backward kernel alone: gradients of q, k, v and the biases. If `out` and `lse` are results
/// of a softmax over more keys than the call has, the gradients are the share of the call's keys.
Gradients run_attention_backward(const AttentionCotangents& g, const AttentionTensors& inputs,
                                 const Tensor& out, const Tensor& lse, const AttentionCall& call);

/// The composite.
AttentionWithLse attention_from_plain_ops(const AttentionTensors& inputs,
                                          const AttentionCall& call);

}  // namespace sash
