#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../tensor.h"

/// Numerical checks of gradients, with PyTorch's defaults.
namespace sash {

/// What is checked: a function of some tensors that gives some tensors. It must be deterministic
/// (seed inside it if it draws random numbers) and must not write to its inputs.
using GradcheckFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

struct GradcheckOptions {
  double eps = 1e-6;   ///< half the step of the central differences
  double atol = 1e-5;  ///< |analytical - numerical| <= atol + rtol |numerical|, and finite
  double rtol = 1e-3;
  bool fast = false;                 ///< compare v'Ju for random u and v instead of every entry
  bool check_reentrant = true;       ///< a second backward pass gives the same bits
  bool check_zero_cotangent = true;  ///< a zero cotangent gives zero gradients
  uint64_t seed = 0;                 ///< of u, v and the cotangents of `gradgradcheck`
};

/// One compared number: d(output[output_index]) / d(input[input_index]), or v'Ju in fast mode (the
/// indices are then empty).
struct GradcheckEntry {
  int output = -1;  ///< position in the function's result
  int input = -1;   ///< position in its inputs
  Dims output_index;
  Dims input_index;
  double analytical = 0;
  double numerical = 0;
  double difference = 0;  ///< |analytical - numerical|
};

struct GradcheckReport {
  bool ok = false;
  std::string check;     ///< "gradcheck" or "gradgradcheck"
  std::string problem;   ///< what was wrong; empty if nothing was
  int64_t compared = 0;  ///< entries compared
  int64_t wrong = 0;     ///< of them, beyond the tolerances
  /// The entry that exceeds (or comes nearest to) its tolerance most. For `gradgradcheck`, outputs
  /// are the gradients of those inputs that require grad, and inputs are followed by cotangents.
  GradcheckEntry worst;

  explicit operator bool() const { return ok; }
  /// Verdict, counts and the worst entry, over a few lines.
  SASH_API std::string message() const;
  /// This report if it is good; else throws `AutogradError` with the message.
  SASH_API const GradcheckReport& or_throw() const;
};

/// Compares the gradients that the tape gives for `fn` with central differences, for every input
/// that requires grad, entry by entry of the Jacobian. Inputs may have any strides and live on any
/// device; those without grad (integers too) are passed on as they are. Elements are perturbed in
/// place and restored, or in a copy where inputs overlap themselves or are not on the CPU.
/// Throws `DTypeError` unless the inputs that require grad and the floating outputs are float64,
/// and `ValueError` if no input requires grad or `fn` is empty.
SASH_API GradcheckReport gradcheck(const GradcheckFunction& fn, const std::vector<Tensor>& inputs,
                                   const GradcheckOptions& options = {});
SASH_API GradcheckReport gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                                   const std::vector<Tensor>& inputs,
                                   const GradcheckOptions& options = {});

/// The same for second derivatives: checks the function that maps the inputs and random cotangents
/// to the gradients of the inputs, with respect to both.
SASH_API GradcheckReport gradgradcheck(const GradcheckFunction& fn,
                                       const std::vector<Tensor>& inputs,
                                       const GradcheckOptions& options = {});
SASH_API GradcheckReport gradgradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                                       const std::vector<Tensor>& inputs,
                                       const GradcheckOptions& options = {});

}  // namespace sash
