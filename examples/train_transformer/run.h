#pragma once

#include "options.h"

/// Checks what can be checked, trains, saves, validates and writes, as far as `options` ask for it.
/// Returns the exit code. Throws a `sash::Error` for what cannot work, before the first step if
/// that can be known.
int run(Options options);
