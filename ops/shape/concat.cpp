#include "concat.h"

#include <algorithm>

#include "../../tensor/kernels/memory.h"
#include "../elementwise/promotion.h"
#include "../op.h"

namespace sash {
namespace {

// Checks the tensors; returns the extent of the result along `axis`.
int64_t checked_extent(const char* op, const std::vector<Tensor>& tensors, int axis) {
  const Tensor& first = tensors.front();
  int64_t extent = 0;
  for (const Tensor& t : tensors) {
    Shape expected = first.shape();
    if (t.rank() == first.rank()) expected[axis] = t.shape()[axis];
    check_shape(op, t, expected);
    extent += t.shape()[axis];
  }
  return extent;
}

void check_list(const char* op, const std::vector<Tensor>& tensors) {
  if (tensors.empty()) throw ValueError(op, "at least one tensor", "none");
  for (const Tensor& t : tensors) {
    check_defined(op, t);
    check_same_device(op, tensors.front(), t);
  }
}

}  // namespace

Tensor cat(const std::vector<Tensor>& tensors, int64_t axis) {
  check_list("cat", tensors);
  const Tensor& first = tensors.front();
  const int at = normalize_axis(axis, first.rank(), "cat");
  Shape shape = first.shape();
  shape[at] = checked_extent("cat", tensors, at);
  DType dtype = first.dtype();
  for (const Tensor& t : tensors) dtype = promote_types(dtype, t.dtype());
  const Tensor y = empty(shape, {.dtype = dtype, .device = first.device()});
  SmallVector<int64_t, 8> lengths;
  SmallVector<DType, 8> dtypes;
  TensorView piece = y.tensor_view();
  for (const Tensor& t : tensors) {
    piece.shape[at] = t.shape()[at];
    run_kernel(kernels::copy, t, piece);
    if (y.numel() > 0)  // else there is no memory to advance in
      piece.data = piece.ptr<char>() + piece.shape[at] * piece.strides[at] * size_of(piece.dtype);
    lengths.push_back(piece.shape[at]);
    dtypes.push_back(t.dtype());
  }
  return record("cat", std::span<const Tensor>(tensors), y,
                [lengths, dtypes, at](Backward& pass, const Tensor& g) {
                  Gradients gradients(lengths.size());
                  int64_t start = 0;
                  for (size_t i = 0; i < lengths.size(); ++i) {
                    if (pass.needs(i)) gradients[i] = g.narrow(at, start, lengths[i]).to(dtypes[i]);
                    start += lengths[i];
                  }
                  return gradients;
                });
}

Tensor stack(const std::vector<Tensor>& tensors, int64_t axis) {
  check_list("stack", tensors);
  const Tensor& first = tensors.front();
  check_room_for_axis("stack", first);
  const int at = normalize_axis(axis, first.rank() + 1, "stack");
  std::vector<Tensor> rows;
  rows.reserve(tensors.size());
  for (const Tensor& t : tensors) {
    check_shape("stack", t, first.shape());
    rows.push_back(t.unsqueeze(at));
  }
  return cat(rows, at);
}

std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& lengths, int64_t axis) {
  check_defined("split", x);
  const int at = normalize_axis(axis, x.rank(), "split");
  int64_t total = 0;
  bool valid = true;
  std::string text;
  for (const int64_t length : lengths) {
    valid = valid && length >= 0 && length <= x.shape()[at] - total;
    total += valid ? length : 0;
    text += (text.empty() ? "" : ", ") + std::to_string(length);
  }
  if (!valid || total != x.shape()[at]) {
    throw ShapeError("split", "lengths that add up to " + std::to_string(x.shape()[at]), text);
  }
  std::vector<Tensor> pieces;
  pieces.reserve(lengths.size());
  int64_t start = 0;
  for (const int64_t length : lengths) {
    pieces.push_back(x.narrow(at, start, length));
    start += length;
  }
  return pieces;
}

std::vector<Tensor> split(const Tensor& x, int64_t length, int64_t axis) {
  check_defined("split", x);
  if (length < 1) throw ValueError("split", "a length of at least 1", std::to_string(length));
  const int64_t extent = x.shape()[normalize_axis(axis, x.rank(), "split")];
  std::vector<int64_t> lengths;
  for (int64_t start = 0; start < extent; start += length) {
    lengths.push_back(std::min(length, extent - start));
  }
  if (lengths.empty()) lengths.push_back(0);
  return split(x, lengths, axis);
}

std::vector<Tensor> chunk(const Tensor& x, int64_t count, int64_t axis) {
  check_defined("chunk", x);
  if (count < 1) throw ValueError("chunk", "at least one piece", std::to_string(count));
  const int64_t extent = x.shape()[normalize_axis(axis, x.rank(), "chunk")];
  return split(x, std::max<int64_t>(1, extent / count + (extent % count != 0)), axis);
}

std::vector<Tensor> unbind(const Tensor& x, int64_t axis) {
  check_defined("unbind", x);
  const int at = normalize_axis(axis, x.rank(), "unbind");
  std::vector<Tensor> slices;
  slices.reserve(static_cast<size_t>(x.shape()[at]));
  for (int64_t i = 0; i < x.shape()[at]; ++i) slices.push_back(x.select(at, i));
  return slices;
}

std::vector<Tensor> Tensor::split(int64_t length, int64_t axis) const {
  return sash::split(*this, length, axis);
}
std::vector<Tensor> Tensor::split(const std::vector<int64_t>& lengths, int64_t axis) const {
  return sash::split(*this, lengths, axis);
}
std::vector<Tensor> Tensor::chunk(int64_t count, int64_t axis) const {
  return sash::chunk(*this, count, axis);
}
std::vector<Tensor> Tensor::unbind(int64_t axis) const { return sash::unbind(*this, axis); }

}  // namespace sash
