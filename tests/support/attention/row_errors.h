#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "../compare.h"

/// Comparing attention row by row: an error of few rows is lost in the norm of all.
namespace sash::testing {

/// The largest ||found[r] - expected[r]|| / max(||expected[r]||, m), where rows lie along the last
/// axis and m is the median of their norms, rows of zeros left out, and at least `floor` times the
/// root mean square of all norms. Infinity if a NaN or an infinity is not where it should be.
inline double row_error(const Tensor& found, const Tensor& expected, double floor = 0) {
  REQUIRE(found.shape() == expected.shape());
  const auto width = static_cast<size_t>(expected.shape()[expected.rank() - 1]);
  const std::vector<double> x = found.to_vector<double>(), y = expected.to_vector<double>();
  std::vector<double> errors, norms, median;
  double squares = 0;
  for (size_t row = 0; row < y.size(); row += width) {
    double error = 0, norm = 0;
    for (size_t i = row; i < row + width; ++i) {
      if (std::isfinite(y[i])) {
        error += (x[i] - y[i]) * (x[i] - y[i]);
        norm += y[i] * y[i];
      } else if (x[i] != y[i] && !(std::isnan(x[i]) && std::isnan(y[i]))) {
        return std::numeric_limits<double>::infinity();
      }
    }
    if (std::isnan(error)) return std::numeric_limits<double>::infinity();
    squares += norm;
    errors.push_back(std::sqrt(error));
    norms.push_back(std::sqrt(norm));
    if (norm > 0) median.push_back(norms.back());
  }
  double least = norms.empty() ? 0 : floor * std::sqrt(squares / static_cast<double>(norms.size()));
  if (!median.empty()) {
    const auto middle = median.begin() + static_cast<std::ptrdiff_t>(median.size() / 2);
    std::nth_element(median.begin(), middle, median.end());
    least = std::max(least, *middle);
  }
  double worst = 0;
  for (size_t row = 0; row < errors.size(); ++row) {
    const double scale = std::max(norms[row], least);
    worst = std::max(worst, scale > 0 ? errors[row] / scale : errors[row]);
  }
  return worst;
}

/// A row may err this many times as much as the whole. Rows of dq and dk may err most: where one
/// key has nearly all the weight of a query, ds = p (dp - D) cancels, and the rounding of D does
/// not.
inline constexpr double kRows = 4, kScoreRows = 16;

/// Checks that `found`, by name "out", "lse", "dq", "dk", "dv" or another, errs at most by `limit`
/// as a whole, and in each row by no more than the factor for rows. Each number of lse is a row.
inline void check_rows(const std::string& name, const Tensor& found, const Tensor& expected,
                       double limit, double floor = 0) {
  const double all = relative_error(found, expected);
  const double rows = name == "lse" ? row_error(found.unsqueeze(-1), expected.unsqueeze(-1), floor)
                                    : row_error(found, expected, floor);
  CAPTURE(name);
  CHECK_MESSAGE(all <= limit, all);
  const double factor = name == "dq" || name == "dk" ? kScoreRows : kRows;
  CHECK_MESSAGE(rows <= factor * limit, "of a row: ", rows);
}

}  // namespace sash::testing
