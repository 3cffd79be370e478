#pragma once

#include <cstdint>
#include <memory>

#include <sash/nn/models/causal_lm.h>
#include <sash/optim/optimizer.h>

#include "options.h"

/// The language model that the options describe, in their precision, on `device`.
std::unique_ptr<sash::nn::CausalLM> make_model(const Options& options, int64_t vocabulary,
                                               sash::Device device);

/// Its optimiser, which clips gradients.
std::unique_ptr<sash::optim::Optimizer> make_optimizer(const Options& options,
                                                       const sash::nn::CausalLM& model);

/// Mean cross entropy of the model's logits, in nats per character.
sash::Tensor loss_on(sash::nn::CausalLM& model, const sash::Tensor& tokens,
                     const sash::Tensor& targets);
