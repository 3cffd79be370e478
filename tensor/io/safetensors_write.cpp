#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "../../core/backend/backend.h"
#include "../../core/quote.h"
#include "../autograd/grad_mode.h"
#include "replacement_file.h"
#include "safetensors.h"

namespace sash {
namespace {

constexpr std::string_view kSave = "save_safetensors";
constexpr size_t kMaxWrittenHeader = 100'000'000;

using Item = const std::pair<std::string, Tensor>*;

/// The items in the order of their data.
std::vector<Item> checked_items(const StateDict& tensors) {
  std::set<std::string_view> names;
  std::vector<Item> items;
  for (const auto& item : tensors) {
    if (item.first == "__metadata__")
      throw ValueError(kSave, "a name that is not reserved", "'__metadata__'");
    if (!item.second.defined())
      throw ValueError(kSave, "defined tensors", in_quotes(item.first) + " undefined");
    if (!names.insert(item.first).second)
      throw ValueError(kSave, "distinct names", in_quotes(item.first) + " twice");
    items.push_back(&item);
  }
  std::sort(items.begin(), items.end(), [](Item a, Item b) {
    const int64_t width_a = size_of(a->second.dtype());
    const int64_t width_b = size_of(b->second.dtype());
    return width_a != width_b ? width_a > width_b : a->first < b->first;
  });
  return items;
}

std::string json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw ValueError(kSave, "UTF-8 names and metadata", "bytes that are not");
  }
}

std::string_view spelling(DType dtype) {
  constexpr std::string_view names[kDTypeCount] = {"F32", "F64", "F16", "BF16",
                                                   "I32", "I64", "U8",  "BOOL"};
  return names[static_cast<int>(dtype)];
}

int64_t bytes_of(const Tensor& tensor) { return tensor.numel() * size_of(tensor.dtype()); }

std::string header_text(const std::vector<Item>& items,
                        const std::map<std::string, std::string>& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata) {
    text +=
        (text.empty() ? "\"__metadata__\":{" : ",") + json_string(key) + ":" + json_string(value);
  }
  if (!text.empty()) text += "}";
  int64_t position = 0;
  for (const Item item : items) {
    const Tensor& tensor = item->second;
    const int64_t end = position + bytes_of(tensor);
    if (!text.empty()) text += ",";
    text += json_string(item->first) + ":{\"dtype\":\"" + std::string(spelling(tensor.dtype())) +
            "\",\"shape\":" + to_string(tensor.shape()) + ",\"data_offsets\":[" +
            std::to_string(position) + "," + std::to_string(end) + "]}";
    position = end;
  }
  text = "{" + text + "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxWrittenHeader) {
    throw ValueError(kSave, "a header of at most 100000000 bytes", std::to_string(text.size()));
  }
  return text;
}

void write_elements(ReplacementFile& file, const Tensor& tensor) {
  const auto bytes = static_cast<size_t>(bytes_of(tensor));
  const Tensor rows = tensor.contiguous();
  const void* elements = rows.tensor_view().data;
  std::vector<std::byte> staging;
  if (!tensor.device().is_cpu()) {
    staging.resize(bytes);
    Backend& owner = backend(tensor.device().type);
    owner.copy(staging.data(), kCPU, elements, tensor.device(), static_cast<int64_t>(bytes),
               owner.current_stream(tensor.device()));
    elements = staging.data();
  }
  file.write(elements, bytes);
}

}  // namespace

void save_safetensors(const std::string& path, const StateDict& tensors,
                      const std::map<std::string, std::string>& metadata) {
  const NoGradGuard no_grad;
  const std::vector<Item> items = checked_items(tensors);
  const std::string header = header_text(items, metadata);
  const uint64_t length = header.size();
  ReplacementFile file(kSave, path);
  file.write(&length, sizeof length);
  file.write(header.data(), header.size());
  for (const Item item : items) write_elements(file, item->second);
  file.commit();
}

}  // namespace sash
