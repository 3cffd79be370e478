#pragma once

#include <optional>
#include <string>

#include "../../tensor/tensor.h"

namespace sash::nn::data {

/// Reads a file of `numpy.save` into a new tensor on `device`, by default `default_device()`.
/// Elements are bool, int8 to int64, uint8 to uint32, or floating of 16 to 64 bits, of either byte
/// order, row-major or column-major. int8, int16 and uint16 become int32, uint32 int64. `IoError`
/// if the file cannot be read, `FormatError` if it is not such a file or its size differs from its
/// header, `NotImplemented` for other elements or more than 8 axes.
SASH_API Tensor load_npy(const std::string& path, std::optional<Device> device = std::nullopt);

/// Writes a tensor as `numpy.load` reads it. Atomic. `DTypeError` for bfloat16, which NumPy does
/// not have, `IoError` if the file cannot be written.
SASH_API void save_npy(const std::string& path, const Tensor& tensor);

}  // namespace sash::nn::data

namespace sash {
namespace data = nn::data;  // the former name, deprecated
}
