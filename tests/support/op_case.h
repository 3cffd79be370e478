#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sash/tensor/tensor.h>

#include "reference.h"

namespace sash::testing {

/// How an input lies in memory. Whatever the layout, sentinels fill the gaps and both ends.
enum class Layout {
  contiguous,
  transposed,  ///< the last two axes change places in memory
  heads,       ///< axes 1 and 2 do, as when heads are split from [B, S, H D]
  sliced,      ///< every second element of the last axis, from the second on
  padded,      ///< contiguous rows with gaps between them, as columns of a wider matrix
  expanded,    ///< the first axis of extent above 1 has stride 0
};

/// An input: uniform numbers in [low, high), the same for every dtype.
struct InputSpec {
  Shape shape;
  Layout layout = Layout::contiguous;
  double low = -2;
  double high = 2;
  std::optional<DType> dtype{};    ///< default: that of the run
  bool requires_grad = true;       ///< floating inputs only
  std::vector<double> kinks{};     ///< values keep 0.05 away from these
  bool distinct = false;           ///< evenly spaced and shuffled: no ties
  std::vector<double> elements{};  ///< instead of random ones
};

/// One or several results, so that most cases return just one.
template <class T>
struct Several : std::vector<T> {
  Several(T one) : std::vector<T>{std::move(one)} {}
  Several(std::vector<T> many) : std::vector<T>(std::move(many)) {}
};

using Tensors = std::vector<Tensor>;
using Arrays = std::vector<Array>;

/// A row of the table: one op with one set of shapes, layouts and options. Its uses are the forward
/// pass against `reference`, gradient checks, every backend against the CPU, the half types against
/// rounded float32, and timing.
struct OpCase {
  std::string op;       ///< the public function, "operator+" for an operator
  std::string variant;  ///< tells the cases of an op apart
  std::vector<InputSpec> inputs;
  std::function<Several<Tensor>(const Tensors&)> run;
  std::function<Several<Array>(const Arrays&)> reference;

  std::vector<DType> dtypes{DType::float32, DType::float64};
  std::vector<DType> results{};  ///< dtypes of the results; default: that of the run
  double tolerance32 = 1e-5;     ///< |y - reference| <= tolerance max(1, |reference|)
  double tolerance64 = 1e-12;
  double gradient32 = 1e-4;  ///< the same, of float32 gradients against float64 ones
  /// For float16 and bfloat16, by how many roundings results and gradients may be off: more than 1
  /// where several ops round one after the other.
  double half_rounds = 1;
  double half_gradient_rounds = 1;
  /// Magnitude of intermediate values that are rounded and may cancel in a gradient.
  double half_gradient_scale = 0;
  bool differentiable = true;
  bool twice_differentiable = true;
  bool fast_checks = false;  ///< gradcheck by random products whatever the size
  bool timed = false;        ///< large: for the benchmark, and the forward check
  double operations = 0;     ///< of a timed case, forward
  double bytes = 0;          ///< read and written at least

  std::string name() const { return op + "/" + variant; }
};

using OpTable = std::vector<OpCase>;

}  // namespace sash::testing
