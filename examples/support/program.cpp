#include "program.h"

#include <cmath>
#include <cstdint>
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

std::string complaint(const std::string& expected, const std::string& got) {
  return "expected " + expected + ", got " + (got.empty() ? "nothing" : got);
}

std::string check_path(const std::string& text) {
  return text.empty() ? complaint("the path of a file", text) : "";
}

std::string check_finite(const std::string& text) {
  double value = 0;
  return read_number(text, value) && std::isfinite(value) ? "" : complaint("a finite number", text);
}

std::string check_seed(const std::string& text) {
  uint64_t value = 0;
  return read_number(text, value) ? "" : complaint("a whole number from 0 to 2^64 - 1", text);
}
