// Trains a low-rank adapter of a pretrained Llama on a text: llama_adapter FOLDER TEXT.
#include <cstdio>
#include <fstream>
#include <iterator>

#include <sash/sash.h>

using namespace sash;

int main(int argc, char** argv) try {
  if (argc != 3) throw ValueError("llama_adapter", "a folder and a text", "others");
  manual_seed(1);
  const nn::Pretrained file = nn::Pretrained::open(argv[1]);
  nn::TransformerConfig config = file.config();
  config.packed = false;  // so that each projection has its name
  nn::Decoder model = file.decoder(config, {.dtype = DType::float32});
  nn::add_lora(model, "q_proj|v_proj", {.rank = 4, .alpha = 8});

  std::ifstream in(argv[2]);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::vector<int64_t> tokens = file.tokenizer().encode(text, false);
  nn::data::Loader loader(nn::data::TokenDataset(nn::data::Tokens(tokens), 32),
                          {.batch = 4, .shuffle = true});
  optim::AdamW optimizer(nn::lora_parameters(model), {.lr = 1e-2});
  std::vector<double> losses;
  while (losses.size() < 50) {
    for (const nn::data::Batch& batch : loader) {
      optimizer.zero_grad();
      const Tensor loss = model.loss(batch[0], batch[1]);
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<double>());
    }
  }
  std::printf("loss %.3f before, %.3f after\n", losses.front(), losses.back());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
