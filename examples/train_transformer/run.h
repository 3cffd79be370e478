#pragma once

#include "options.h"

/// Checks the options, then trains, saves, validates and generates text, as `options` say. Returns
/// the exit code. Throws a `sash::Error` on failure; invalid options fail before the first step.
int run(Options options);
