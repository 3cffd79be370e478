// Trains a character-level transformer, by default on the sources of sash, and generates text.
#include <cstdio>
#include <exception>

#include "options.h"
#include "run.h"

int main(int argc, char** argv) {
  Options options;
  int exit_code = 0;
  if (!parse_options(argc, argv, options, exit_code)) return exit_code;
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
