#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "../../tensor/io/replacement_file.h"
#include "../../tensor/io/safetensors.h"
#include "../text/json_text.h"
#include "pretrained.h"
#include "shards.h"

namespace sash::nn {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// {name: file}, as the index says.
std::map<std::string, std::string> read_index(const fs::path& path) try {
  const std::string text = text::read_text(kPretrained, path.string());
  const auto map = Json::parse(text::checked_depth(kPretrained, text))
                       .at("weight_map")
                       .get<std::map<std::string, std::string>>();
  for (const auto& [name, file] : map) {
    if (fs::path(file).filename() != file) {
      throw FormatError(kPretrained, "names of files in the index", in_quotes(file));
    }
  }
  return map;
} catch (const Json::exception& error) {
  throw FormatError(kPretrained, "an index with a weight_map",
                    excerpt(error.what(), 200) + "; in '" + path.string() + "'");
}

std::string shard_name(size_t number, size_t count) {
  const auto digits = [](size_t n) {
    const std::string text = std::to_string(n);
    return std::string(5 - std::min<size_t>(5, text.size()), '0') + text;
  };
  return "model-" + digits(number) + "-of-" + digits(count) + ".safetensors";
}

void remove_index(const fs::path& root) {
  std::error_code error;
  fs::remove(root / kIndex, error);
  if (error) {
    throw IoError(kPretrained,
                  "cannot remove '" + (root / kIndex).string() + "': " + error.message());
  }
}

void write_text(const std::string& path, const std::string& text) {
  ReplacementFile file(kPretrained, path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace

std::vector<StoredTensor> list_shards(const std::string& folder) {
  const fs::path root(folder);
  std::error_code error;
  std::map<std::string, std::set<std::string>> files{};  // and what the index says of each
  if (!fs::exists(root / kIndex, error)) {
    files[kFile];
  } else {
    for (const auto& [name, file] : read_index(root / kIndex)) files[file].insert(name);
  }
  std::vector<StoredTensor> all;
  for (auto& [file, left] : files) {
    const std::string path = (root / file).string();
    const auto header = std::make_shared<const SafetensorsHeader>(load_safetensors_header(path));
    for (const SafetensorsEntry& entry : header->entries) {
      const auto read = [path, header, &entry] {
        return load_safetensors_tensor(path, *header, entry, kCPU);
      };
      all.push_back({entry.name, entry.shape, sash_dtype(entry), read});
      left.erase(entry.name);
    }
    if (left.empty()) continue;
    throw FormatError(kPretrained,
                      in_quotes(*left.begin()) + " in " + in_quotes(file) + ", as the index says",
                      "none; in '" + (root / kIndex).string() + "'");
  }
  return all;
}

StateDict load_shards(const std::string& folder) {
  StateDict all;
  for (const StoredTensor& stored : list_shards(folder))
    all.emplace_back(stored.name, stored.read());
  return all;
}

void check_shard_bytes(int64_t max_shard_bytes) {
  if (max_shard_bytes <= 0) {
    throw ValueError(kPretrained, "max_shard_bytes above 0", std::to_string(max_shard_bytes));
  }
}

void save_shards(const std::string& folder, const StateDict& tensors, int64_t max_shard_bytes) {
  check_shard_bytes(max_shard_bytes);
  std::vector<StateDict> shards(1);
  int64_t total = 0, bytes = 0;
  for (const auto& item : tensors) {
    const int64_t size = item.second.numel() * size_of(item.second.dtype());
    if (bytes > 0 && bytes + size > max_shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(item);
    bytes += size;
    total += size;
  }
  const fs::path root(folder);
  const std::map<std::string, std::string> metadata{
      {"format", "pt"}};  // which transformers asks for
  if (shards.size() == 1) {
    save_safetensors((root / kFile).string(), tensors, metadata);
    remove_index(root);  // of an earlier checkpoint, which would be read instead
    return;
  }
  remove_index(root);  // of files that are replaced one by one
  Json index{{"metadata", {{"total_size", total}}}, {"weight_map", Json::object()}};
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = shard_name(i + 1, shards.size());
    for (const auto& [name, tensor] : shards[i]) index["weight_map"][name] = file;
    save_safetensors((root / file).string(), shards[i], metadata);
  }
  write_text((root / kIndex).string(), index.dump(2) + "\n");
}

}  // namespace sash::nn
