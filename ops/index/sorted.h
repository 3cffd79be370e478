#pragma once

#include "topk.h"

/// What `topk` and `sort` share.
namespace sash::detail {

/// The axis, after the checks of the tensor.
int checked_order_axis(const char* op, const Tensor& x, int64_t axis);

/// The first `count` elements along `axis` in descending or ascending order, recorded.
Chosen first_in_order(const char* op, const Tensor& x, int64_t count, int axis, bool descending);

}  // namespace sash::detail
