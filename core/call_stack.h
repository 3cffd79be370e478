#pragma once

#include <string>

#include "export.h"

namespace sash {

/// The functions that called this one, the innermost first, up to `main`, each after a line break
/// and four spaces, without those of the standard library. `plain_name` shortens the names. The
/// names come from the symbol tables of the program and its libraries, static
/// functions and those of unnamed namespaces included; of a file that was stripped, or linked with
/// -s, only exported functions have names (-rdynamic). Functions that the compiler inlined are
/// missing.
SASH_API std::string call_stack();

/// The name that a programmer knows of a symbol: "sash::nn::Linear::forward", without the types of
/// its template, its arguments and its result, and without unnamed namespaces.
SASH_API std::string plain_name(const char* symbol);

}  // namespace sash
