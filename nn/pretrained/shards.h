#pragma once

#include <cstdint>

namespace sash::nn {

/// `ValueError` unless `max_shard_bytes` is above 0.
void check_shard_bytes(int64_t max_shard_bytes);

}  // namespace sash::nn
