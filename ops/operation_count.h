#pragma once

#include "../core/backend/kernel.h"

namespace sash {

/// Additions and multiplications of the products in a kernel call, two for each element of the
/// result and of the inner axis; 0 for kernels without a product. Attention makes two products
/// forward and five backward, in the blocks that its mask lists; so does linear attention, with the
/// sums over keys in place of the scores. Recomputed products are not counted.
SASH_API double operation_count(const KernelCall& call);

/// Bytes that a kernel call reads and writes. Operands and results count once, tensors that are
/// replaced in place twice. Of a table, only the rows that are looked up count.
SASH_API int64_t byte_count(const KernelCall& call);

}  // namespace sash
