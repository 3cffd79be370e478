#pragma once

#include <string>
#include <vector>

#include "../module.h"

namespace sash::nn {

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16;   ///< the update is scaled by alpha / rank
  double dropout = 0;  ///< of the update's input, while training
};

/// Low-rank adaptation (Hu et al., "LoRA", ICLR 2022): every `Linear` of the model whose name
/// matches computes
///
///     y = x W' + b + (alpha / rank) (x A') B',
///
/// with A [rank, in], U(-1/sqrt(in), 1/sqrt(in)) at first, and B [out, rank], zeros. All other
/// parameters are frozen: they get no gradient, nothing is saved for it, and an optimizer makes no
/// state for them. A and B are the parameters `<name>.lora.a` and `<name>.lora.b`, in the weight's
/// dtype and on its device; state dictionaries and training checkpoints have them.
///
///     nn::add_lora(model, "q_proj|v_proj", {.rank = 8});
///     optim::AdamW optimizer(nn::lora_parameters(model));
///
/// `pattern` is an ECMAScript regular expression for a layer's own name ("q_proj") or its full name
/// ("layers\\.[0-3]\\.mlp\\.up_proj"). Returns the full names of the layers. `ValueError` if it
/// matches none, for a rank that is not positive or a dropout outside [0, 1], or if a layer has an
/// adapter already, is block-sparse, or shares its weight; nothing is changed then.
SASH_API std::vector<std::string> add_lora(Module& model, const std::string& pattern,
                                           const LoraOptions& options = {});

/// A and B of all layers.
SASH_API std::vector<Tensor> lora_parameters(const Module& model);

/// The model's state dictionary with the updates added to the weights, without the adapters, for a
/// model without adapters. Other entries share the model's memory.
SASH_API StateDict merged_state_dict(const Module& model);

}  // namespace sash::nn
