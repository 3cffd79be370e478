#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "../../core/error.h"
#include "../../core/small_vector.h"

#include "../kernels/block_map.h"
#include "attention.h"

/// One call of attention, checked; what the kernels and the plain ops both start from.
namespace sash {

/// What gradients flow to; undefined where absent.
struct AttentionTensors {
  Tensor q, k, v, bias, relative_bias;
};

struct AttentionCall {
  /// Throws as `attention` does.
  AttentionCall(const AttentionTensors& inputs, const AttentionOptions& options);

  Shape weights_shape() const { return {shape.batch, shape.heads, shape.queries, shape.keys}; }
  /// The dtype of log-sum-exps and of sums.
  DType numbers() const { return dtype == DType::float64 ? dtype : DType::float32; }
  SmallVector<Tensor, 2> mask_tensors() const;

  /// Makes `maps` and `bounds`: patterns compile when a kernel asks for them, data is read now.
  void prepare_kernels(Device device);

  double scale, softcap, dropout;
  AttentionMask mask;
  MaskShape shape;
  DType dtype;
  Tensor slopes;
  PhiloxState philox{};
  std::shared_ptr<const kernels::BlockMaps> maps{};
  Tensor bounds{};  ///< int32 [B or 1, H or 1, S_q, 2], if part of the mask is data
};

/// "the mask is causal & window:256,0", abridged.
std::string mask_note(const AttentionMask& mask);

/// What `call` returns; an `Error` of `op` that leaves it says which mask the caller gave.
template <class Call>
auto naming_mask(const AttentionMask& mask, std::string_view op, Call&& call) {
  try {
    return call();
  } catch (Error& error) {
    if (error.op() == op) error.append(mask_note(mask));
    throw;
  }
}

/// The call from plain ops.
AttentionWithLse attention_from_plain_ops(const AttentionTensors& inputs,
                                          const AttentionCall& call);

}  // namespace sash
