#include "model.h"

#include <sash/ops/loss/cross_entropy.h>
#include <sash/optim/adam.h>
#include <sash/optim/muon.h>
#include <sash/optim/optimizer.h>
#include <sash/tensor/factories.h>

namespace optim = sash::optim;

namespace {

constexpr double kClipNorm = 1.0;

}  // namespace

std::unique_ptr<sash::nn::CausalLM> make_model(const Options& options, int64_t vocabulary,
                                               sash::Device device) {
  sash::nn::CausalLMOptions chosen{.vocab = vocabulary,
                                   .context = options.context,
                                   .dim = options.dim,
                                   .heads = options.heads,
                                   .layers = options.layers,
                                   .dropout = options.dropout};
  if (options.attention == "self") {
    chosen.mask = sash::eye(options.context, {.dtype = sash::DType::boolean, .device = device});
  } else {
    chosen.attention = options.attention;
  }
  auto model = std::make_unique<sash::nn::CausalLM>(chosen);
  model->to(device);
  if (options.precision == "bf16" || options.precision == "fp8") model->bfloat16();
  model->float8(options.precision == "fp8");
  if (options.precision == "f16") model->to(sash::DType::float16);
  return model;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Options& options,
                                                 const sash::nn::CausalLM& model) {
  if (options.optimizer == "adamw") {
    return std::make_unique<optim::AdamW>(
        model.parameters(),
        optim::AdamWOptions{.lr = options.lr, .master_weights = true, .max_grad_norm = kClipNorm});
  }
  // Hidden matrices; AdamW trains the rest.
  const auto groups =
      optim::param_groups(model, {{.pattern = ".*(embedding|head|norm|bias).*", .ns_steps = 0}});
  return std::make_unique<optim::Muon>(groups, optim::MuonOptions{.lr = options.lr,
                                                                  .weight_decay = 1e-2,
                                                                  .master_weights = true,
                                                                  .max_grad_norm = kClipNorm});
}

sash::Tensor loss_on(sash::nn::CausalLM& model, const sash::Tensor& tokens,
                     const sash::Tensor& targets) {
  sash::Tensor logits = model(tokens);
  if (is_half(logits.dtype())) logits = logits.to(sash::DType::float32);  // halves have 3 digits
  return cross_entropy(logits, targets);
}
