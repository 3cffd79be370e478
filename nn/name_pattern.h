#pragma once

#include <memory>
#include <string>

#include "../core/export.h"

namespace sash::nn {

/// An ECMAScript regular expression that matches whole names: "layers\\.[0-9]+\\.linear[12]".
class SASH_API NamePattern {
 public:
  /// `ValueError` of `op` if the expression is invalid.
  NamePattern(const std::string& op, const std::string& text);
  ~NamePattern();
  NamePattern(NamePattern&&) noexcept;

  bool matches(const std::string& name) const;

 private:
  struct Expression;
  std::unique_ptr<Expression> expression_;
};

}  // namespace sash::nn
