#pragma once

#include <map>
#include <string>

#include "options.h"

/// The options that are stored in a checkpoint, by flag name.
std::map<std::string, std::string> settings_of(const Options& options);

/// Sets every option that is not on the command line to its value `kept` in the checkpoint. Throws
/// `sash::ValueError` with both values if a given option differs from the checkpoint's, unless it
/// may change: steps, learning rate, dropout, seed and text.
void take_settings(const std::map<std::string, std::string>& kept, Options& options);
