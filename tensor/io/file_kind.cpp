#include "file_kind.h"

#include <algorithm>

namespace sash {
namespace {

using namespace std::string_view_literals;

// A kind of file, and the bytes it begins with.
struct Kind {
  std::string_view magic, text;
};

constexpr Kind kKinds[] = {
    {"GGUF"sv, "a GGUF file; read it by GgufFile"sv},
    {"\x1f\x8b"sv, "compressed by gzip; decompress it first"sv},
    {"BZh"sv, "compressed by bzip2; decompress it first"sv},
    {"\xfd"
     "7zXZ"sv,
     "compressed by xz; decompress it first"sv},
    {"\x28\xb5\x2f\xfd"sv, "compressed by zstd; decompress it first"sv},
    {"\x93NUMPY"sv, "a NumPy array; save it as safetensors"sv},
    {"\x89HDF\r\n"sv, "an HDF5 file, Keras' for one; save it as safetensors"sv},
    {"version https://git-lfs"sv, "a Git LFS pointer; fetch the file itself by git lfs pull"sv}};

// The first entry's name tells whose archive it is.
std::string zip_kind(std::string_view start) {
  constexpr size_t kNameAt = 30;
  const std::string_view name = start.substr(std::min(start.size(), kNameAt));
  if (name.find("data.pkl") != name.npos || name.find(".format_version") != name.npos) {
    return "a PyTorch zip archive; save it as safetensors";
  }
  if (name.find(".npy") != name.npos) return "a NumPy .npz archive; save it as safetensors";
  return "a zip archive; if it is PyTorch's or NumPy's, save it as safetensors";
}

}  // namespace

std::string foreign_kind(std::string_view start) {
  for (const Kind& kind : kKinds) {
    if (start.starts_with(kind.magic)) return std::string(kind.text);
  }
  if (start.starts_with("PK\x03\x04"sv)) return zip_kind(start);
  const bool pickle = start.size() > 2 && start[0] == '\x80' && start[1] >= 2 && start[1] <= 5;
  if (pickle) return "a Python pickle, PyTorch's older format for one; save it as safetensors";
  const size_t first = start.find_first_not_of(" \t\r\n");
  if (first == start.npos || start.find('\0') != start.npos) return "";  // no text
  if (start[first] == '<') return "HTML or XML, an error page for one, not the file itself";
  if (start[first] == '{' || start[first] == '[') return "JSON text, not the weights themselves";
  const bool is_text = std::all_of(start.begin(), start.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 32 || c == '\t' || c == '\r' || c == '\n';
  });
  if (!is_text || start.find('\n') == start.npos) return "";
  const size_t comma = start.find(',');
  return comma < start.find('\n') ? "text, CSV by its commas; read it by nn::data::read_csv"
                                  : "text, not the weights themselves";
}

void name_file(Error& error, const std::string& path) {
  const std::string quoted = "'" + path + "'";
  if (std::string_view(error.what()).find(quoted) == std::string_view::npos) {
    error.append("in " + quoted);
  }
}

}  // namespace sash
