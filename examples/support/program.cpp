#include "program.h"

#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>

namespace {

int parse_and_run(CLI::App& app, int argc, char** argv, const std::function<int()>& program) {
  try {
    app.parse(argc, argv);
    return program();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

}  // namespace

int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& program) {
  const int exit_code = parse_and_run(app, argc, argv, program);
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || exit_code != 0) return exit_code;
  std::fprintf(stderr, "error: cannot write to standard output\n");
  return 1;
}
