/// Embeds sentences with a pretrained encoder such as all-MiniLM-L6-v2: `embed FOLDER "A sentence"
/// "Another"`. An embedding is the mean of the last states, of length one. Prints the cosines of
/// all pairs.

#include <sash/nn/pretrained/pretrained.h>
#include <sash/nn/text/tokenizer.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "support/program.h"

using namespace sash;

namespace {

// Rows of tokens, padded with zeros, and how many of each row count.
struct Batch {
  Tensor tokens, lengths;
};

Batch batch_of(const text::Tokenizer& tokenizer, const std::vector<std::string>& sentences,
               size_t most) {
  std::vector<std::vector<int64_t>> rows;
  std::vector<int> lengths;
  size_t longest = 0;
  for (const std::string& sentence : sentences) {
    rows.push_back(tokenizer.encode(sentence));
    if (rows.back().size() > most) {  // the last token, [SEP], stays
      rows.back()[most - 1] = rows.back().back();
      rows.back().resize(most);
    }
    longest = std::max(longest, rows.back().size());
    lengths.push_back(static_cast<int>(rows.back().size()));
  }
  std::vector<int64_t> tokens;
  for (std::vector<int64_t>& row : rows) {
    row.resize(longest);
    tokens.insert(tokens.end(), row.begin(), row.end());
  }
  const auto count = static_cast<int64_t>(rows.size());
  return {tensor(tokens, {count, static_cast<int64_t>(longest)}), tensor(lengths, {count})};
}

Tensor embed(nn::Encoder& model, const Batch& batch) {
  const Tensor states = model(batch.tokens, AttentionMask::key_lengths(batch.lengths));
  const Tensor positions = arange(batch.tokens.size(1)).unsqueeze(0);
  const Tensor counts = batch.lengths.to(DType::int64).unsqueeze(1);
  const Tensor seen = (positions < counts).to(states.dtype()).unsqueeze(-1);
  const Tensor mean = (states * seen).sum({1}) / counts.to(states.dtype());
  return mean / mean.norm(2, {-1}, true);
}

void run(const std::string& folder, const std::vector<std::string>& sentences,
         const std::string& output) {
  const NoGradGuard no_grad;
  const nn::Pretrained file = nn::Pretrained::open(folder);
  const text::Tokenizer tokenizer = file.tokenizer();
  nn::Encoder model = file.encoder({.dtype = DType::float32});
  model.eval();
  const auto most = static_cast<size_t>(file.config().max_positions);
  const Tensor embeddings = embed(model, batch_of(tokenizer, sentences, most));
  if (!output.empty()) save_safetensors(output, {{"embeddings", embeddings}});
  const Tensor cosines = matmul(embeddings, embeddings.mT());
  for (int64_t i = 0; i < cosines.size(0); ++i) {
    for (const double cosine : cosines[i].to_vector<double>()) std::printf("%6.3f ", cosine);
    std::printf(" %s\n", sentences[static_cast<size_t>(i)].c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder, output;
  std::vector<std::string> sentences{"A man is eating food.", "Someone is having a meal.",
                                     "The stock market fell sharply today."};
  CLI::App app("Embeds sentences with a pretrained encoder");
  app.add_option("folder", folder, "With config.json, model.safetensors, tokenizer.json")
      ->required();
  app.add_option("sentences", sentences);
  app.add_option("--output", output, "Save the embeddings as safetensors");
  return run_program(app, argc, argv, [&] {
    run(folder, sentences, output);
    return 0;
  });
}
