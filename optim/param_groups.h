#pragma once

#include <vector>

#include "../nn/module.h"
#include "optimizer.h"

namespace sash::optim {

/// Fills groups with the parameters of `model` by name. Each parameter goes to the first group
/// whose `pattern`, an ECMAScript regular expression, matches its whole name. Parameters without a
/// match form one more group with the optimizer's options. This example has no weight decay on
/// biases and norms:
///
///     optim::AdamW optimizer(
///         optim::param_groups(model, {{.pattern = ".*(bias|norm.*)", .weight_decay = 0.0}}));
///
/// `ValueError` for an invalid pattern or one that gets no parameter.
SASH_API std::vector<ParamGroup> param_groups(const nn::Module& model,
                                              std::vector<ParamGroup> groups);

}  // namespace sash::optim
