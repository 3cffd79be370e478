#include <doctest/doctest.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/nn/models/transformer.h>
#include <sash/ops/elementwise/compare.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/ops/loss/mse_loss.h>
#include <sash/optim/adam.h>
#include <sash/optim/clip.h>
#include <sash/tensor/io/safetensors.h>

#include <cmath>
#include <functional>
#include <optional>

#include "../support/compare.h"
#include "../support/devices.h"

/// The same weights and batches as in PyTorch (parity/make_reference.py made the files): first
/// output, each gradient, and ten AdamW steps.
using namespace sash;
using namespace sash::testing;

namespace {

/// Device and dtype of a comparison, and its tolerances.
struct Setting {
  Device device;
  DType dtype;
  double relative;  ///< ||a - b|| / ||b||, per tensor
  double zero;      ///< gradient per element, where b is zero by symmetry
  double drift;     ///< parameter per element, where that gradient is all that moves it
};

class Reference {
 public:
  explicit Reference(const std::string& name)
      : tensors_(load_safetensors(SASH_TEST_PARITY "/" + name + ".safetensors").tensors) {}

  const Tensor& at(const std::string& name) const {
    const Tensor* tensor = find(tensors_, name);
    REQUIRE_MESSAGE(tensor, name);
    return *tensor;
  }
  /// The tensors called `prefix.<key>`, by key.
  StateDict section(const std::string& prefix) const {
    StateDict part;
    for (const auto& [name, tensor] : tensors_) {
      if (name.rfind(prefix + ".", 0) == 0)
        part.emplace_back(name.substr(prefix.size() + 1), tensor);
    }
    return part;
  }

 private:
  StateDict tensors_;
};

void check_close(const std::string& what, const Tensor& got, const Tensor& want, double tolerance) {
  CAPTURE(what);
  REQUIRE(got.defined());
  REQUIRE(got.shape() == want.shape());
  CHECK(relative_error(got, want) <= tolerance);
}

/// A key's bias adds the same to all scores of a row, so softmax makes its gradient zero; what is
/// left is rounding, which Adam scales up to steps of at most lr.
void check_key_bias(const std::string& what, const Tensor& got, const Tensor& want,
                    double tolerance) {
  CAPTURE(what);
  const int64_t dim = want.size(0) / 3;
  const auto a = got.narrow(0, dim, dim).to_vector<double>();
  const auto b = want.narrow(0, dim, dim).to_vector<double>();
  for (size_t i = 0; i < b.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= tolerance);
}

bool has_key_bias(const std::string& name) {
  return name.find("in_proj_bias") != std::string::npos;
}

Tensor without_key_bias(const Tensor& bias) {
  const int64_t dim = bias.size(0) / 3;
  Tensor parts = bias.detach().clone();
  parts.narrow(0, dim, dim).zero_();
  return parts;
}

struct Pass {
  Tensor output;
  Tensor loss;
};

void check_training(const Reference& reference, nn::Module& model,
                    const std::function<Pass()>& forward, std::optional<double> max_norm,
                    const Setting& setting) {
  CAPTURE(name(setting.dtype));
  model.to(setting.dtype);
  model.to(setting.device);
  model.load_state_dict(reference.section("weight"));
  optim::AdamW optimizer(model.parameters());  // the defaults are the reference's
  const std::vector<double> losses = reference.at("losses").to_vector<double>();
  REQUIRE(losses.size() == 10);
  for (size_t step = 0; step < losses.size(); ++step) {
    CAPTURE(step);
    optimizer.zero_grad();
    const Pass pass = forward();
    pass.loss.backward();
    CHECK(std::abs(pass.loss.item<double>() - losses[step]) <= setting.relative * losses[step]);
    if (step == 0) {
      check_close("output", pass.output, reference.at("output"), setting.relative);
      for (const auto& [name, parameter] : model.named_parameters()) {
        const Tensor& want = reference.at("grad." + name);
        check_close("grad." + name, parameter.grad(), want, setting.relative);
        if (has_key_bias(name)) check_key_bias(name, parameter.grad(), want, setting.zero);
      }
    }
    if (max_norm) {
      const double want = reference.at("norms").to_vector<double>()[step];
      const double norm = optim::clip_grad_norm_(model.parameters(), *max_norm).item<double>();
      CHECK(std::abs(norm - want) <= setting.relative * want);
    }
    optimizer.step();
  }
  for (const auto& [name, parameter] : model.named_parameters()) {
    const Tensor& want = reference.at("after." + name);
    if (has_key_bias(name)) {
      check_key_bias("after." + name, parameter, want, setting.drift);
      check_close("after." + name, without_key_bias(parameter), without_key_bias(want),
                  setting.relative);
    } else {
      check_close("after." + name, parameter, want, setting.relative);
    }
  }
}

// The drift in float32 is that of ten steps of lr 1e-3, all in one direction.
std::vector<Setting> settings(Device device) {
  if (device.is_cpu()) {
    return {{device, DType::float64, 1e-12, 1e-15, 1e-9},
            {device, DType::float32, 1e-5, 1e-7, 1e-2}};
  }
  return {{device, DType::float64, 1e-10, 1e-13, 1e-7}, {device, DType::float32, 1e-4, 1e-6, 1e-2}};
}

void check_causal_lm(const Setting& setting) {
  const Reference reference("causal_lm");
  nn::CausalLM model({.vocab = 29, .context = 17, .dim = 24, .heads = 3, .layers = 2});
  const Tensor tokens = reference.at("batch.tokens").to(setting.device);
  const Tensor targets = reference.at("batch.targets").to(setting.device);
  const auto forward = [&]() -> Pass {
    const Tensor logits = model(tokens);
    return {logits, cross_entropy(logits, targets)};
  };
  check_training(reference, model, forward, 0.5, setting);
}

void check_encoder(const Setting& setting) {
  const Reference reference("encoder");
  nn::TransformerEncoder model({.dim = 20, .heads = 4, .layers = 2, .mlp_dim = 36, .dropout = 0});
  const Tensor input = reference.at("batch.input").to(setting.dtype).to(setting.device);
  const Tensor target = reference.at("batch.target").to(setting.dtype).to(setting.device);
  // PyTorch marks the keys to hide.
  const Tensor padding = reference.at("batch.padding").to(setting.device);
  const AttentionMask mask(logical_not(padding.view({4, 1, 1, 11})));
  const auto forward = [&]() -> Pass {
    const Tensor output = model(input, mask);
    return {output, mse_loss(output, target)};
  };
  check_training(reference, model, forward, {}, setting);
}

void check_decoder(const Setting& setting, bool norm_first) {
  const Reference reference(norm_first ? "decoder_before" : "decoder_after");
  nn::TransformerDecoder model({.dim = 12,
                                .heads = 2,
                                .layers = 2,
                                .mlp_dim = 20,
                                .dropout = 0,
                                .mlp = nn::MlpKind::gelu,
                                .norm_first = norm_first,
                                .final_norm = norm_first});
  const auto batch = [&](const std::string& name) {
    return reference.at("batch." + name).to(setting.dtype).to(setting.device);
  };
  const Tensor input = batch("input"), memory = batch("memory"), target = batch("target");
  const Tensor padding = reference.at("batch.padding").to(setting.device);
  const AttentionMask memory_mask(logical_not(padding.view({3, 1, 1, 7})));
  const auto forward = [&]() -> Pass {
    const Tensor output = model(input, memory, AttentionMask::causal(), memory_mask);
    return {output, mse_loss(output, target)};
  };
  check_training(reference, model, forward, {}, setting);
}

}  // namespace

TEST_CASE_TEMPLATE("parity: a causal language model", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const Setting& setting : settings(On::device)) check_causal_lm(setting);
}

TEST_CASE_TEMPLATE("parity: an encoder with padding", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const Setting& setting : settings(On::device)) check_encoder(setting);
}

TEST_CASE_TEMPLATE("parity: a decoder with a memory", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const Setting& setting : settings(On::device)) {
    check_decoder(setting, true);
    check_decoder(setting, false);
  }
}
