#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// Nested lists of digits with one digit as value: ListOps (Nangia and Bowman, 2018), drawn as for
/// the Long Range Arena (Tay et al., 2021).
///
///     [MAX 2 9 [MIN 4 7 ] 0 ]     is 9
///
/// MED is the median, of an even number of arguments the mean of the middle two, rounded down; SM
/// the sum modulo 10.
namespace listops {

/// Tokens 0 to 9 are the digits. An operator opens a list, kEnd closes it.
enum Token : int64_t { kMin = 10, kMax, kMed, kSum, kEnd, kTokens };

struct Expression {
  std::vector<int64_t> tokens{};
  int64_t value = 0;
};

struct ExpressionOptions {
  int64_t shortest = 500;  ///< an expression has more tokens than this
  int64_t longest = 2000;  ///< and fewer than this
  int64_t depth = 10;      ///< of lists and digits within each other, at most
  int64_t arguments = 10;  ///< of a list: from 2 to this
};

/// `sash::ValueError` if no expression has such a length: they have 1 token, or 4 and more.
void check(const ExpressionOptions& options);

/// Expression `number` of those that `seed` gives. An argument is a list with probability 1/4, its
/// operator one of the four; what has another length is drawn again, at most 200,000
/// times: `sash::ValueError` if all have.
Expression random_expression(uint64_t seed, uint64_t number, const ExpressionOptions& options);

/// "[MAX 2 9 [MIN 4 7 ] 0 ]".
std::string to_string(const Expression& expression);

}  // namespace listops
