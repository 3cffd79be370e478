#pragma once

namespace sash {

/// What a loss does with its terms: keeps them, averages them, or adds them up.
enum class Reduction { none, mean, sum };

}  // namespace sash
