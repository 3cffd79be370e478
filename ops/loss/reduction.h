#pragma once

namespace sash {

/// How a loss reduces its terms: not at all, to their mean, or to their sum.
enum class Reduction { none, mean, sum };

}  // namespace sash
