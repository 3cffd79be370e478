#include "name_pattern.h"

#include <regex>

#include "../core/error.h"

namespace sash::nn {

struct NamePattern::Expression {
  std::regex regex;
};

NamePattern::NamePattern(const std::string& op, const std::string& text) {
  try {
    expression_ = std::make_unique<Expression>(Expression{std::regex(text)});
  } catch (const std::regex_error& error) {
    throw ValueError(op, "a regular expression", "'" + text + "': " + error.what());
  }
}

NamePattern::~NamePattern() = default;
NamePattern::NamePattern(NamePattern&&) noexcept = default;

bool NamePattern::matches(const std::string& name) const {
  return std::regex_match(name, expression_->regex);
}

}  // namespace sash::nn
