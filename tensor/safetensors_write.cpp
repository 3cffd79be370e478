#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "../core/backend.h"
#include "grad_mode.h"
#include "safetensors.h"

namespace sash {
namespace {

constexpr std::string_view kOp = "save_safetensors";
constexpr size_t kMaxHeaderBytes = 100'000'000;

std::string in_quotes(std::string_view text) { return "'" + std::string(text) + "'"; }

/// A file beside `path` that takes its place on `commit`, and vanishes otherwise.
class ReplacementFile {
 public:
  explicit ReplacementFile(const std::string& path) : path_(path) {
    static std::atomic<unsigned> counter{0};
    temporary_ = path + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(counter++);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail("create", path_);
  }
  ~ReplacementFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!committed_) ::unlink(temporary_.c_str());
  }
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  void write(const void* from, size_t bytes) {
    const char* next = static_cast<const char*>(from);
    while (bytes > 0) {
      const ssize_t put = ::write(descriptor_, next, bytes);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) fail("write", path_);
      next += put;
      bytes -= static_cast<size_t>(put);
    }
  }

  void commit() {
    if (::fsync(descriptor_) != 0) fail("synchronise", path_);
    if (::close(std::exchange(descriptor_, -1)) != 0) fail("close", path_);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("replace", path_);
    committed_ = true;
    synchronize_folder();
  }

 private:
  [[noreturn]] static void fail(const char* what, const std::string& path) {
    const int error = errno;
    throw IoError(kOp, std::string("cannot ") + what + " " + in_quotes(path) + ": " +
                           std::system_category().message(error));
  }

  /// The new name is on disk only when its folder is; some file systems cannot say, which is fine.
  void synchronize_folder() const {
    const size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return;
    ::fsync(descriptor);
    ::close(descriptor);
  }

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  bool committed_ = false;
};

using Item = const std::pair<std::string, Tensor>*;

/// The items in the order of their data.
std::vector<Item> checked_items(const StateDict& tensors) {
  std::set<std::string_view> names;
  std::vector<Item> items;
  for (const auto& item : tensors) {
    if (item.first == "__metadata__")
      throw ValueError(kOp, "a name that is not reserved", "'__metadata__'");
    if (!item.second.defined())
      throw ValueError(kOp, "defined tensors", in_quotes(item.first) + " undefined");
    if (!names.insert(item.first).second)
      throw ValueError(kOp, "distinct names", in_quotes(item.first) + " twice");
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
    throw ValueError(kOp, "UTF-8 names and metadata", "bytes that are not");
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
  if (text.size() > kMaxHeaderBytes) {
    throw ValueError(kOp, "a header of at most 100000000 bytes", std::to_string(text.size()));
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
  ReplacementFile file(path);
  file.write(&length, sizeof length);
  file.write(header.data(), header.size());
  for (const Item item : items) write_elements(file, item->second);
  file.commit();
}

}  // namespace sash
