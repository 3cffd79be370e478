#pragma once

#include <functional>

namespace CLI {
class App;
}

/// Parses the command line, and calls the program. Returns the exit code: what the program returns;
/// 0 after --help; 1 after wrong flags or an exception, which are printed, and if standard output
/// could not be written.
int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& program);
