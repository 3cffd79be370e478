#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../../tensor/tensor.h"

namespace sash::nn {

inline constexpr const char* kPretrained = "Pretrained";  // in errors

/// A tensor in a file.
struct StoredTensor {
  std::string name;
  Shape shape;
  DType dtype;
  std::function<Tensor()> read;  ///< reads the tensor into memory of the CPU
};

/// The tensors that `load_shards` reads. Throws `NotImplemented` for an unsupported dtype.
std::vector<StoredTensor> list_shards(const std::string& folder);
/// Throws `ValueError` unless `max_shard_bytes` is above 0.
void check_shard_bytes(int64_t max_shard_bytes);

}  // namespace sash::nn
