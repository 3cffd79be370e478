#pragma once

#include <cstddef>
#include <vector>

#include "op_case.h"

namespace sash::testing {

/// Numbers for the inputs of a case; they fit float32 exactly, and are whole where the run's or the
/// input's own dtype is.
Arrays input_values(const OpCase& op_case, DType dtype);

/// `value` as an element of `dtype` holds it.
double rounded(double value, DType dtype);

/// A tensor of given elements and layout, surrounded and interspersed with sentinels (NaN).
class GuardedInput {
 public:
  GuardedInput(const InputSpec& spec, const Array& values, DType dtype, Device device);

  const Tensor& tensor() const { return tensor_; }
  /// Whether elements and sentinels are still what they were, to the bit.
  bool intact() const;

 private:
  std::vector<std::byte> image_;
  Tensor base_;
  Tensor tensor_;
};

std::vector<GuardedInput> make_inputs(const OpCase& op_case, DType dtype, Device device);
/// With `values` instead of `input_values`.
std::vector<GuardedInput> make_inputs(const OpCase& op_case, const Arrays& values, DType dtype,
                                      Device device);
Tensors tensors(const std::vector<GuardedInput>& inputs);

/// Gradients of the inputs that require grad, zero where none arrived, for cotangents whose
/// elements `draw` gives.
Arrays gradients_of(const OpCase& op_case, const Arrays& values, DType dtype, Device device,
                    const std::function<double()>& draw);

/// The elements, read without the library's kernels.
Array to_array(const Tensor& tensor);
/// A contiguous tensor of those elements.
Tensor to_tensor(const Array& array, DType dtype, Device device);

}  // namespace sash::testing
