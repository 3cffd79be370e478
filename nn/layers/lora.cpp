#include "lora.h"

#include <algorithm>
#include <cmath>

#include "../../ops/elementwise/dropout.h"
#include "../../ops/linalg/linear.h"
#include "../../ops/linalg/matmul.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../check.h"
#include "../init.h"
#include "../name_pattern.h"
#include "linear.h"

namespace sash::nn {
namespace {

constexpr const char* kOp = "add_lora";
constexpr const char* kName = "lora";

class LoraAdapter : public Module {
 public:
  LoraAdapter(const Linear& layer, const LoraOptions& options)
      : scale_(options.alpha / static_cast<double>(options.rank)), dropout_(options.dropout) {
    const TensorOptions like = layer.weight.options();
    a = register_parameter("a", empty({options.rank, layer.in_features()}, like));
    b = register_parameter("b", zeros({layer.out_features(), options.rank}, like));
    const double bound = 1 / std::sqrt(static_cast<double>(layer.in_features()));
    init::uniform_(a, -bound, bound);
  }

  Tensor forward(const Tensor& x) override {
    return linear(linear(dropout(x, dropout_, is_training()), a), b) * scale_;
  }
  std::string describe() const override {
    return "LoraAdapter(rank " + std::to_string(a.size(0)) + ", scale " + to_text(scale_) + ")";
  }
  /// What the layer's weight has to grow by, in `dtype`.
  Tensor update(DType dtype) const { return matmul(b.to(dtype), a.to(dtype)) * scale_; }

  Tensor a, b;

 private:
  double scale_, dropout_;
};

// The adapters of a model, by the full names of their layers: "" for the model itself.
std::vector<std::pair<std::string, LoraAdapter*>> adapters_of(const Module& model) {
  std::vector<std::pair<std::string, LoraAdapter*>> found;
  const size_t end = std::string_view(kName).size() + 1;
  for (const auto& [name, module] : const_cast<Module&>(model).named_modules()) {
    auto* const adapter = dynamic_cast<LoraAdapter*>(module);
    if (!adapter) continue;
    found.emplace_back(name == kName ? "" : name.substr(0, name.size() - end), adapter);
  }
  return found;
}

std::vector<std::pair<std::string, Linear*>> layers_of(Module& model, const std::string& pattern) {
  const NamePattern wanted(kOp, pattern);
  std::vector<std::pair<std::string, Linear*>> layers;
  for (const auto& [name, module] : model.named_modules()) {
    auto* const layer = dynamic_cast<Linear*>(module);
    const std::string own = name.substr(name.rfind('.') + 1);
    if (layer && layer->weight.defined() && (wanted.matches(own) || wanted.matches(name))) {
      layers.emplace_back(name, layer);
    }
  }
  return layers;
}

// Of tied weights, only one layer's use would see the update.
bool is_shared(const Tensor& weight, const StateDict& all) {
  const auto uses = std::count_if(all.begin(), all.end(), [&](const auto& item) {
    return item.second.numel() > 0 && item.second.tensor_view().data == weight.tensor_view().data;
  });
  return uses > 1;
}

void check_layer(const std::string& name, const Linear& layer, const StateDict& all) {
  const auto fail = [&](const char* expected, const char* got) {
    throw ValueError(kOp, expected, std::string(got) + ", '" + name + "'");
  };
  if (layer.is_block_sparse()) fail("dense layers", "a block-sparse one");
  for (const auto& [child, module] : layer.children()) {
    if (child == kName) fail("layers without an adapter", "one that has it");
  }
  if (is_shared(layer.weight, all)) fail("layers without a tied weight", "a tied weight");
}

}  // namespace

std::vector<std::string> add_lora(Module& model, const std::string& pattern,
                                  const LoraOptions& options) {
  check_positive(kOp, "rank", options.rank);
  check_probability(kOp, "dropout", options.dropout);
  const auto layers = layers_of(model, pattern);
  if (layers.empty()) {
    throw ValueError(kOp, "a pattern that matches a Linear", "'" + pattern + "'");
  }
  const StateDict all = model.state_dict();
  for (const auto& [name, layer] : layers) check_layer(name, *layer, all);
  model.freeze();
  for (const auto& [name, adapter] : adapters_of(model))
    adapter->requires_grad_();  // of another call
  std::vector<std::string> names;
  for (const auto& [name, layer] : layers) {
    LoraAdapter& adapter = layer->register_module<LoraAdapter>(kName, *layer, options);
    adapter.train(layer->is_training());
    // The layer owns the adapter, and its hooks go with it.
    layer->register_forward_hook(
        [&adapter](const Module&, std::span<const Tensor> inputs, const Tensor& output) {
          return output + adapter(inputs[0]);
        });
    names.push_back(name);
  }
  return names;
}

std::vector<Tensor> lora_parameters(const Module& model) {
  std::vector<Tensor> parameters;
  for (const auto& [name, adapter] : adapters_of(model)) {
    parameters.push_back(adapter->a);
    parameters.push_back(adapter->b);
  }
  return parameters;
}

StateDict merged_state_dict(const Module& model) {
  const NoGradGuard no_grad;
  StateDict merged = model.state_dict();
  for (const auto& [name, adapter] : adapters_of(model)) {
    const std::string prefix = name.empty() ? "" : name + ".";
    std::erase_if(merged, [&](const auto& item) {
      return item.first == prefix + kName + ".a" || item.first == prefix + kName + ".b";
    });
    for (auto& [key, tensor] : merged) {
      if (key != prefix + "weight") continue;
      const DType wide = tensor.dtype() == DType::float64 ? DType::float64 : DType::float32;
      tensor = (tensor.to(wide) + adapter->update(wide)).to(tensor.dtype());
    }
  }
  return merged;
}

}  // namespace sash::nn
