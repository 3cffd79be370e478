#pragma once

#include <string>
#include <vector>

#include "state_dict.h"

namespace sash {

/// Keys on which a module or optimizer and a dictionary differ.
struct LoadReport {
  std::vector<std::string> missing;     ///< expected, but not in the dictionary
  std::vector<std::string> unexpected;  ///< in the dictionary, but not expected
};

/// Checks a state dictionary against what a module or optimizer expects, before anything is loaded.
class SASH_API StateCheck {
 public:
  /// `ValueError` if a key occurs twice. `dict` must outlive the check.
  StateCheck(std::string op, const StateDict& dict);
  ~StateCheck();

  /// The tensor of that name, or null.
  const Tensor* find(const std::string& key) const;
  /// Notes that `key` should be there, of this shape and of a floating dtype or not.
  void expect(const std::string& key, const Shape& shape, bool floating);
  /// `ValueError` that lists tensors that do not fit and, if `strict`, missing and unexpected keys.
  LoadReport finish(bool strict);

 private:
  std::string op_;
  const StateDict& dict_;
  struct Given;
  Owned<Given> given_;
  std::vector<std::string> missing_;
  std::vector<std::string> mismatched_;
};

}  // namespace sash
