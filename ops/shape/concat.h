#pragma once

#include <vector>

#include "../../tensor/tensor.h"

namespace sash {

/// Concatenates tensors along `axis`, in the dtype that `promote_types` gives for all of them.
/// Throws `DeviceError` or `ShapeError` unless they agree in device and every other extent;
/// `ValueError` for an empty list.
SASH_API Tensor cat(const std::vector<Tensor>& tensors, int64_t axis = 0);

/// Concatenates tensors of one shape along a new axis.
SASH_API Tensor stack(const std::vector<Tensor>& tensors, int64_t axis = 0);

/// Splits x along `axis` into views of the given lengths. `ShapeError` unless these are not
/// negative and add up to the extent.
SASH_API std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& lengths,
                                   int64_t axis = 0);

/// Splits x along `axis` into views of `length`; the last one may be shorter. `ValueError`
/// unless length >= 1.
SASH_API std::vector<Tensor> split(const Tensor& x, int64_t length, int64_t axis = 0);

/// Splits x along `axis` into at most `count` views of equal length; the last one may be shorter.
/// `ValueError` unless count >= 1.
SASH_API std::vector<Tensor> chunk(const Tensor& x, int64_t count, int64_t axis = 0);

/// The slices of x along `axis`, as views without it.
SASH_API std::vector<Tensor> unbind(const Tensor& x, int64_t axis = 0);

}  // namespace sash
