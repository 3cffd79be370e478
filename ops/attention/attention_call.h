#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "../../core/error.h"
#include "../../core/small_vector.h"

#include "attention.h"

/// One call of attention, checked; what the kernels and the plain ops both start from.
namespace sash {

struct CompiledBlocks;

/// What gradients flow to; undefined where absent.
struct AttentionTensors {
  Tensor q, k, v, bias, relative_bias;
};

struct AttentionCall {
  /// Throws as `attention` does.
  AttentionCall(const AttentionTensors& inputs, const AttentionOptions& options);

  Shape weights_shape() const { return {shape.batch, shape.heads, shape.queries, shape.keys}; }
  /// Of sums and log-sum-exps.
  DType accumulation_dtype() const { return dtype == DType::float64 ? dtype : DType::float32; }
  SmallVector<Tensor, 2> mask_tensors() const;

  /// Splits the mask into `pattern` and `bounds`; the data of the latter is read now.
  void prepare_kernels(Device device);
  /// The pattern's map: `blocks` if of that height, else compiled or from the cache.
  std::shared_ptr<const CompiledBlocks> map_for_block_rows(int64_t query_rows, Device device) const;

  double scale, softcap, dropout;
  AttentionMask mask;
  MaskShape shape;
  DType dtype;
  Tensor slopes;
  PhiloxState philox{};
  std::shared_ptr<const MaskTerm> pattern{};       ///< the mask without its data
  Tensor bounds{};                                 ///< of the data, as kernels take them
  std::shared_ptr<const CompiledBlocks> blocks{};  ///< of the forward pass
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
