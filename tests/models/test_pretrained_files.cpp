// Heads and dtypes of checkpoints: what a file has is what its model has.
#include <doctest/doctest.h>
#include <sash/nn/layers/lora.h>
#include <sash/nn/pretrained/pretrained.h>
#include <sash/optim/adam.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>

#include <array>
#include <fstream>
#include <iterator>

#include "../support/child_process.h"
#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;
using nn::Pretrained;

namespace {

const std::string kFolder = SASH_TEST_PARITY "/checkpoints/";

Tensor expected(const std::string& name, const std::string& tensor) {
  return *find(load_safetensors(kFolder + name + ".safetensors", kCPU).tensors, tensor);
}

// A copy of a checkpoint with other tensors, and another `tie_word_embeddings`.
class Copy {
 public:
  template <class Change>
  Copy(const std::string& name, bool tied, Change&& change) {
    std::filesystem::copy(kFolder + name, path());
    std::ifstream in(path() + "/config.json");
    std::string text{std::istreambuf_iterator<char>(in), {}};
    const std::string key = "\"tie_word_embeddings\": ";
    const size_t at = text.find(key) + key.size();
    text.replace(at, text.find_first_of(",\n", at) - at, tied ? "true" : "false");
    std::ofstream(path() + "/config.json") << text;
    StateDict tensors = nn::load_shards(path());
    change(tensors);
    nn::save_shards(path(), tensors, 1 << 20);
  }
  std::string path() const { return folder_.file("x"); }
  Pretrained open() const { return Pretrained::open(path()); }

 private:
  TemporaryFolder folder_;
};

Tensor logits_of(const Pretrained& file, const Tensor& tokens) {
  const NoGradGuard no_grad;
  const TensorOptions plain{.dtype = DType::float32};
  if (file.is_encoder()) return file.encoder(plain).eval()(tokens);
  nn::Decoder model = file.decoder(plain);
  return model(tokens);
}

bool says_tied(const std::string& folder) {
  std::ifstream in(folder + "/config.json");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return text.find("\"tie_word_embeddings\": true") != text.npos;
}

}  // namespace

TEST_CASE("pretrained: a head that a tied file has beside its embedding is kept") {
  for (const std::string name : {"llama", "mistral", "qwen3", "phi3", "olmo3", "gpt_oss"}) {
    CAPTURE(name);
    const Copy copy(name, true, [](StateDict&) {});
    const Tensor tokens = expected(name, "tokens"), want = expected(name, "logits");
    const Pretrained file = copy.open();
    CHECK_FALSE(file.config().tie_weights);
    CHECK(file.warning() ==
          "Pretrained: lm_head.weight differs from model.embed_tokens.weight, to which "
          "tie_word_embeddings ties it; both are kept; in '" +
              copy.path() + "'");
    CHECK(relative_error(logits_of(file, tokens), want) < 2e-5);
    // And by what is saved, for programs that believe config.json.
    const TemporaryFolder folder;
    file.save(file.decoder(), folder.file("y"));
    CHECK_FALSE(says_tied(folder.file("y")));
    const Pretrained again = Pretrained::open(folder.file("y"));
    CHECK(again.warning().empty());
    CHECK(relative_error(logits_of(again, tokens), want) < 2e-5);
    // A model that cannot have both is refused.
    nn::TransformerConfig tied = file.config();
    tied.tie_weights = true;
    CHECK(thrown_by([&] { file.decoder(tied); }) ==
          "ValueError: Pretrained: expected a model whose head is not tied, got tie_weights, but "
          "lm_head.weight differs from model.embed_tokens.weight; in '" +
              copy.path() + "'");
  }
}

TEST_CASE("pretrained: heads of encoders are kept, too, and the bias of their decoder") {
  using Names = std::array<std::string, 3>;
  for (const Names& names :
       {Names{"bert", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"},
        Names{"modernbert", "model.embeddings.tok_embeddings.weight", "decoder.weight"}}) {
    const std::string name = names[0], table = names[1], head = names[2];
    CAPTURE(name);
    const Tensor tokens = expected(name, "tokens"), want = expected(name, "logits");
    const auto add = [table, head](StateDict& tensors) {
      tensors.emplace_back(head, find(tensors, table)->clone());
    };
    const auto add_other = [head](StateDict& tensors) {
      tensors.emplace_back(head, zeros({24, 16}));
    };
    CHECK(Copy(name, true, add).open().config().tie_weights);
    CHECK(Copy(name, true, add).open().warning().empty());
    const Copy copy(name, true, add_other);
    const Tensor got = logits_of(copy.open(), tokens);  // the bias alone
    CHECK(largest_difference(got, got.narrow(1, 0, 1).expand(got.shape())) == 0);
    CHECK(relative_error(got, want) > 0.1);
  }
}

TEST_CASE("pretrained: a tied pair of which a file has one tensor") {
  const auto rename = [](const std::string& from, const std::string& to) {
    return [from, to](StateDict& tensors) {
      for (auto& [name, tensor] : tensors) {
        if (name == from) name = to;
      }
    };
  };
  const std::vector<std::array<std::string, 3>> cases{
      {"gpt2", "transformer.wte.weight", "lm_head.weight"},
      {"gpt_neo", "transformer.wte.weight", "lm_head.weight"},
      {"gemma2", "model.embed_tokens.weight", "lm_head.weight"},
      {"gemma3", "model.embed_tokens.weight", "lm_head.weight"},
      {"bert", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"},
      {"modernbert", "model.embeddings.tok_embeddings.weight", "decoder.weight"}};
  for (const auto& names : cases) {
    const std::string name = names[0];
    CAPTURE(name);
    const Copy copy(name, true, rename(names[1], names[2]));
    CHECK(relative_error(logits_of(copy.open(), expected(name, "tokens")),
                         expected(name, "logits")) < 2e-5);
    CHECK(copy.open().warning().empty());
  }
  const auto drop = [](StateDict& tensors) {
    std::erase_if(tensors, [](const auto& item) { return item.first == "transformer.wte.weight"; });
  };
  const Copy neither("gpt2", true, drop);
  CHECK(thrown_by([&] { neither.open().decoder(); }) ==
        "ValueError: Pretrained: missing transformer.wte.weight; in '" + neither.path() + "'");
  const Copy untied("llama", false, rename("model.embed_tokens.weight", "x.weight"));
  CHECK(thrown_by([&] {
          untied.open().decoder();
        }).starts_with("ValueError: Pretrained: missing model.embed_tokens.weight"));
}

TEST_CASE("pretrained: config.json says of a saved model whether its head is tied") {
  const Pretrained gpt2 = Pretrained::open(kFolder + "gpt2");
  nn::TransformerConfig config = gpt2.config();
  config.tie_weights = false;
  nn::Decoder untied(config);  // with a head of its own
  nn::Decoder tied(gpt2.config());
  const NoGradGuard no_grad;
  const Tensor tokens = expected("gpt2", "tokens");
  const TemporaryFolder folder;
  const std::string path = folder.file("y");
  gpt2.save(untied, path);
  CHECK_FALSE(says_tied(path));
  const Pretrained saved = Pretrained::open(path);
  CHECK(all_same(saved.decoder()(tokens), untied(tokens)));
  saved.save(tied, path);  // whose file has no head
  CHECK(says_tied(path));
  CHECK(all_same(Pretrained::open(path).decoder()(tokens), tied(tokens)));
}

TEST_CASE_TEMPLATE("pretrained: a model has the dtype of its file, or that of the call", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const NoGradGuard no_grad;
  const Tensor tokens = expected("llama", "tokens"), want = expected("llama", "logits");
  for (const DType dtype : {DType::bfloat16, DType::float16, DType::float32, DType::float64}) {
    CAPTURE(dtype);
    const Copy copy("llama", false, [dtype](StateDict& tensors) {
      for (auto& [name, tensor] : tensors) {
        if (tensor.rank() == 2) tensor = tensor.to(dtype);  // norms stay float32
      }
    });
    const StateDict theirs = nn::load_shards(copy.path());
    const Pretrained file = copy.open();
    CHECK(file.dtype() == dtype);
    nn::Decoder model = file.decoder({.device = On::device});
    for (const Tensor& p : model.parameters()) {
      CHECK(p.dtype() == dtype);
      CHECK(p.device().type == On::device.type);
      CHECK(p.requires_grad());
    }
    CHECK(all_same(model.token_embedding.weight.detach().to(kCPU),
                   *find(theirs, "model.embed_tokens.weight")));
    const Tensor logits = model(tokens.to(On::device)).to(kCPU);
    CHECK(logits.dtype() == dtype);
    CHECK(relative_error(logits, want) < (is_half(dtype) ? 3e-2 : 2e-5));
    for (const DType asked : {DType::bfloat16, DType::float32}) {
      nn::Decoder other = file.decoder(file.config(), {.dtype = asked, .device = On::device});
      CHECK(other.head->weight.dtype() == asked);
      CHECK(all_same(other.head->weight.detach().to(kCPU),
                     find(theirs, "lm_head.weight")->to(asked)));
    }
  }
  const Pretrained bert = Pretrained::open(kFolder + "bert");
  CHECK(bert.encoder().token_embedding.weight.dtype() == DType::float32);
  CHECK(bert.encoder({.dtype = DType::float16}).token_embedding.weight.dtype() == DType::float16);
  CHECK(Pretrained::open(kFolder + "gguf_llama.gguf").dtype() == DType::float32);
  expect_error<DTypeError>("Pretrained: expected a floating dtype, got int32",
                           [&] { bert.encoder({.dtype = DType::int32}); });
}

TEST_CASE("pretrained: the dtype of a GGUF file is float32 if any tensor is quantised") {
  // A llama of zeros whose tensors, [4, 32] each, have these formats and bytes.
  const auto dtype_of = [](const std::vector<std::pair<uint32_t, size_t>>& formats) {
    std::string bytes = "GGUF";
    const auto put = [&](auto value) {
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    const auto text = [&](const std::string& s) {
      put(uint64_t{s.size()});
      bytes += s;
    };
    put(uint32_t{3});
    put(uint64_t{formats.size()});
    put(uint64_t{6});
    text("general.architecture");
    put(uint32_t{8});
    text("llama");
    for (const char* key : {"vocab_size", "embedding_length", "block_count", "attention.head_count",
                            "feed_forward_length"}) {
      text(std::string("llama.") + key);
      put(uint32_t{4});
      put(uint32_t{4});
    }
    uint64_t offset = 0;
    for (size_t i = 0; i < formats.size(); ++i) {
      text("tensor" + std::to_string(i));
      put(uint32_t{2});
      put(uint64_t{32});
      put(uint64_t{4});
      put(formats[i].first);
      put(offset);
      offset += (formats[i].second + 31) / 32 * 32;
    }
    bytes.append((32 - bytes.size() % 32) % 32 + offset, '\0');
    const TemporaryFolder folder;
    std::ofstream(folder.file("x.gguf"), std::ios::binary) << bytes;
    return Pretrained::open(folder.file("x.gguf")).dtype();
  };
  const std::pair<uint32_t, size_t> f32{0, 512}, f16{1, 256}, bf16{30, 256}, q8{8, 4 * 34};
  CHECK(dtype_of({f32}) == DType::float32);
  CHECK(dtype_of({f32, f16, f16}) == DType::float16);
  CHECK(dtype_of({bf16, f32, bf16}) == DType::bfloat16);
  CHECK(dtype_of({bf16, bf16, q8}) == DType::float32);
}

TEST_CASE("pretrained: adapters of halves are trained by float32 masters") {
  const Copy copy("llama", false, [](StateDict& tensors) {
    for (auto& [name, tensor] : tensors) tensor = tensor.to(DType::bfloat16);
  });
  const Pretrained file = copy.open();
  nn::TransformerConfig config = file.config();
  config.packed = false;
  nn::Decoder model = file.decoder(config);
  nn::add_lora(model, "q_proj|v_proj", {.rank = 2});
  optim::AdamW optimizer(nn::lora_parameters(model), {.lr = 1e-2});
  const Tensor tokens = expected("llama", "tokens");
  const auto loss = [&] { return model.loss(tokens, tokens); };
  const double before = loss().item<double>();
  for (int i = 0; i < 20; ++i) {
    optimizer.zero_grad();
    loss().backward();
    optimizer.step();
  }
  CHECK(nn::lora_parameters(model)[0].dtype() == DType::bfloat16);
  CHECK(loss().item<double>() < before);
  const TemporaryFolder folder;
  file.save(model, folder.file("y"));
  for (const auto& [name, tensor] : nn::load_shards(folder.file("y"))) {
    CHECK(tensor.dtype() == DType::bfloat16);
  }
}

TEST_CASE("pretrained: the tokenizer and options of generation are saved too") {
  const Copy copy("llama", false, [](StateDict&) {});
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(copy.path() + "/" + name, std::ios::binary) << text;
  };
  CHECK(copy.open().stop_tokens().empty());
  write("generation_config.json", "{\"eos_token_id\":[3,5]}");
  write("tokenizer_config.json", "{\"model_max_length\":64}\n");
  write("other.json", "{}");
  const Pretrained file = copy.open();
  CHECK(file.stop_tokens() == std::vector<int64_t>{3, 5});
  const TemporaryFolder folder;
  const std::string saved = folder.file("saved");
  file.save(file.decoder(), saved);
  CHECK_FALSE(std::filesystem::exists(saved + "/other.json"));
  for (const std::string name :
       {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    CHECK(file_text(saved + "/" + name) == file_text(copy.path() + "/" + name));
  }
  const Pretrained again = Pretrained::open(saved);
  CHECK(again.stop_tokens() == file.stop_tokens());
  CHECK(again.tokenizer().encode("to me") == file.tokenizer().encode("to me"));
  again.save(again.decoder(), saved);  // onto itself
  CHECK(file_text(saved + "/tokenizer.json") == file_text(copy.path() + "/tokenizer.json"));
  write("generation_config.json", "{\"eos_token_id\":-1}");
  CHECK(thrown_by([&] { copy.open(); })
            .starts_with("FormatError: Pretrained: expected an integer "
                         "eos_token_id from 0"));
}

TEST_CASE("pretrained: a tensor of a dtype that sash lacks is named") {
  const Copy copy("llama", false, [](StateDict&) {});
  const std::string path = copy.path() + "/model.safetensors";
  std::ifstream in(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const size_t at = bytes.find("\"dtype\":\"F32\"", bytes.find("model.norm.weight"));
  REQUIRE(at != bytes.npos);
  bytes.replace(at, 13, "\"dtype\":\"U32\"");
  std::ofstream(path, std::ios::binary) << bytes;
  const Pretrained file = copy.open();
  CHECK(thrown_by([&] { file.decoder(); }) ==
        "NotImplemented: load_safetensors: sash cannot read 'model.norm.weight' of dtype U32, only "
        "F32, F64, F16, BF16, I32, I64, U8 and BOOL (as int64 with IntegerCast::widen; other "
        "tensors of the "
        "file by load_safetensors_tensor); in '" +
            copy.path() + "'");
}
