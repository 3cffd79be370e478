#pragma once

#include <concepts>
#include <optional>
#include <span>

#include "../../tensor/tensor.h"

/// Indices of several axes at once, as in Python:
///
///     x[{0, Slice(), -1}]                 x[0, :, -1]
///     x[{kEllipsis, Slice(2, {}, 2)}]     x[..., 2::2]
///     x[{Slice(), kNewAxis}]              x[:, None]
///     x[{rows, columns}]                  x[rows, columns]      int64 tensors, which broadcast
///     x[x > 0]                            x[x > 0]
///
/// Without tensors the result is a view: `x[{0, Slice(1)}] = y` and `x[{0}] += 1` write to x. With
/// tensors it is a copy, and `x.index_put_({rows, columns}, y)` writes. Axes that are not named at
/// the end are whole.
///
/// An int64 tensor names indices, negative ones from the end; several broadcast to one shape, which
/// stands where the first axis that they index stood, or in front if those axes are no neighbours
/// (as in PyTorch, which takes tensors without axes for ints, though). A bool tensor stands for as
/// many axes as it has, and chooses the elements where it is true in row-major order; finding them
/// waits for the device.
///
/// `IndexError` for an index out of range, too many indices or several `kEllipsis`; `ShapeError` if
/// a mask does not have the extents of its axes, tensors do not broadcast, or there would be more
/// than 8 axes, in the result or before tensors index them; `DTypeError` for tensors of another
/// dtype.
namespace sash {

/// Elements `start, start + step, ...` below `stop` of an axis; negative bounds count from the end.
/// `Slice()` is the whole axis, `Slice(2)` all from 2 on.
struct Slice {
  Slice(std::optional<int64_t> from = {}, std::optional<int64_t> to = {}, int64_t by = 1)
      : start(from), stop(to), step(by) {}

  std::optional<int64_t> start, stop;
  int64_t step;
};

/// As many whole axes as there are left.
struct EllipsisIndex {};
inline constexpr EllipsisIndex kEllipsis{};
/// A new axis of extent 1.
struct NewAxisIndex {};
inline constexpr NewAxisIndex kNewAxis{};

/// What may stand in `x[{...}]`.
class TensorIndex {
 public:
  enum class Kind { number, slice, ellipsis, new_axis, tensor };

  template <std::integral T>
  requires(!std::same_as<T, bool>) TensorIndex(T index)
      : kind(Kind::number), number(static_cast<int64_t>(index)) {}
  TensorIndex(Slice part) : kind(Kind::slice), slice(part) {}
  TensorIndex(EllipsisIndex) : kind(Kind::ellipsis) {}
  TensorIndex(NewAxisIndex) : kind(Kind::new_axis) {}
  TensorIndex(Tensor x) : kind(Kind::tensor), tensor(std::move(x)) {}

  Kind kind;
  int64_t number = 0;  ///< of `Kind::number`, like the next two of theirs
  Slice slice{};
  Tensor tensor{};
};

/// `x[{...}]` for indices that are computed.
SASH_API Tensor index(const Tensor& x, std::span<const TensorIndex> indices);
/// `x.index_put_` for indices that are computed: replaces x[indices] by `values`, which broadcast.
/// Of several values for one element the last stays, and alone receives a gradient; if
/// `accumulate`, all are added, in order. With tensors among the indices, x and values have one
/// dtype. `ShapeError` unless the values fit, and `ValueError` and `AutogradError` as for
/// `Tensor::copy_`.
SASH_API void index_put_(const Tensor& x, std::span<const TensorIndex> indices,
                         const Tensor& values, bool accumulate = false);
SASH_API void index_put_(const Tensor& x, std::span<const TensorIndex> indices, Scalar value);

/// The elements of x where the bool mask is true, in row-major order, as a tensor with one axis.
/// Both broadcast to one shape. Any dtype. Waits for the device.
SASH_API Tensor masked_select(const Tensor& x, const Tensor& mask);

/// [n, rank]: the place of each element of x that is not 0, in row-major order. Any dtype. Waits
/// for the device.
SASH_API Tensor nonzero(const Tensor& x);

/// Slice i along `axis` counts[i] times in a row; counts are int64, one for each slice. Waits for
/// the device. `ValueError` for negative counts.
SASH_API Tensor repeat_interleave(const Tensor& x, const Tensor& counts, int64_t axis);

}  // namespace sash
