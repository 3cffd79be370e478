#include "einsum_plan.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>

#include "../../core/error.h"

namespace sash::detail {
namespace {

constexpr const char* kEinsum = "einsum";

/// One character per axis: a letter, or a digit for an axis of `...`, counted from the last.
using Labels = std::string;

struct Equation {
  std::vector<Labels> operands;
  Labels result;
};

/// One side of the equation at a comma, with `axes` digits in the place of `...`.
Labels expanded(const std::string& text, int axes) {
  Labels labels = text;
  if (const size_t dots = labels.find("..."); dots != Labels::npos) {
    std::string digits;
    for (int axis = axes; axis-- > 0;) digits += static_cast<char>('0' + axis);
    labels.replace(dots, 3, digits);
  }
  return labels;
}

[[noreturn]] void throw_unreadable(const std::string& expected, const std::string& equation) {
  throw ValueError(kEinsum, expected, '"' + equation + '"');
}

/// `text` is letters and at most one "...".
void check_term(const std::string& text, const std::string& equation) {
  std::string letters = text;
  if (const size_t dots = letters.find("..."); dots != std::string::npos) letters.erase(dots, 3);
  const bool good = std::all_of(letters.begin(), letters.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
  if (!good) throw_unreadable("letters, commas, \"...\" and one \"->\"", equation);
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back().push_back(c);
    }
  }
  return parts;
}

Labels implied_result(const Equation& equation) {
  std::map<char, int> uses;
  for (const Labels& labels : equation.operands) {
    for (const char label : labels) ++uses[label];
  }
  Labels digits, letters;
  for (const auto& [label, count] : uses) {
    if (std::isdigit(static_cast<unsigned char>(label))) {
      digits.insert(digits.begin(), label);
    } else if (count == 1) {
      letters += label;
    }
  }
  return digits + letters;
}

Equation parse(const std::string& text, const std::vector<Shape>& shapes) {
  std::string dense;
  std::copy_if(text.begin(), text.end(), std::back_inserter(dense),
               [](char c) { return c != ' '; });
  const size_t arrow = dense.find("->");
  const std::string left = dense.substr(0, arrow);
  // First, because terms take more memory than the text.
  const auto count = static_cast<size_t>(std::count(left.begin(), left.end(), ',')) + 1;
  if (count != shapes.size()) {
    throw ValueError(kEinsum, std::to_string(count) + " operands for \"" + text + '"',
                     std::to_string(shapes.size()));
  }
  const std::vector<std::string> terms = split_at_commas(left);
  for (const std::string& term : terms) check_term(term, text);
  Equation equation;
  int most = 0;  // axes that any "..." stands for
  for (size_t i = 0; i < terms.size(); ++i) {
    const bool dots = terms[i].find("...") != std::string::npos;
    const int named = static_cast<int>(terms[i].size()) - (dots ? 3 : 0);
    const int rank = shapes[i].rank();
    if (dots ? rank < named : rank != named) {
      throw ShapeError(kEinsum,
                       "operand " + std::to_string(i) + " with " + (dots ? "at least " : "") +
                           std::to_string(named) + (named == 1 ? " axis" : " axes") + " for \"" +
                           terms[i] + '"',
                       to_string(shapes[i]));
    }
    most = std::max(most, rank - named);
    equation.operands.push_back(expanded(terms[i], rank - named));
  }
  if (arrow == std::string::npos) {
    equation.result = implied_result(equation);
    return equation;
  }
  const std::string result = dense.substr(arrow + 2);
  check_term(result, text);
  equation.result = expanded(result, most);
  for (size_t i = 0; i < equation.result.size(); ++i) {
    const char label = equation.result[i];
    const bool known =
        std::any_of(equation.operands.begin(), equation.operands.end(),
                    [&](const Labels& labels) { return labels.find(label) != Labels::npos; });
    if (!known || equation.result.find(label, i + 1) != Labels::npos) {
      throw_unreadable("a result of letters that operands have, each once", text);
    }
  }
  return equation;
}

/// The extent of each label; axes of extent 1 broadcast.
std::map<char, int64_t> extents_of(const Equation& equation, const std::vector<Shape>& shapes) {
  std::map<char, int64_t> extents;
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (int axis = 0; axis < shapes[i].rank(); ++axis) {
      const char label = equation.operands[i][static_cast<size_t>(axis)];
      const int64_t extent = shapes[i][axis];
      const auto [at, is_new] = extents.emplace(label, extent);
      if (is_new || at->second == extent || extent == 1) continue;
      if (at->second != 1) {
        const bool named = !std::isdigit(static_cast<unsigned char>(label));
        throw ShapeError(kEinsum,
                         named ? std::string("one extent for \"") + label + '"'
                               : std::string("axes of \"...\" that broadcast together"),
                         std::to_string(at->second) + " and " + std::to_string(extent));
      }
      at->second = extent;
    }
  }
  return extents;
}

bool has(const Labels& labels, char label) { return labels.find(label) != Labels::npos; }

/// Removes what the operand can lose on its own.
EinsumPlan::Start start_of(Labels& labels, const std::function<bool(char)>& wanted) {
  EinsumPlan::Start start;
  for (size_t i = 0; i < labels.size(); ++i) {
    for (size_t j; (j = labels.find(labels[i], i + 1)) != Labels::npos;) {
      start.diagonals.push_back({static_cast<int>(i), static_cast<int>(j)});
      labels.erase(j, 1);
    }
  }
  Labels kept;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (wanted(labels[i])) {
      kept += labels[i];
    } else {
      start.sums.push_back(static_cast<int64_t>(i));
    }
  }
  labels = kept;
  return start;
}

Dims order_of(const Labels& wanted, const Labels& labels) {
  Dims order;
  for (const char label : wanted) order.push_back(static_cast<int64_t>(labels.find(label)));
  return order;
}

/// Labels of the operands that are left, and what is known of all.
class Planner {
 public:
  Planner(const Equation& equation, std::map<char, int64_t> extents)
      : terms_(equation.operands), result_(equation.result), extents_(std::move(extents)) {}

  EinsumPlan plan() {
    EinsumPlan plan;
    for (size_t i = 0; i < terms_.size(); ++i) {
      plan.starts.push_back(start_of(terms_[i], [&](char label) { return needed(label, i, i); }));
    }
    while (terms_.size() > 1) plan.steps.push_back(next_step());
    plan.result_order = order_of(result_, terms_[0]);
    return plan;
  }

 private:
  /// Whether the result or an operand other than these two has the label.
  bool needed(char label, size_t a, size_t b) const {
    if (has(result_, label)) return true;
    for (size_t i = 0; i < terms_.size(); ++i) {
      if (i != a && i != b && has(terms_[i], label)) return true;
    }
    return false;
  }

  struct Groups {
    Labels both, left, right, inner;
  };
  Groups groups(size_t a, size_t b) const {
    Groups found;
    for (const char label : terms_[a]) {
      if (!has(terms_[b], label)) {
        found.left += label;
      } else {
        (needed(label, a, b) ? found.both : found.inner) += label;
      }
    }
    for (const char label : terms_[b]) {
      if (!has(terms_[a], label)) found.right += label;
    }
    return found;
  }

  double size_of(const Labels& labels) const {
    double size = 1;
    for (const char label : labels) size *= static_cast<double>(extents_.at(label));
    return size;
  }

  EinsumPlan::Step next_step() {
    size_t left = 0, right = 1;
    double least = -1;
    for (size_t a = 0; a < terms_.size(); ++a) {
      for (size_t b = a + 1; b < terms_.size(); ++b) {
        const Groups g = groups(a, b);
        const double size = size_of(g.both + g.left + g.right);
        if (least >= 0 && size >= least) continue;
        least = size, left = a, right = b;
      }
    }
    const Groups g = groups(left, right);
    EinsumPlan::Step step{left,
                          right,
                          order_of(g.both + g.left + g.inner, terms_[left]),
                          order_of(g.both + g.inner + g.right, terms_[right]),
                          static_cast<int>(g.both.size()),
                          static_cast<int>(g.left.size()),
                          static_cast<int>(g.right.size())};
    terms_.erase(terms_.begin() + static_cast<std::ptrdiff_t>(right));
    terms_.erase(terms_.begin() + static_cast<std::ptrdiff_t>(left));
    terms_.push_back(g.both + g.left + g.right);
    return step;
  }

  std::vector<Labels> terms_;
  Labels result_;
  std::map<char, int64_t> extents_;
};

}  // namespace

std::shared_ptr<const EinsumPlan> einsum_plan(const std::string& equation,
                                              const std::vector<Shape>& shapes) {
  constexpr size_t kMost = 256;
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const EinsumPlan>> plans;
  std::string key = equation;
  for (const Shape& shape : shapes) key += to_string(shape);
  {
    const std::lock_guard lock(mutex);
    if (const auto found = plans.find(key); found != plans.end()) return found->second;
  }
  const Equation parsed = parse(equation, shapes);
  const auto plan =
      std::make_shared<const EinsumPlan>(Planner(parsed, extents_of(parsed, shapes)).plan());
  const std::lock_guard lock(mutex);
  if (plans.size() >= kMost) plans.clear();
  plans[key] = plan;
  return plan;
}

}  // namespace sash::detail
