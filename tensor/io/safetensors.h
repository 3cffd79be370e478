#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "state_dict.h"

namespace sash {

/// What a safetensors file holds. The layout: a little-endian 64-bit N; N bytes of JSON that map a
/// name to `{"dtype", "shape", "data_offsets": [begin, end]}`, offsets counted from the end of the
/// JSON; then the elements, row-major and little-endian.
struct SafetensorsFile {
  StateDict tensors;  ///< in the order of their data
  std::map<std::string, std::string> metadata;
};

/// What becomes of integers of dtypes that sash does not have.
enum class IntegerCast {
  none,   ///< `NotImplemented`
  widen,  ///< I8, I16 and U16 become int32, U32 becomes int64
};

/// Reads a file into new tensors on `device`, by default `default_device()`. Nothing in the file is
/// trusted. Throws `IoError` if it cannot be opened or read; `FormatError` unless its header is
/// valid JSON of at most 100,000,000 bytes, nested at most 8 deep, without duplicate keys and with
/// at most 64 values in an array, and its tensors fill the data exactly, without holes or overlaps;
/// `NotImplemented` for a dtype or rank that sash does not have, naming the tensor.
SASH_API SafetensorsFile load_safetensors(const std::string& path,
                                          std::optional<Device> device = std::nullopt,
                                          IntegerCast integers = IntegerCast::none);

/// What a safetensors file says of a tensor.
struct SafetensorsEntry {
  std::string name{};
  std::string dtype{};  ///< the file's word, "F32"
  Shape shape{};
  uint64_t begin = 0, end = 0;  ///< of its elements, from the end of the header

  uint64_t bytes() const { return end - begin; }
};

/// The dtype that its tensor gets. `NotImplemented`, naming it, if sash has none.
SASH_API DType sash_dtype(const SafetensorsEntry& entry, IntegerCast integers = IntegerCast::none);

/// A file without its elements.
struct SafetensorsHeader {
  std::map<std::string, std::string> metadata{};
  std::vector<SafetensorsEntry> entries{};  ///< in the order of their data
  uint64_t data_start = 0;                  ///< in the file
};

/// Reads and checks the header, as above, and no elements. Dtypes that sash does not have (I8, I16,
/// U16, U32, U64, C64, F8_E4M3, F8_E5M2, F8_E8M0) are no error here.
SASH_API SafetensorsHeader load_safetensors_header(const std::string& path);
/// Reads one tensor, an entry of `header.entries`; `header` is the header of this file.
/// `NotImplemented` for a dtype that sash does not have; other tensors can still be read.
SASH_API Tensor load_safetensors_tensor(const std::string& path, const SafetensorsHeader& header,
                                        const SafetensorsEntry& entry,
                                        std::optional<Device> device = std::nullopt,
                                        IntegerCast integers = IntegerCast::none);

/// Writes `tensors`, of any device and strides, widest elements first and then by name. Atomic: the
/// file is written beside `path`, synchronised and renamed. Throws `ValueError` for an undefined
/// tensor, a duplicate or reserved name, or text that is not UTF-8; `IoError` if the file cannot be
/// written.
SASH_API void save_safetensors(const std::string& path, const StateDict& tensors,
                               const std::map<std::string, std::string>& metadata = {});

}  // namespace sash
