#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gguf_blocks.h"
#include "state_dict.h"

namespace sash {

class GgufNumbers;
struct GgufValue;

/// A GGUF file, the format of llama.cpp, versions 2 and 3: metadata, and tensors that may be
/// quantised. The file stays open; a tensor is read, and dequantised, when it is asked for.
///
/// The layout, little-endian: "GGUF", a 32-bit version, the 64-bit numbers of tensors and of
/// metadata; each metadatum's key, type and value; each tensor's name, extents (the innermost
/// first), format and offset; then, from the next multiple of `general.alignment` (32), the
/// elements.
class SASH_API GgufFile {
 public:
  /// Reads metadata and the places of tensors. Nothing in the file is trusted. `IoError` if it
  /// cannot be opened; `FormatError` naming the tensor or key if it is cut off or wrong: bytes
  /// missing, names twice, elements that overlap or leave a hole; `NotImplemented` for big-endian
  /// files, version 1 and tensors of more than 8 axes.
  explicit GgufFile(const std::string& path);

  struct Entry {
    std::string name;
    Shape shape;  ///< the outermost extent first, as in sash
    uint32_t format;
    uint64_t offset;  ///< in the file
    uint64_t bytes;
  };

  const std::string& path() const;
  /// Programs that read values include `tensor/io/gguf_value.h`.
  const std::map<std::string, GgufValue>& metadata() const;
  const std::vector<Entry>& entries() const;

  bool has(const std::string& key) const;
  /// A metadatum: `get<int64_t>("llama.block_count")`, `get<std::string>("general.architecture")`;
  /// T is one of GgufValue's types. Integers convert to double, each of int64_t and uint64_t to the
  /// other if it fits, and `GgufNumbers` to a vector of values, which takes 40 bytes an element:
  /// see `list`. `ValueError` if the file has no such key or its value is another type.
  template <class T>
  T get(const std::string& key) const;
  /// The same, or `otherwise` if the file has no such key.
  template <class T>
  T get(const std::string& key, const T& otherwise) const {
    return has(key) ? get<T>(key) : otherwise;
  }

  /// The elements of an array: `list<double>("tokenizer.ggml.scores")`; T is bool, int64_t,
  /// uint64_t, double or std::string. `ValueError` unless all are of that type, and as `get`.
  template <class T>
  std::vector<T> list(const std::string& key) const;

  /// A tensor of that name: F32, F16, BF16, F64, I32 and I64 keep their dtype; Q8_0, Q4_0, Q4_1,
  /// Q5_0, Q5_1, Q4_K, Q5_K and Q6_K become float32; or all become `options.dtype`, if that is
  /// named. `ValueError` if there is none of that name, `NotImplemented` if it has another format,
  /// `IoError` if the file was made shorter meanwhile.
  Tensor tensor(const std::string& name, const TensorOptions& options = {}) const;
  /// All of them.
  StateDict tensors(const TensorOptions& options = {}) const;

 private:
  class Parser;
  struct Contents;
  Tensor read(const Entry& entry, const TensorOptions& options) const;

  std::shared_ptr<const Contents> contents_;
};

}  // namespace sash
