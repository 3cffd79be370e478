// A vision transformer learns 8 x 8 digits. Its tokens are patches of 2 x 2 pixels.
#include <cstdio>

#include <sash/sash.h>

using namespace sash;

struct VisionTransformer : nn::Module {
  nn::Conv2d& patches =
      register_module<nn::Conv2d>("patches", 1, 64, 2, nn::Conv2dOptions{.stride = 2});
  nn::TransformerEncoder& encoder = register_module<nn::TransformerEncoder>(
      "encoder", nn::TransformerOptions{.dim = 64,
                                        .layers = 4,
                                        .mlp_dim = 128,
                                        .mlp = nn::MlpKind::gelu,
                                        .norm_first = true,
                                        .final_norm = true});
  nn::Linear& head = register_module<nn::Linear>("head", 64, 10);
  Tensor class_token = register_parameter("class_token", zeros({1, 1, 64}));
  Tensor positions = register_parameter("positions", randn({1, 17, 64}) * 0.02);

  Tensor forward(const Tensor& images) override {
    const Tensor x = patches(images).flatten(2).transpose(1, 2);
    const Tensor tokens = cat({class_token.expand({x.size(0), 1, 64}), x}, 1) + positions;
    return head(encoder(tokens).select(1, 0));
  }
};

int main(int argc, char** argv) {
  manual_seed(1);
  const StateDict file = load_safetensors(argc > 1 ? argv[1] : DIGITS_DATA).tensors;
  const Tensor images = find(file, "images")->to(DType::float32).unsqueeze(1) / 16;
  const Tensor labels = find(file, "labels")->to(DType::int64);
  const Tensor place = remainder(arange(labels.size(0)), 5), held_out = place == 4;
  const nn::data::TensorDataset train({images[place != 4], labels[place != 4]});

  VisionTransformer model;
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
  nn::data::Loader loader(train, {.batch = 64, .shuffle = true});
  for (int epoch = 0; epoch < 12; ++epoch) {
    for (const nn::data::Batch& batch : loader) {
      optimizer.zero_grad();
      cross_entropy(model(batch[0]), batch[1]).backward();
      optimizer.step();
    }
  }
  const NoGradGuard no_grad;
  const Tensor right = argmax(model.eval()(images[held_out])) == labels[held_out];
  std::printf("%.1f %% of held-out digits\n", 100 * right.to(DType::float32).mean().item<double>());
}
