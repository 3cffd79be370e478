#include <doctest/doctest.h>
#include <sash/nn/pretrained/config_json.h>
#include <sash/nn/pretrained/pretrained.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>
#include <sash/tensor/random.h>

#include <fstream>
#include <iterator>

#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

/// Checkpoints as transformers and llama.cpp write them (parity/make_checkpoints.py).
using namespace sash;
using namespace sash::testing;
using nn::Pretrained;

namespace {

const std::string kFolder = SASH_TEST_PARITY "/checkpoints/";

const std::vector<std::string> kFolders{
    "gpt2",  "gpt_neo", "llama",      "mistral", "qwen3",      "phi3",  "gemma2",  "gemma3",
    "olmo3", "gpt_oss", "modernbert", "bert",    "bert_model", "qwen2", "roberta", "roberta_model"};

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What the model of `file` makes of `tokens`; `change` has its configuration first.
template <class Change>
Tensor result_of(const Pretrained& file, const Tensor& on_cpu, Device device, Change&& change) {
  const NoGradGuard no_grad;
  nn::TransformerConfig config = file.config();
  change(config);
  const Tensor tokens = on_cpu.to(device);
  if (file.is_encoder()) {
    nn::Encoder model(config);
    file.load(model);
    model.to(device).eval();
    return model(tokens).to(kCPU);
  }
  nn::Decoder model(config);
  model.to(device).eval();
  file.load(model);
  return model(tokens).to(kCPU);
}

double largest_error(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  return (a - b).abs().max().item<double>() / b.abs().max().item<double>();
}

struct Expected {
  Tensor tokens, logits;

  explicit Expected(const std::string& name) {
    const StateDict file = load_safetensors(kFolder + name + ".safetensors", kCPU).tensors;
    tokens = *find(file, "tokens");
    logits = *find(file, "logits");
  }
};

void expect_same(const StateDict& got, StateDict want) {
  REQUIRE(got.size() == want.size());
  for (const auto& item : want) {
    const std::string& name = item.first;
    const Tensor& tensor = item.second;
    CAPTURE(name);
    const Tensor* const own = find(got, name);
    REQUIRE(own);
    REQUIRE(own->shape() == tensor.shape());
    CHECK(own->to_vector<double>() == tensor.to_vector<double>());
  }
}

}  // namespace

TEST_CASE_TEMPLATE("pretrained: a folder's model computes what transformers computes", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  for (const std::string& name : kFolders) {
    CAPTURE(name);
    const Expected expected(name);
    const Pretrained file = Pretrained::open(kFolder + name);
    CHECK(largest_error(result_of(file, expected.tokens, On::device, [](auto&) {}),
                        expected.logits) < 2e-5);
    const Tensor unpacked =
        result_of(file, expected.tokens, On::device,
                  [](nn::TransformerConfig& config) { config.packed = !config.packed; });
    CHECK(largest_error(unpacked, expected.logits) < 2e-5);
  }
}

TEST_CASE("pretrained: a GGUF file's model computes what transformers computes") {
  for (const std::string name : {"gguf_llama", "gguf_gemma3", "gguf_qwen2"}) {
    CAPTURE(name);
    const Expected expected(name);
    const Pretrained file = Pretrained::open(kFolder + name + ".gguf");
    CHECK(file.gguf());
    CHECK(largest_error(result_of(file, expected.tokens, kCPU, [](auto&) {}), expected.logits) <
          2e-5);
    nn::Decoder model(file.config());
    file.load(model);
    const StateDict back = file.state_dict(model);
    if (name != "gguf_gemma3") expect_same(back, file.gguf()->tensors({.device = kCPU}));
  }
}

TEST_CASE("pretrained: models are made without random weights") {
  const Expected expected("llama"), states("bert_model");
  const RandomState random = random_state();
  const auto llama = Pretrained::open(kFolder + "llama"),
             bert = Pretrained::open(kFolder + "bert_model");
  CHECK(largest_error(llama.decoder()(expected.tokens), expected.logits) < 2e-5);
  CHECK(largest_error(bert.encoder()(states.tokens), states.logits) < 2e-5);
  CHECK(random_state() == random);
  expect_errors({
      {"ValueError: Pretrained: expected an encoder, got a decoder, 'llama'",
       [&] { llama.encoder(); }},
      {"ValueError: Pretrained: expected a decoder, got an encoder, 'bert'",
       [&] { bert.decoder(); }},
  });
  const nn::Linear drawn(2, 2);
  CHECK(random_state() != random);
}

TEST_CASE("pretrained: what is saved is what was loaded, under the same names") {
  for (const std::string& name : kFolders) {
    CAPTURE(name);
    const Pretrained file = Pretrained::open(kFolder + name);
    StateDict want = nn::load_shards(kFolder + name);
    // The router of one expert has no influence, and BERT's pooler no counterpart.
    std::erase_if(want, [](const auto& item) {
      return item.first.starts_with("pooler.") || item.first.find(".router.") != std::string::npos;
    });
    if (name.ends_with("_model")) {  // saved with the names of a model that has a head
      for (auto& item : want) item.first = file.family() + "." + item.first;
    }
    for (const bool packed : {true, false}) {
      nn::TransformerConfig config = file.config();
      config.packed = packed;
      const TemporaryFolder folder;
      StateDict got;
      const auto round_trip = [&](nn::TransformerStack& model) {
        file.load(model);
        file.save(model, folder.file("x"), packed ? 1'000'000 : 5000);
        got = nn::load_shards(folder.file("x"));
      };
      if (file.is_encoder()) {
        nn::Encoder model(config);
        round_trip(model);
      } else {
        nn::Decoder model(config);
        round_trip(model);
      }
      CHECK(std::filesystem::exists(folder.file("x/model.safetensors")) == packed);
      CHECK(read_text(folder.file("x/config.json")) == read_text(kFolder + name + "/config.json"));
      std::erase_if(
          got, [](const auto& item) { return item.first.find(".router.") != std::string::npos; });
      expect_same(got, want);
    }
  }
}

TEST_CASE("pretrained: tensors of shards are read one by one") {
  const TemporaryFolder folder;
  std::string text = read_text(kFolder + "llama/config.json");
  const auto set = [&text](const std::string& key, const std::string& from, const std::string& to) {
    const std::string old = "\"" + key + "\": " + from;
    REQUIRE(text.find(old) != std::string::npos);
    text.replace(text.find(old), old.size(), "\"" + key + "\": " + to);
  };
  set("hidden_size", "16", "128");
  set("intermediate_size", "20", "256");
  set("num_hidden_layers", "2", "16");
  std::ofstream(folder.file("config.json")) << text;
  const Pretrained file = Pretrained::open(folder.file("config.json"));
  int64_t bytes = 0, largest = 0;
  {
    const nn::Decoder model(file.config());
    file.save(model, folder.file(""), 1 << 20);
    for (const auto& [name, tensor] : model.state_dict()) {
      const int64_t size = tensor.numel() * size_of(tensor.dtype());
      bytes += size;
      largest = std::max(largest, size);
    }
  }
  REQUIRE(std::filesystem::exists(folder.file("model.safetensors.index.json")));
  REQUIRE(bytes > 20 * largest);
  const Pretrained saved = Pretrained::open(folder.file(""));
  reset_peak_memory(kCPU);
  const int64_t before = memory_stats(kCPU).current;
  const nn::Decoder loaded = saved.decoder();
  CHECK(memory_stats(kCPU).peak - before < bytes + 3 * largest);
}

TEST_CASE("pretrained: names that files may have beside") {
  const auto error_with = [](const std::string& folder, const std::string& name) {
    const TemporaryFolder copy;
    std::filesystem::copy(kFolder + folder, copy.file("x"));
    StateDict tensors = nn::load_shards(copy.file("x"));
    tensors.emplace_back(name, ones({1}));
    nn::save_shards(copy.file("x"), tensors, 1 << 30);
    const Pretrained file = Pretrained::open(copy.file("x"));
    return thrown_by([&] {
      if (file.is_encoder()) file.encoder();
      if (!file.is_encoder()) file.decoder();
    });
  };
  const std::string longest(300'000, 'a');  // std::regex would recurse as deep
  const std::pair<std::string, std::string> beside[] = {
      {"llama", "model.layers.0.self_attn.rotary_emb.inv_freq"},
      {"llama", longest + ".rotary_emb.inv_freq"},
      {"gpt2", "h.0.attn.bias"},
      {"gpt2", "h.1.attn.masked_bias"},
      {"gpt_neo", "transformer.h.0.attn.attention.bias"},
      {"gpt_neo", "transformer.h.0.attn.attention.masked_bias"},
      {"modernbert", "head.other"},
      {"bert", "bert.pooler.dense.weight"},
      {"roberta", "roberta.embeddings.position_ids"},
      {"bert", "cls.seq_relationship.weight"},
      {"bert", "bert.embeddings.position_ids"}};
  for (const auto& [folder, name] : beside) CHECK(error_with(folder, name) == "nothing was thrown");
  for (const std::string name :
       {"rotary_emb.inv_freq", "model.rotary_emb.inv_freqs", "lm_headxweight"}) {
    CHECK(error_with("llama", name).starts_with("ValueError: Pretrained: unexpected " + name));
  }
}

TEST_CASE("pretrained: all keys that do not fit are listed at once") {
  const TemporaryFolder folder;
  std::filesystem::copy(kFolder + "llama", folder.file("x"));
  StateDict tensors = nn::load_shards(folder.file("x"));
  std::erase_if(tensors, [](const auto& item) {
    return item.first == "model.norm.weight" ||
           item.first == "model.layers.1.self_attn.k_proj.weight";
  });
  tensors.emplace_back("model.layers.2.input_layernorm.weight", ones({16}));
  tensors.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", ones({2}));
  for (auto& [name, tensor] : tensors) {
    if (name == "model.layers.0.mlp.up_proj.weight") tensor = ones({16, 20});
  }
  nn::save_shards(folder.file("x"), tensors, 1 << 20);
  const Pretrained file = Pretrained::open(folder.file("x"));
  nn::Decoder model(file.config());
  const StateDict before = [&] {
    StateDict copy;
    for (const auto& [name, tensor] : model.state_dict()) copy.emplace_back(name, tensor.clone());
    return copy;
  }();
  expect_error<ValueError>(
      "Pretrained: missing model.norm.weight, model.layers.1.self_attn.k_proj.weight; unexpected "
      "model.layers.2.input_layernorm.weight; mismatched model.layers.0.mlp.up_proj.weight "
      "(expected shape [20, 16], got [16, 20]); in '" +
          folder.file("x") + "'",
      [&] { file.load(model); });
  expect_same(model.state_dict(), before);
}

TEST_CASE("pretrained: shards that lack what the index says, and configurations unknown to sash") {
  const TemporaryFolder folder;
  std::filesystem::copy(kFolder + "mistral", folder.file("x"));
  const auto config = [&](const std::string& text) {
    std::ofstream(folder.file("x/config.json"), std::ios::binary) << text;
    return thrown_by([&] { Pretrained::open(folder.file("x")); });
  };
  const std::string place = "; in '" + folder.file("x") + "'";
  std::filesystem::remove(folder.file("x/model-00002-of-00003.safetensors"));
  CHECK(thrown_by([&] { nn::load_shards(folder.file("x")); }).starts_with("IoError: "));
  const std::string index = folder.file("x/model.safetensors.index.json");
  std::ofstream(index) << R"({"weight_map":{"w":"../y.safetensors"}})";
  expect_error<FormatError>(
      "Pretrained: expected names of files in the index, got '../y.safetensors'",
      [&] { nn::load_shards(folder.file("x")); });
  std::ofstream(index) << R"({"weight_map":{"w":"model-00001-of-00003.safetensors"}})";
  expect_error<FormatError>(
      "Pretrained: expected 'w' in 'model-00001-of-00003.safetensors', as the "
      "index says, got none; in '" +
          index + "'",
      [&] { nn::load_shards(folder.file("x")); });
  CHECK(config(R"({"model_type":"mamba"})") ==
        "NotImplemented: Pretrained: sash has no model_type 'mamba', but bert, gemma2, "
        "gemma3_text, gpt2, gpt_neo, gpt_oss, llama, mistral, modernbert, olmo3, phi3, qwen2, "
        "qwen3, roberta" +
            place);
  CHECK(config("{").starts_with(
      "FormatError: Pretrained: expected a valid config.json of the family"));
  CHECK(config("{}").starts_with(
      "FormatError: Pretrained: expected a valid config.json of the family"));
  std::string text = read_text(kFolder + "llama/config.json");
  text.replace(text.find("llama3"), 6, "spiral");
  CHECK(config(text) == "NotImplemented: Pretrained: sash has no rope_type 'spiral'" + place);
  CHECK(thrown_by([] { Pretrained::open("/no/folder"); }).starts_with("IoError: "));
}

TEST_CASE("pretrained: configurations of older versions of transformers") {
  const auto read = [](const std::string& text) {
    return nn::read_config_json("test", text).model;
  };
  const std::string sizes =
      R"("vocab_size":9,"hidden_size":8,"num_hidden_layers":12,"num_attention_heads":2,)"
      R"("intermediate_size":8,"max_position_embeddings":64,)";
  const nn::TransformerConfig llama =
      read(R"({"model_type":"llama",)" + sizes +
           R"("rope_theta":500000.0,"rope_scaling":{"rope_type":"linear","factor":2.0}})");
  REQUIRE(llama.attention.size() == 1);
  CHECK(llama.attention[0].rotary->theta == 500000);
  CHECK(llama.attention[0].rotary->scaling.kind == nn::RotaryScalingKind::linear);
  CHECK(llama.attention[0].rotary->scaling.factor == 2);
  const nn::TransformerConfig gemma = read(
      R"({"model_type":"gemma3_text",)" + sizes +
      R"("rope_theta":1000000.0,"rope_local_base_freq":10000.0,"sliding_window":4,)"
      R"("hidden_activation":"gelu_pytorch_tanh","rope_scaling":{"type":"linear","factor":8.0}})");
  REQUIRE(gemma.attention.size() == 6);
  CHECK(gemma.attention[4].rotary->theta == 10000);
  CHECK(gemma.attention[4].rotary->scaling.kind == nn::RotaryScalingKind::none);
  CHECK(gemma.attention[4].mask.to_string() == AttentionMask::causal_window(4).to_string());
  CHECK(gemma.attention[5].rotary->theta == 1e6);
  CHECK(gemma.attention[5].rotary->scaling.factor == 8);
  CHECK(gemma.attention[5].mask.to_string() == "causal");
  const nn::TransformerConfig modernbert = read(
      R"({"model_type":"modernbert",)" + sizes +
      R"("hidden_activation":"gelu","global_rope_theta":160000.0,"local_rope_theta":10000.0})");
  REQUIRE(modernbert.attention.size() == 3);
  CHECK(modernbert.attention[0].rotary->theta == 160000);
  CHECK(modernbert.attention[0].mask.shows_all());
  CHECK(modernbert.attention[1].rotary->theta == 10000);
  CHECK(modernbert.attention[1].mask.to_string() ==
        AttentionMask::symmetric_window(64).to_string());
  const nn::TransformerConfig qwen =
      read(R"({"model_type":"qwen3",)" + sizes +
           R"("rope_theta":1000000.0,"use_sliding_window":false,"sliding_window":4})");
  CHECK(qwen.attention.size() == 1);
  CHECK(qwen.head_dim == 128);
}

TEST_CASE("pretrained: a save that fails leaves the old configuration, and no mix that loads") {
  const TemporaryFolder folder;
  const std::string x = folder.file("x"), index = x + "/model.safetensors.index.json";
  const auto save = [](const std::string& name, const std::string& to, int64_t most) {
    const Pretrained file = Pretrained::open(kFolder + name);
    file.save(file.decoder(), to, most);
  };
  const auto config = [&] { return read_text(x + "/config.json"); };
  save("llama", x, 5000);
  const std::string llama = read_text(kFolder + "llama/config.json");
  const StateDict tensors = nn::load_shards(x);
  const std::string bytes = "ValueError: Pretrained: expected max_shard_bytes above 0, got ";
  expect_errors({
      {bytes + "-1", [&] { save("mistral", x, -1); }},
      {bytes + "0", [&] { save("mistral", folder.file("y"), 0); }},
      {"IoError: Pretrained: cannot make folder '" + x + "/config.json': Not a directory",
       [&] { save("mistral", x + "/config.json", 5000); }},
  });
  CHECK_FALSE(std::filesystem::exists(folder.file("y")));
  CHECK(config() == llama);
  expect_same(nn::load_shards(x), tensors);

  std::string second;
  for (const auto& entry : std::filesystem::directory_iterator(x)) {
    const std::string path = entry.path().string();
    if (path.find("model-00002") != path.npos) second = path;
  }
  REQUIRE_FALSE(second.empty());
  std::filesystem::remove(second);
  std::filesystem::create_directory(second);
  CHECK(thrown_by([&] { save("llama", x, 5000); }).starts_with("IoError: "));
  CHECK_FALSE(std::filesystem::exists(index));
  CHECK(thrown_by([&] { nn::load_shards(x); }).starts_with("IoError: "));
  CHECK(thrown_by([&] { save("mistral", x, 5000); }).starts_with("IoError: "));
  CHECK(config() == llama);
}

TEST_CASE("pretrained: numbers of a config.json that are out of range are refused") {
  const auto with = [](const std::string& name, const std::string& key, const std::string& value) {
    std::string text = read_text(kFolder + name + "/config.json");
    const size_t at = text.find("\"" + key + "\":");
    if (at == text.npos) {
      text.replace(text.find('{'), 1, "{\"" + key + "\": " + value + ",");
    } else {
      const size_t begin = text.find(':', at) + 1, end = text.find_first_of(",\n", begin);
      text.replace(begin, end - begin, " " + value);
    }
    return thrown_by([&] { nn::read_config_json("test", text); });
  };
  const auto error = [](const std::string& what, const std::string& range, const std::string& got) {
    return "FormatError: test: expected an integer " + what + " from " + range + ", got " + got;
  };
  const std::string size = "1 to 2147483647", layers = "1 to 65536", from_0 = "0 to 2147483647";
  for (const std::string name : {"llama", "mistral", "qwen3", "phi3", "gemma2", "gemma3", "olmo3",
                                 "gpt_oss", "modernbert", "bert"}) {
    CAPTURE(name);
    const std::string heads = "num_attention_heads", depth = "num_hidden_layers";
    CHECK(with(name, heads, "4") == "nothing was thrown");
    CHECK(with(name, heads, "0") == error(heads, size, "0"));
    for (const std::string wrong : {"0", "65537", "9200000000000000000", "2.9"}) {
      CHECK(with(name, depth, wrong) == error(depth, layers, wrong));
    }
    CHECK(with(name, depth, "1e300") == error(depth, layers, "1e+300"));
    CHECK(with(name, "vocab_size", "96.7") == error("vocab_size", size, "96.7"));
    CHECK(with(name, "eos_token_id", "1e300") == error("eos_token_id", from_0, "1e+300"));
    CHECK(with(name, "eos_token_id", "-4") == error("eos_token_id", from_0, "-4"));
    CHECK(with(name, "eos_token_id", "[2.5]") == error("eos_token_id", from_0, "2.5"));
  }
  CHECK(with("gpt2", "n_layer", "2147483648") == error("n_layer", layers, "2147483648"));
  CHECK(with("gpt_neo", "num_layers", "3") ==
        "FormatError: test: expected attention_types for 3 layers, got 2");
  CHECK(with("gemma3", "sliding_window_pattern", "0") ==
        error("sliding_window_pattern", size, "0"));
  CHECK(with("modernbert", "global_attn_every_n_layers", "0") ==
        error("global_attn_every_n_layers", size, "0"));
  CHECK(with("llama", "partial_rotary_factor", "1e300") ==
        "FormatError: test: expected partial_rotary_factor above 0, at most 1, got 1e+300");
  const auto neo = [](const std::string& types) {
    return [types] {
      nn::read_config_json(
          "test", R"({"model_type":"gpt_neo","vocab_size":9,"hidden_size":8,"num_layers":2,)"
                  R"("num_heads":2,"max_position_embeddings":64,"activation_function":"gelu",)"
                  R"("attention_types":)" +
                      types + "}");
    };
  };
  expect_errors({
      {"nothing was thrown", neo(R"([[["global","local"],1]])")},
      {"FormatError: test: expected attention_types for 2 layers, got more",
       neo(R"([[["global","local"],65536]])")},
      {error("attention_types", "0 to 65536", "4611686018427387904"),
       neo(R"([[["global","local"],4611686018427387904]])")},
      {"FormatError: test: expected JSON nested at most 64 deep, got a deeper one",
       neo(std::string(1'000'000, '[') + std::string(1'000'000, ']'))},
  });
}

TEST_CASE("pretrained: numbers of a GGUF file that are out of range are refused") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x.gguf");
  const auto with = [&](const std::string& key, uint32_t value) {
    std::string bytes = read_text(kFolder + "gguf_gemma3.gguf");
    const size_t at = bytes.find("gemma3." + key);
    REQUIRE(at != bytes.npos);
    // Behind the key, a 32-bit type.
    bytes.replace(at + 7 + key.size() + 4, 4, reinterpret_cast<const char*>(&value), 4);
    std::filesystem::remove(path);
    std::ofstream(path, std::ios::binary) << bytes;
    return thrown_by([&] { Pretrained::open(path); });
  };
  const std::string place = "; in '" + path + "'";
  CHECK(with("block_count", 62) == "nothing was thrown");
  CHECK(with("block_count", 65'537) ==
        "FormatError: Pretrained: expected an integer gemma3.block_count from 1 to 65536, got "
        "65537" +
            place);
  CHECK(with("attention.head_count", 0) ==
        "FormatError: Pretrained: expected an integer gemma3.attention.head_count from 1 to "
        "2147483647, got 0" +
            place);
}
