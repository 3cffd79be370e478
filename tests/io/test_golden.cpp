// Files that each release wrote, in tests/io/golden/VERSION: this version loads them with the
// values that they had then. SASH_WRITE_GOLDEN=FOLDER writes those of this version.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <sash/nn/text/tokenizer.h>
#include <sash/nn/text/train_tokenizer.h>
#include <sash/optim/checkpoint.h>
#include <sash/optim/grad_scaler.h>
#include <sash/optim/logging/metrics_log.h>
#include <sash/optim/muon.h>
#include <sash/tensor/io/safetensors.h>

#include "../support/child_process.h"
#include "../support/small_training.h"
#include "../support/step_report.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;
namespace fs = std::filesystem;

namespace {

const std::string kText = "the sash of the window slides, the other one stays";

// A training whose checkpoint is written or loaded.
struct Training {
  nn::Sequential model{nn::Linear(4, 8), nn::ReLU(), nn::Linear(8, 2)};
  optim::GradScaler scaler{};
  nn::data::Loader loader{samples(), {.batch = 4, .shuffle = true, .seed = 9}};

  void train(optim::Optimizer& optimizer) {
    for (int step = 0; step < 2; ++step) {
      const nn::data::Batch batch = loader.next_or_restart();
      optimizer.zero_grad();
      scaler.scale(cross_entropy(model(batch[0]), batch[1])).backward();
      scaler.step(optimizer);
      scaler.update();
    }
  }
};

// Exact: each number in hexadecimal.
std::string values_of(const std::string& name, const StateDict& state) {
  std::string text;
  for (const auto& [key, x] : state) {
    text += name + " " + key;
    for (const double value : x.to_vector<double>()) {
      char number[40];
      std::snprintf(number, sizeof number, " %a", value);
      text += number;
    }
    text += "\n";
  }
  return text;
}

// The loader's place is known by its next batch.
std::string values_of(const std::string& name, Training& all, const optim::Optimizer& optimizer) {
  return values_of(name, all.model.state_dict()) + values_of(name, optimizer.state_dict()) +
         values_of(name, {{"next batch", all.loader.next_or_restart()[0]}});
}

// Calls `work` with each training, the name of its file and its optimizer.
template <class Work>
void each_training(const Work& work) {
  manual_seed(3);
  Training first;
  optim::AdamW adamw(first.model.parameters(), {.lr = 1e-2});
  work("adamw.safetensors", first, adamw);
  Training second;
  optim::Muon muon(optim::param_groups(second.model, {{.pattern = ".*bias", .ns_steps = 0}}),
                   {.lr = 1e-2});
  work("muon.safetensors", second, muon);
}

std::string tokens_in(const text::Tokenizer& tokenizer) {
  std::string line = "tokenizer.json";
  for (const int64_t token : tokenizer.encode(kText)) line += " " + std::to_string(token);
  return line + "\n";
}

void write(const fs::path& folder) {
  fs::create_directories(folder);
  std::string values;
  each_training([&](const std::string& name, Training& all, optim::Optimizer& optimizer) {
    all.train(optimizer);
    optim::save_checkpoint(folder / name, all.model, optimizer, {2, {{"note", "größer"}}},
                           &all.scaler, &all.loader);
    save_safetensors(folder / "model.safetensors", all.model.state_dict(), {{"made by", "sash"}});
    values += values_of(name, all, optimizer);
    if (name[0] == 'm') values += values_of("model.safetensors", all.model.state_dict());
  });
  const std::string json = text::train_bpe(std::vector<std::string>{kText}, {.vocab = 270});
  std::ofstream(folder / "tokenizer.json") << json;
  values += tokens_in(text::Tokenizer::from_json(json));
  for (const char* name : {"metrics.jsonl", "metrics.csv"}) {
    optim::MetricsLog(folder / name).on_step(report_of(1));
  }
  std::ofstream(folder / "values.txt") << values;
}

void check(const fs::path& folder) {
  std::string values;
  each_training([&](const std::string& name, Training& all, optim::Optimizer& optimizer) {
    const optim::CheckpointInfo info =
        optim::load_checkpoint(folder / name, all.model, optimizer, &all.scaler, &all.loader);
    CHECK(info.step == 2);
    CHECK(info.extra.at("note") == "größer");
    CHECK(all.scaler.get_scale() == optim::GradScaler().get_scale());
    values += values_of(name, all, optimizer);
    if (name[0] != 'm') return;
    const SafetensorsFile file = load_safetensors(folder / "model.safetensors");
    CHECK(file.metadata.at("made by") == "sash");
    Training other;
    other.model.load_state_dict(file.tensors);
    values += values_of("model.safetensors", other.model.state_dict());
  });
  values += tokens_in(text::Tokenizer::load(folder / "tokenizer.json"));
  const bool equal = values == file_text(folder / "values.txt");
  CHECK(equal);
  for (const char* name : {"metrics.jsonl", "metrics.csv"}) {
    CAPTURE(name);
    const TemporaryFolder copy;
    fs::copy_file(folder / name, copy.file(name));
    optim::MetricsLog(copy.file(name)).on_step(report_of(2));
    const std::string before = file_text(folder / name), after = file_text(copy.file(name));
    CHECK(after.starts_with(before));
    CHECK(after.size() > before.size());
  }
}

}  // namespace

TEST_CASE("golden files: each release's are loaded with their values") {
  const Device before = default_device();
  set_default_device(kCPU);
  if (const char* const folder = std::getenv("SASH_WRITE_GOLDEN")) write(folder);
  int releases = 0;
  for (const auto& release : fs::directory_iterator(SASH_SOURCE_DIR "/tests/io/golden")) {
    CAPTURE(release.path().string());
    check(release);
    ++releases;
  }
  CHECK(releases > 0);
  set_default_device(before);
}
