#include "checkpoint.h"

#include <algorithm>
#include <charconv>

#include "../core/error.h"
#include "../core/quote.h"
#include "../tensor/io/file_kind.h"
#include "../tensor/io/safetensors.h"
#include "../tensor/random.h"

namespace sash::optim {
namespace {

using Metadata = std::map<std::string, std::string>;

constexpr std::string_view kModel = "model.";
constexpr std::string_view kOptimizer = "optimizer.";
constexpr std::string_view kScaler = "scaler.";
constexpr std::string_view kExtra = "extra.";
constexpr int kMostCards = 64;
constexpr const char *kKind = "optimizer", *kLoader = "loader", *kSeed = "random.seed",
                     *kOffset = "random.offset";

void append(StateDict& all, std::string_view prefix, const StateDict& part) {
  for (const auto& [key, tensor] : part) all.emplace_back(std::string(prefix) + key, tensor);
}

StateDict part_of(const StateDict& all, std::string_view prefix) {
  StateDict part;
  for (const auto& [key, tensor] : all) {
    if (key.starts_with(prefix)) part.emplace_back(key.substr(prefix.size()), tensor);
  }
  return part;
}

// Whether `all` has a key of `part`.
bool has_any(const StateDict& all, const StateDict& part) {
  return std::any_of(part.begin(), part.end(),
                     [&](const auto& entry) { return find(all, entry.first) != nullptr; });
}

template <class T>
T number(const Metadata& metadata, const std::string& key) {
  const auto entry = metadata.find(key);
  if (entry == metadata.end()) {
    throw FormatError("load_checkpoint", "metadata '" + key + "'", "none");
  }
  const std::string& text = entry->second;
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw FormatError("load_checkpoint", "a number as '" + key + "'", in_quotes(text));
  }
  return value;
}

// `random.seed.cuda:1` and `random.offset.cuda:1` are the state of one device. `random.seed` and
// `random.offset` are the state of all other devices. Files of earlier versions have these alone.
void add_random_states(Metadata& metadata) {
  const RandomStates states = random_states();
  const auto add = [&](const std::string& of, const RandomState& state) {
    metadata[kSeed + of] = std::to_string(state.seed);
    metadata[kOffset + of] = std::to_string(state.offset);
  };
  add("", states.others);
  for (const auto& [device, state] : states.devices) add("." + to_string(device), state);
}

RandomStates random_states_of(const Metadata& metadata) {
  const auto read = [&](const std::string& of) {
    return RandomState{number<uint64_t>(metadata, kSeed + of),
                       number<uint64_t>(metadata, kOffset + of)};
  };
  RandomStates states{.others = read("")};
  for (int i = -1; i < kMostCards; ++i) {
    const Device device = i < 0 ? kCPU : Device{DeviceType::cuda, i};
    const std::string of = "." + to_string(device);
    if (metadata.contains(kSeed + of)) states.devices.emplace_back(device, read(of));
  }
  return states;
}

CheckpointInfo info_of(const Metadata& metadata) {
  CheckpointInfo info{.step = number<int64_t>(metadata, "step")};
  for (const auto& [key, value] : metadata) {
    if (key.starts_with(kExtra)) info.extra[key.substr(kExtra.size())] = value;
  }
  return info;
}

void check_kind(const Metadata& metadata, const Optimizer& optimizer) {
  const auto saved = metadata.find(kKind);  // files of earlier versions have none
  if (saved == metadata.end() || saved->second == optimizer.kind()) return;
  throw ValueError("load_checkpoint", excerpt(saved->second) + ", as when it was saved",
                   optimizer.kind());
}

void load_place(const Metadata& metadata, nn::data::Loader* loader) {
  const auto place = metadata.find(kLoader);
  const bool saved = place != metadata.end();
  if (saved != (loader != nullptr)) {
    throw ValueError("load_checkpoint",
                     saved ? "a Loader, as when it was saved" : "no Loader, as when it was saved",
                     saved ? "none" : "one");
  }
  if (loader) loader->load_state(place->second);
}

}  // namespace

void save_checkpoint(const std::string& path, const nn::Module& model, const Optimizer& optimizer,
                     const CheckpointInfo& info, const GradScaler* scaler,
                     const nn::data::Loader* loader) {
  StateDict tensors;
  append(tensors, kModel, model.state_dict());
  append(tensors, kOptimizer, optimizer.state_dict());
  if (scaler) append(tensors, kScaler, scaler->state_dict());
  Metadata metadata{{"step", std::to_string(info.step)}, {kKind, optimizer.kind()}};
  add_random_states(metadata);
  if (loader) metadata[kLoader] = loader->state();
  for (const auto& [key, value] : info.extra) metadata[std::string(kExtra) + key] = value;
  save_safetensors(path, tensors, metadata);
}

CheckpointInfo checkpoint_info(const std::string& path) try {
  return info_of(load_safetensors_header(path).metadata);
} catch (Error& error) {
  name_file(error, path);
  throw;
}

CheckpointInfo load_checkpoint(const std::string& path, nn::Module& model, Optimizer& optimizer,
                               GradScaler* scaler, nn::data::Loader* loader) try {
  const SafetensorsFile file = load_safetensors(path, kCPU);
  CheckpointInfo info = info_of(file.metadata);
  const RandomStates random = random_states_of(file.metadata);
  check_kind(file.metadata, optimizer);
  const auto load_weights = model.prepare_load(part_of(file.tensors, kModel));
  const auto load_state = optimizer.prepare_load(part_of(file.tensors, kOptimizer));
  const StateDict scaler_state = part_of(file.tensors, kScaler);
  if (scaler) scaler->check_state_dict(scaler_state);
  if (!scaler && !scaler_state.empty()) {
    throw ValueError("load_checkpoint", "a GradScaler, as when it was saved", "none");
  }
  load_place(file.metadata, loader);
  load_weights();
  load_state();
  if (scaler) scaler->load_state_dict(scaler_state);
  set_random_states(random);
  return info;
} catch (Error& error) {
  name_file(error, path);
  throw;
}

void load_model(const std::string& path, nn::Module& model) try {
  const auto [tensors, metadata] = load_safetensors(path, kCPU);
  const StateDict weights = part_of(tensors, kModel);
  // A model may have a child named "model".
  const bool prefixed = metadata.contains(kSeed) || !has_any(tensors, model.state_dict());
  model.load_state_dict(prefixed && !weights.empty() ? weights : tensors);
} catch (Error& error) {
  name_file(error, path);
  throw;
}

}  // namespace sash::optim
