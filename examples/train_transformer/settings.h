#pragma once

#include <map>
#include <string>

#include "options.h"

/// The options that a checkpoint keeps, by the names of their flags.
std::map<std::string, std::string> settings_of(const Options& options);

/// Takes over what a checkpoint kept for every flag that was not given. `sash::ValueError` naming
/// both values if a given one contradicts what the model is or where its data go on; length of the
/// training, learning rate, dropout, seed and text may change.
void take_settings(const std::map<std::string, std::string>& kept, Options& options);
