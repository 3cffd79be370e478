// Python reads what we write, and the other way round; each test where Python has the packages.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <sash/nn/data/npy.h>
#include <sash/nn/data/token_dataset.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/pretrained/pretrained.h>
#include <sash/nn/text/train_tokenizer.h>
#include <sash/optim/adam.h>
#include <sash/optim/checkpoint.h>
#include <sash/optim/logging/metrics_log.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>

#include "../support/child_process.h"
#include "../support/temporary_folder.h"

using namespace sash;

namespace {

const TensorOptions kHost{.device = kCPU};

constexpr DType kAll[] = {DType::float64, DType::float32, DType::float16, DType::bfloat16,
                          DType::int64,   DType::int32,   DType::uint8,   DType::boolean};

bool has_packages(const std::string& names) {
  if (std::system(("python3 -c 'import " + names + "' 2>/dev/null").c_str()) == 0) return true;
  MESSAGE("skipped: this machine's Python lacks one of ", names);
  return false;
}

/// Runs a script in `folder`; what it printed is shown if it fails.
void run(const TemporaryFolder& folder, const std::string& script) {
  std::ofstream(folder.file("script.py")) << script;
  const std::string log = folder.file("log");
  const int code =
      std::system(("cd " + folder.file("") + " && python3 script.py > log 2>&1").c_str());
  CHECK_MESSAGE(code == 0, sash::testing::file_text(log));
}

/// 0 and 1 in turn, which each dtype holds: three rows of two, a scalar, and nothing.
StateDict tensors_of_each_dtype() {
  StateDict tensors;
  for (const DType dtype : kAll) {
    const std::string name(sash::name(dtype));
    tensors.emplace_back(name + ".matrix", tensor({{0, 1}, {0, 1}, {0, 1}}, kHost).to(dtype));
    tensors.emplace_back(name + ".scalar", ones({}, kHost).to(dtype));
    tensors.emplace_back(name + ".nothing", zeros({0, 2}, kHost).to(dtype));
  }
  return tensors;
}

void check_tensors_of_each_dtype(const StateDict& tensors) {
  const StateDict expected = tensors_of_each_dtype();
  REQUIRE(tensors.size() == expected.size());
  for (const auto& one : expected) {
    const std::string& name = one.first;
    const Tensor& wanted = one.second;
    CAPTURE(name);
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const auto& other) { return other.first == name; });
    REQUIRE(found != tensors.end());
    CHECK(found->second.dtype() == wanted.dtype());
    CHECK(found->second.shape() == wanted.shape());
    CHECK(found->second.to_vector<double>() == wanted.to_vector<double>());
  }
}

}  // namespace

TEST_CASE("python: safetensors and PyTorch read our tensors of every dtype, and we theirs") {
  if (!has_packages("torch, safetensors")) return;
  const TemporaryFolder folder;
  save_safetensors(folder.file("ours.safetensors"), tensors_of_each_dtype(), {{"by", "us"}});
  run(folder, R"(
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
with safe_open("ours.safetensors", "pt") as file:
    assert file.metadata() == {"by": "us"}
ours = load_file("ours.safetensors")
names = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16,
         "bfloat16": torch.bfloat16, "int64": torch.int64, "int32": torch.int32,
         "uint8": torch.uint8, "bool": torch.bool}
assert len(ours) == 3 * len(names), sorted(ours)
for name, dtype in names.items():
    matrix = torch.tensor([[0, 1], [0, 1], [0, 1]]).to(dtype)
    assert ours[name + ".matrix"].dtype == dtype
    assert torch.equal(ours[name + ".matrix"], matrix)
    assert torch.equal(ours[name + ".scalar"], torch.tensor(1).to(dtype))
    assert ours[name + ".nothing"].shape == (0, 2)
save_file(ours, "theirs.safetensors", {"by": "them"})
)");
  const SafetensorsFile theirs = load_safetensors(folder.file("theirs.safetensors"), kCPU);
  CHECK(theirs.metadata.at("by") == "them");
  check_tensors_of_each_dtype(theirs.tensors);
}

TEST_CASE("python: PyTorch reads the parameters in a checkpoint, and we its state dictionary") {
  if (!has_packages("torch, safetensors")) return;
  const TemporaryFolder folder;
  nn::Linear model(3, 2);
  model.to(kCPU);
  optim::AdamW optimizer(model.parameters(), {});
  optim::save_checkpoint(folder.file("ours.safetensors"), model, optimizer, {.step = 5});
  save_safetensors(folder.file("x.safetensors"),
                   {{"x", tensor({{1.0f, 2.0f, 3.0f}}, kHost)},
                    {"y", model(tensor({{1.0f, 2.0f, 3.0f}}, kHost)).detach()}});
  run(folder, R"(
import torch
from safetensors.torch import load_file, save_file
ours = load_file("ours.safetensors")
prefix = [name for name in ours if name.endswith("weight") and ours[name].shape == (2, 3)][0][:-6]
model = torch.nn.Linear(3, 2)
model.load_state_dict({"weight": ours[prefix + "weight"], "bias": ours[prefix + "bias"]})
file = load_file("x.safetensors")
assert torch.allclose(model(file["x"]), file["y"], atol=1e-6)
torch.nn.init.constant_(model.weight, 2)
save_file(model.state_dict(), "theirs.safetensors")
)");
  model.load_state_dict(load_safetensors(folder.file("theirs.safetensors"), kCPU).tensors);
  CHECK(model.state_dict()[0].second.to_vector<double>() == std::vector<double>(6, 2.0));
}

TEST_CASE("python: NumPy reads our arrays and tokens, and we its own") {
  if (!has_packages("numpy")) return;
  const TemporaryFolder folder;
  nn::data::save_npy(folder.file("ours.npy"), tensor({{0.5f, -1.5f}}, kHost));
  const std::vector<int64_t> ids{0, 7, 65535};
  nn::data::save_tokens(folder.file("ours.bin"), ids, 16);
  run(folder, R"(
import numpy
ours = numpy.load("ours.npy")
assert ours.dtype == numpy.float32 and ours.tolist() == [[0.5, -1.5]]
for name in ["bool", "u1", "i2", "i4", "i8", "f2", "f4", "f8"]:
    numpy.save("theirs_" + name + ".npy", numpy.array([[0, 1, 1]]).astype(name))
tokens = numpy.fromfile("ours.bin", dtype="<u2")
assert tokens.tolist() == [0, 7, 65535]
tokens.astype("<u4").tofile("theirs.bin")
)");
  for (const char* name : {"bool", "u1", "i2", "i4", "i8", "f2", "f4", "f8"}) {
    CAPTURE(name);
    const Tensor x = nn::data::load_npy(folder.file("theirs_" + std::string(name) + ".npy"), kCPU);
    CHECK(x.shape() == Shape{1, 3});
    CHECK(x.to_vector<double>() == std::vector<double>{0, 1, 1});
  }
  std::vector<int64_t> read(3);
  nn::data::Tokens::from_file(folder.file("theirs.bin"), 32).read(0, read);
  CHECK(read == ids);
}

TEST_CASE("python: metrics are JSON and CSV to it") {
  if (!has_packages("json, csv")) return;
  const TemporaryFolder folder;
  optim::MetricsLog json(folder.file("m.jsonl")), csv(folder.file("m.csv"));
  for (int64_t step = 1; step <= 3; ++step) {
    optim::StepReport report{.step = step, .steps = 3, .loss = 0.1, .seconds = 1, .tokens = 8};
    if (step == 2) report.validation["loss"] = 0.25;
    json.on_step(report);
    csv.on_step(report);
  }
  run(folder, R"(
import csv, json
lines = [json.loads(line) for line in open("m.jsonl")]
assert [line["step"] for line in lines] == [1, 2, 3] and lines[0]["loss"] == 0.1
assert [line.get("val_loss") for line in lines] == [None, 0.25, None]
rows = list(csv.DictReader(open("m.csv")))
assert [row["step"] for row in rows] == ["1", "2", "3"]
assert [row["val_loss"] or None for row in rows] == [None, "0.25", None]
assert all(float(row["tokens_per_s"]) == 8 for row in rows)
)");
}

TEST_CASE("python: the library tokenizers reads trained tokenizers") {
  if (!has_packages("tokenizers")) return;
  const TemporaryFolder folder;
  const std::vector<std::string> corpus{"the cat's 100 mats, the dog's 200 mats\n",
                                        "caf\xc3\xa9 mat"};
  const std::string test = "the 12345 mats [UNK] <|end|>  \xf0\x9f\x98\x80 caf\xc3\xa9s\r\n cat";
  const std::string files[] = {
      text::train_bpe(corpus, {.vocab = 300, .special_tokens = {"<|end|>"}}),
      text::train_bpe(corpus, {.vocab = 300, .pattern = text::kLlama3Pattern}),
      text::train_word_level(corpus)};
  std::ofstream(folder.file("test.txt"), std::ios::binary) << test;
  for (const std::string& json : files) {
    std::ofstream(folder.file("tokenizer.json"), std::ios::binary) << json;
    const text::Tokenizer tokenizer = text::Tokenizer::from_json(json);
    std::string ids;
    for (const int64_t id : tokenizer.encode(test)) ids += std::to_string(id) + ",";
    std::ofstream(folder.file("decoded.txt"), std::ios::binary)
        << tokenizer.decode(tokenizer.encode(test));
    run(folder,
        "import tokenizers\n"
        "text = open('test.txt', newline='').read()\n"
        "t = tokenizers.Tokenizer.from_file('tokenizer.json')\n"
        "assert t.encode(text).ids == [" +
            ids +
            "], t.encode(text).ids\n"
            "decoded = t.decode(t.encode(text).ids)\n"
            "assert decoded == open('decoded.txt', newline='').read(), decoded\n");
  }
}

TEST_CASE("python: transformers reads a saved folder with its tokenizer") {
  if (!has_packages("torch, transformers")) return;
  const TemporaryFolder folder;
  const std::string source = folder.file("source"), saved = folder.file("saved");
  std::filesystem::copy(SASH_TEST_PARITY "/checkpoints/llama", source);
  const std::vector<std::string> corpus{"to be or not to be"};
  std::ofstream(source + "/tokenizer.json") << text::train_bpe(corpus, {.vocab = 262});
  std::ofstream(source + "/tokenizer_config.json")
      << R"({"tokenizer_class": "PreTrainedTokenizerFast"})";
  std::ofstream(source + "/generation_config.json") << R"({"eos_token_id": 3, "top_k": 7})";
  const nn::Pretrained file = nn::Pretrained::open(source);
  const nn::Decoder model = file.decoder({.device = kCPU});
  file.save(model, saved);
  std::string ids;
  for (const int64_t id : file.tokenizer().encode("not to me")) ids += std::to_string(id) + ",";
  run(folder,
      "import torch, transformers\n"
      "m = transformers.AutoModelForCausalLM.from_pretrained('saved')\n"
      "t = transformers.AutoTokenizer.from_pretrained('saved')\n"
      "assert t('not to me').input_ids == [" +
          ids +
          "], t('not to me')\n"
          "assert m.generation_config.eos_token_id == 3 and m.generation_config.top_k == 7\n"
          "old = transformers.AutoModelForCausalLM.from_pretrained('source')\n"
          "for a, b in zip(m.parameters(), old.parameters()): assert torch.equal(a, b)\n");
}
